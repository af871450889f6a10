//! How long a confirm takes beside a plain synchronous write, by name=value arguments:
//! `cargo run --release -p lepus-bench --example confirms -- address=127.0.0.1:5672 directory=lepus-data`

use std::time::Duration;

use lepus_bench::Confirms;

fn main() {
    let mut run = Confirms {
        address: "127.0.0.1:5672".into(),
        directory: ".".into(),
        body_bytes: 1000,
        turns: 20,
        publishers: 100,
        duration: Duration::from_secs(5),
    };
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let number = || value.parse::<usize>().unwrap_or_else(|_| fail(&argument));
        match name {
            "address" => run.address = value.into(),
            "directory" => run.directory = value.into(),
            "body" => run.body_bytes = number(),
            "turns" => run.turns = number().max(1),
            "publishers" => run.publishers = number().max(1),
            "seconds" => run.duration = Duration::from_secs(number() as u64),
            _ => fail(&argument),
        }
    }
    match run.run() {
        Ok(report) => println!("{report}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

fn fail(argument: &str) -> ! {
    eprintln!("'{argument}' is not one of address= directory= body= turns= publishers= seconds=");
    std::process::exit(2)
}
