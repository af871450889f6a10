//! The name of a transaction that several logs take part in.

const EPOCH_BITS: u32 = 24;
const COUNT_BITS: u32 = 30;
const SHARD_BITS: u32 = 10;

const _: () = assert!(SHARD_BITS + EPOCH_BITS + COUNT_BITS == u64::BITS);

/// The same in all logs: the shard that coordinates it in the upper 10 bits, the epoch of the broker's start
/// in the 24 below them, and a count in the lower 30. A count that overflows begins anew: by then nothing is
/// on disk of the transaction that had the name before, since a decision is forgotten in its log, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TxName(pub u64);

impl TxName {
    /// The name of this shard's transaction of this number.
    ///
    /// # Panics
    /// With a shard of more than 10 bits.
    pub fn new(shard: u32, epoch: u32, count: u64) -> TxName {
        assert!(shard < 1 << SHARD_BITS, "shards are counted in {SHARD_BITS} bits");
        let epoch = u64::from(epoch) & ((1 << EPOCH_BITS) - 1);
        let count = count & ((1 << COUNT_BITS) - 1);
        TxName(u64::from(shard) << (EPOCH_BITS + COUNT_BITS) | epoch << COUNT_BITS | count)
    }

    /// The shard whose log has the decision.
    pub fn coordinator(self) -> u32 {
        (self.0 >> (EPOCH_BITS + COUNT_BITS)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_shards_starts_and_counts_are_others() {
        let names =
            [(0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0), (1023, 1, 0), (1023, 1 << 23, (1 << 30) - 1)];
        let names = names.map(|(shard, epoch, count)| TxName::new(shard, epoch, count));
        let different: std::collections::BTreeSet<_> = names.into_iter().collect();
        assert_eq!(different.len(), names.len());
        assert_eq!(names.map(TxName::coordinator), [0, 0, 0, 1, 1023, 1023]);
        assert_eq!(TxName::new(3, 4, 5 + (1 << 30)), TxName::new(3, 4, 5), "the count begins anew");
    }
}
