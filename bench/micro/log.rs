//! Appending, committing and settling, on a disk that does nothing and is quick at it.

use std::collections::VecDeque;
use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};
use lepus_storage::log::{AlignedBuffer, Completion, Disk, LogOptions, Recovered, ShardLog};

use crate::TIMES;

/// Messages that one commit takes with it.
const PER_COMMIT: usize = 100;

/// Everything is done at the next look.
#[derive(Default)]
struct Nowhere(VecDeque<Completion>);

impl Disk for Nowhere {
    fn write(&mut self, _segment: u64, _offset: u64, buffer: AlignedBuffer, _sync: bool) {
        self.0.push_back(Completion::Written(buffer, Ok(())));
    }
    fn prepare(&mut self, segment: u64, _bytes: u64, _recycled: Option<u64>) {
        self.0.push_back(Completion::Prepared(segment, Ok(())));
    }
    fn remove(&mut self, _segment: u64) {}
    fn read(&mut self, _segment: u64, _offset: u64, _bytes: usize) {
        unreachable!("nothing is read back");
    }
    fn free(&mut self, _buffer: AlignedBuffer) {}
    fn summarize(&mut self, _segment: u64, _summary: Vec<u8>) {}
    fn poll(&mut self) -> Option<Completion> {
        self.0.pop_front()
    }
}

struct Log {
    log: ShardLog<Nowhere>,
    body: Vec<u8>,
    sequences: Vec<u64>,
}

/// Past its first growth.
fn log(body_bytes: usize) -> Log {
    let options = LogOptions {
        shard: 0,
        epoch: 1,
        segment_bytes: 64 << 20,
        commit_bytes: 1 << 20,
        sync: true,
        commit_delay_max_ms: 0,
    };
    let log = ShardLog::new(Nowhere::default(), options, Recovered::default());
    let mut log = Log { log, body: vec![b'x'; body_bytes], sequences: Vec::new() };
    append_and_settle(&mut log, PER_COMMIT);
    log
}

/// Messages of which each goes to disk, and then their settlements.
fn append_and_settle(log: &mut Log, times: usize) {
    let Log { log, body, sequences } = log;
    for _ in 0..times / PER_COMMIT {
        sequences.clear();
        for _ in 0..PER_COMMIT {
            let parts: [&[u8]; 4] = [b"\x01x", b"\x03key", &[0x10, 0, 2], black_box(body)];
            sequences.push(log.append(1, None, true, std::iter::once(7), &parts));
        }
        while log.committed() < sequences[PER_COMMIT - 1] {
            log.poll(1).expect("nothing fails");
        }
        for &sequence in &*sequences {
            black_box(log.settle(sequence, 7));
        }
        log.poll(1).expect("nothing fails");
        log.take_written_settlements().for_each(|settlement| {
            black_box(settlement);
        });
    }
}

#[library_benchmark]
#[bench::body_16(log(16))]
#[bench::body_1024(log(1024))]
fn append_commit_settle(mut log: Log) -> Log {
    append_and_settle(black_box(&mut log), TIMES);
    log
}

library_benchmark_group!(name = log_group, benchmarks = [append_commit_settle]);
