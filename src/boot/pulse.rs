//! Signs of life: each shard counts its turns where the watchdog can see it.
//!
//! A shard writes its own counter only, once in each turn; it has at least some turns in a second, because
//! its clock's tick wakes it. The watchdog only reads.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

/// The turns of all shards.
#[derive(Debug)]
pub struct Pulse {
    /// Each on a cache line of its own: no shard waits for another's count.
    turns: Box<[CachePadded<AtomicU64>]>,
}

impl Pulse {
    /// Of so many shards that have not turned yet.
    pub fn new(shards: usize) -> Pulse {
        Pulse { turns: (0..shards).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// The shard has begun another turn. Called by that shard's thread alone, so that load and store are enough.
    pub fn beat(&self, shard: usize) {
        let turns = &self.turns[shard];
        turns.store(turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How many turns each shard has had.
    pub(super) fn turns(&self) -> Vec<u64> {
        self.turns.iter().map(|turns| turns.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shard_counts_for_itself() {
        let pulse = Pulse::new(3);
        pulse.beat(0);
        pulse.beat(2);
        pulse.beat(2);
        assert_eq!(pulse.turns(), [1, 0, 2]);
    }
}
