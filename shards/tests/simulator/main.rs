//! The kernel under a seeded simulator: several shards, random clients, random arrival of batches,
//! commits and turns. Every step checks the ledger's invariants; every run ends with an account of
//! every message.
//!
//! `LEPUS_SIM_SEEDS=1000 cargo test --release -p lepus-shards --test simulator` runs more seeds;
//! `LEPUS_SIM_SEED=42` runs one, and prints what its clients do.

mod clients;
mod dead_letters;
mod delayed;
mod policies;
mod transactions;
#[allow(dead_code, reason = "the behaviour tests use the rest of it")]
mod world;

use std::collections::BTreeSet;

use clients::Clients;
use world::World;

const STEPS: usize = 3_000;

struct Run {
    trace: u64,
    deliveries: u64,
    redeliveries: u64,
    loaded: u64,
}

fn run(seed: u64, verbose: bool) -> Run {
    let count = 1 + (seed % 4) as usize;
    // Every third run is so short of memory that messages leave it, and publishers are blocked now and then.
    let budget = if seed.is_multiple_of(3) { 20_000 } else { u64::MAX };
    let mut world = World::new(seed, count, budget);
    let mut clients = Clients::new(&mut world);
    for step in 0..STEPS {
        if world.random.u8(..3) == 0 {
            let what = clients.act(&mut world);
            if verbose {
                println!("{step}: {what}");
            }
        } else {
            world.happen();
        }
        world.check();
        clients.listen(&mut world);
    }
    clients.account(&mut world);
    let loaded = world.around.iter().map(|around| around.loaded).sum();
    Run { trace: world.trace(), deliveries: clients.deliveries, redeliveries: clients.redeliveries, loaded }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number of seeds"))
}

/// Names the seed of a run that panics.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with LEPUS_SIM_SEED={}", self.0);
        }
    }
}

#[test]
fn every_message_is_accounted_for_on_every_seed() {
    if let Some(seed) = number("LEPUS_SIM_SEED") {
        run(seed, true);
        return;
    }
    let seeds = number("LEPUS_SIM_SEEDS").unwrap_or(200);
    println!("seeds 0..{seeds}");
    let (mut deliveries, mut redeliveries, mut loaded) = (0, 0, 0);
    for seed in 0..seeds {
        let guard = Seed(seed);
        let done = run(seed, false);
        deliveries += done.deliveries;
        redeliveries += done.redeliveries;
        loaded += done.loaded;
        drop(guard);
    }
    println!("{deliveries} deliveries, {redeliveries} of them again, {loaded} messages back from disk");
    assert!(deliveries > seeds * 50 && redeliveries > seeds && loaded > seeds, "the clients do something");
}

#[test]
fn what_a_lost_client_held_goes_to_the_next_in_its_order() {
    for seed in 0..300 {
        let guard = Seed(seed);
        let mut world = World::new(seed, 1 + (seed % 4) as usize, u64::MAX);
        clients::hand_on_what_a_lost_client_held(&mut world, seed % 2 == 0);
        drop(guard);
    }
}

#[test]
fn every_message_that_a_queue_gives_up_ends_in_one_place() {
    let seeds = match number("LEPUS_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LEPUS_SIM_SEEDS").unwrap_or(200) * 2,
    };
    let count = seeds.end - seeds.start;
    let mut messages = 0;
    for seed in seeds {
        let guard = Seed(seed);
        let mut world = World::new(seed, 1 + (seed % 3) as usize, u64::MAX);
        messages += dead_letters::run(&mut world);
        drop(guard);
    }
    assert!(messages > count * 10, "{messages} messages");
}

#[test]
fn every_delayed_message_goes_on_once_and_not_before_its_time() {
    let seeds = match number("LEPUS_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LEPUS_SIM_SEEDS").unwrap_or(200),
    };
    let count = seeds.end - seeds.start;
    let mut messages = 0;
    for seed in seeds {
        let guard = Seed(seed);
        let budget = if seed.is_multiple_of(3) { 5_000 } else { u64::MAX };
        let mut world = World::new(seed, 1 + (seed % 3) as usize, budget);
        messages += delayed::run(&mut world);
        drop(guard);
    }
    assert!(messages > count * 10, "{messages} messages");
}

#[test]
fn a_transaction_is_seen_and_logged_as_a_whole_or_not_at_all() {
    let seeds = match number("LEPUS_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LEPUS_SIM_SEEDS").unwrap_or(200),
    };
    let count = seeds.end - seeds.start;
    let (mut commits, mut crashed_at) = (0, BTreeSet::new());
    for seed in seeds {
        let guard = Seed(seed);
        let budget = if seed.is_multiple_of(3) { 60_000 } else { u64::MAX };
        let mut world = World::new(seed, 1 + (seed % 4) as usize, budget);
        let outcomes = transactions::run(&mut world);
        commits += outcomes.commits;
        crashed_at.extend(outcomes.crashed_at);
        drop(guard);
    }
    println!("{commits} commits; what a crash leaves was seen when {crashed_at:?}");
    assert!(commits > count * 10, "{commits} commits");
    assert!(crashed_at.len() == 6 || count < 20, "every step was met: {crashed_at:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [1, 2, 3, 4] {
        assert_eq!(run(seed, false).trace, run(seed, false).trace, "seed {seed}");
    }
    assert_ne!(run(1, false).trace, run(5, false).trace);
}
