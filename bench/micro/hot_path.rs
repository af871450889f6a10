//! The path of a message through one shard, many times: for profilers, and for a look at the clock.
//!
//! ```sh
//! cargo build --release --features fuzzing --example hot_path
//! target/release/examples/hot_path ack 16
//! valgrind --tool=callgrind --toggle-collect='*Path*run*' target/release/examples/hot_path ack 16
//! ```
//!
//! Modes: `ack` (a consumer with prefetch 500 acks each read with one `multiple`), `no-ack`, and `confirm` (persistent,
//! durable queue, confirms, acks).

mod path;

use path::{Mode, PER_TURN, Path};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TURNS: usize = 1_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = match arguments.next().as_deref() {
        None | Some("ack") => Mode::Ack,
        Some("no-ack") => Mode::NoAck,
        Some("confirm") => Mode::Confirm,
        Some(other) => panic!("the modes are ack, no-ack and confirm, and not {other}"),
    };
    let body_bytes: usize = arguments.next().map_or(16, |text| text.parse().expect("bytes of body"));
    let mut path = Path::new(mode, body_bytes);
    let start = std::time::Instant::now();
    let bytes = path.run(TURNS);
    let messages = PER_TURN * TURNS;
    assert!(bytes > messages * (body_bytes + 40), "everything was delivered");
    let each_ns = start.elapsed().as_nanos() as f64 / messages as f64;
    println!("{messages} messages of {body_bytes} bytes, {mode:?}: {each_ns:.0} ns each");
}
