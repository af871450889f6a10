//! Entering, claiming and settling on the owner; delivery tags on the home shard.

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};
use lepus_shards::ledger::{Held, Holder, Ledger, Position, Returns, Unacked};
use lepus_shards::shard::Verdict;
use lepus_shards::{DeliveryTag, QueueId, ShardId};

use crate::TIMES;

/// Past its first growth.
fn queue(max_priority: Option<u8>) -> Ledger {
    let mut ledger = Ledger::new(1, max_priority);
    deliver_and_settle(&mut ledger);
    ledger
}

fn deliver_and_settle(ledger: &mut Ledger) {
    for message in 0..TIMES as u32 {
        ledger.restore(message, (message % 4) as u8, Returns::default());
    }
    for _ in 0..TIMES {
        let cursor = ledger.cursor();
        let claim = ledger.claim(cursor, Holder(1)).expect("nobody else claims").expect("one is ready");
        black_box(ledger.settle(claim.position, Verdict::Accept));
    }
}

#[library_benchmark]
#[bench::plain(queue(None))]
#[bench::priorities(queue(Some(9)))]
fn claim_settle(mut ledger: Ledger) -> Ledger {
    deliver_and_settle(black_box(&mut ledger));
    ledger
}

#[library_benchmark]
#[bench::multiple(100)]
#[bench::one_by_one(1)]
fn tags(each: u64) -> Unacked {
    let mut unacked = Unacked::default();
    let held = Held { queue: QueueId::new(ShardId(0), 1, 0), position: Position(1), counted: true };
    for tag in 1..=TIMES as u64 {
        unacked.push(black_box(held));
        if tag % each == 0 {
            unacked.take_up_to(DeliveryTag(tag), |_, held| {
                black_box(held);
            });
        }
    }
    unacked
}

library_benchmark_group!(name = ledger_group, benchmarks = [claim_settle, tags]);
