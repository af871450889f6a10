//! Puts load on a broker and prints what went through, by name=value arguments:
//! `cargo run --release -p lepus-bench --example throughput -- address=127.0.0.1:5672 body=16 pid=1234`

use std::time::Duration;

use lepus_bench::Throughput;

fn main() {
    let mut run = Throughput {
        address: "127.0.0.1:5672".into(),
        producers: 1,
        consumers: 1,
        queues: 1,
        body_bytes: 16,
        persistent: false,
        confirm_window: 0,
        prefetch: 0,
        duration: Duration::from_secs(5),
        pid: None,
    };
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let number = || value.parse::<usize>().unwrap_or_else(|_| fail(&argument));
        match name {
            "address" => run.address = value.into(),
            "producers" => run.producers = number(),
            "consumers" => run.consumers = number(),
            "queues" => run.queues = number().max(1),
            "body" => run.body_bytes = number(),
            "persistent" => run.persistent = number() > 0,
            "confirm" => run.confirm_window = number() as u64,
            "prefetch" => run.prefetch = number() as u16,
            "seconds" => run.duration = Duration::from_secs(number() as u64),
            "pid" => run.pid = Some(number() as u32),
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
    eprintln!(
        "'{argument}' is not one of address= producers= consumers= queues= body= persistent= confirm= prefetch= \
         seconds= pid="
    );
    std::process::exit(2)
}
