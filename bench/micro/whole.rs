//! A message on its whole way through a shard.

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};

use crate::TIMES;
use crate::path::{Mode, PER_TURN, Path};

/// Past the first turns, in which buffers grow.
fn path(mode: Mode, body_bytes: usize) -> Path {
    let mut path = Path::new(mode, body_bytes);
    path.run(10);
    path
}

#[library_benchmark]
#[bench::ack_16(path(Mode::Ack, 16))]
#[bench::ack_1024(path(Mode::Ack, 1024))]
#[bench::no_ack_16(path(Mode::NoAck, 16))]
#[bench::confirm_16(path(Mode::Confirm, 16))]
#[bench::confirm_1024(path(Mode::Confirm, 1024))]
fn publish_deliver(mut path: Path) -> (Path, usize) {
    let bytes = black_box(&mut path).run(TIMES / PER_TURN);
    (path, bytes)
}

library_benchmark_group!(name = whole_group, benchmarks = [publish_deliver]);
