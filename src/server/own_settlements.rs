//! Settlements that a shard's log makes by itself, as parts of transactions.
//!
//! A queue lets go of such a message as of any other, before the log has settled it or after, and says so: the
//! log must not hear of it twice. So each settlement is noted here until both have happened. It does not
//! go into the unacked index either: until the log has it on disk, the message is not settled.

use lepus_shards::TxName;
use rustc_hash::FxHashMap;

/// A message's name in the log, and the queue.
type Settlement = (u64, u64);

/// What has happened of a settlement, while the other thing has not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    /// The log has made it.
    Made,
    /// Nothing: the transaction's outcome is not known.
    Prepared,
    /// The queue has let go of the message, and the outcome is not known.
    LetGo,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct OwnSettlements {
    halves: FxHashMap<Settlement, Half>,
    prepared: FxHashMap<TxName, Vec<Settlement>>,
}

impl OwnSettlements {
    /// The log makes these.
    pub fn made(&mut self, settlements: &[Settlement]) {
        self.halves.extend(settlements.iter().map(|settlement| (*settlement, Half::Made)));
    }

    /// The log makes these if the transaction is committed.
    pub fn prepared(&mut self, name: TxName, settlements: Vec<Settlement>) {
        self.halves.extend(settlements.iter().map(|settlement| (*settlement, Half::Prepared)));
        if !settlements.is_empty() {
            self.prepared.insert(name, settlements);
        }
    }

    /// The queue has let go of the message. True if that is all there is to do.
    #[inline]
    pub fn takes(&mut self, settlement: Settlement) -> bool {
        !self.halves.is_empty() && self.takes_noted(settlement)
    }

    #[cold]
    fn takes_noted(&mut self, settlement: Settlement) -> bool {
        match self.halves.get_mut(&settlement) {
            None => return false,
            Some(half @ Half::Prepared) => *half = Half::LetGo,
            Some(half) => {
                assert_eq!(*half, Half::Made, "a queue lets go of a message once");
                self.halves.remove(&settlement);
            }
        }
        true
    }

    /// The transaction has its outcome. Gives what is left to be settled: messages that their queues have let
    /// go of, and the log does not settle.
    pub fn resolved(&mut self, name: TxName, committed: bool) -> Vec<Settlement> {
        let mut left = self.prepared.remove(&name).unwrap_or_default();
        left.retain(|settlement| match self.halves.remove(settlement) {
            Some(Half::LetGo) => !committed,
            _ if committed => {
                self.halves.insert(*settlement, Half::Made);
                false
            }
            _ => false,
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_said_to_the_log_once_whatever_comes_first() {
        let (mut own, name) = (OwnSettlements::default(), TxName(1));
        assert!(!own.takes((7, 1)), "nobody else's");
        own.made(&[(1, 1)]);
        assert!(!own.takes((1, 2)) && own.takes((1, 1)));
        assert!(own.halves.is_empty());

        own.prepared(name, vec![(2, 1), (3, 1)]);
        assert!(own.takes((2, 1)));
        assert_eq!(own.resolved(name, true), []);
        assert!(!own.takes((2, 1)) && own.takes((3, 1)));
        assert!(own.halves.is_empty() && own.prepared.is_empty());

        own.prepared(name, vec![(4, 1), (5, 1)]);
        assert!(own.takes((4, 1)));
        assert_eq!(own.resolved(name, false), [(4, 1)], "the log has not settled it");
        assert!(!own.takes((5, 1)));
        assert!(own.halves.is_empty() && own.prepared.is_empty());
    }
}
