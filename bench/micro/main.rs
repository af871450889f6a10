//! Instructions of the hot paths, counted by callgrind: each case does one thing a thousand times, and what it needs
//! for that is made before the count begins. `check` beside this file runs it and compares it with `baselines/`.

mod codec;
mod ledger;
mod log;
mod path;
mod routing;
mod whole;

use codec::codec_group;
use gungraun::main;
use ledger::ledger_group;
use log::log_group;
use routing::routing_group;
use whole::whole_group;

/// The broker's own allocator: its instructions are part of the price.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often each case does its thing.
const TIMES: usize = 1_000;

main!(library_benchmark_groups = [codec_group, routing_group, ledger_group, log_group, whole_group]);
