//! What a log that was read says of transactions that have not ended, and how they end.
//!
//! A start reads all logs before it goes on in any. Then [`outcomes`] says of each transaction that a log has
//! prepared and not resolved whether it is committed. That is resolved, and the resolutions are on stable
//! storage, before any decision is forgotten: if the start breaks off, the next one comes to the same.

use rustc_hash::{FxHashMap, FxHashSet};

use super::directory::Located;
use super::format::Sequence;
use super::recovery::Recovered;
use super::shard_log::{QueueList, Settlement};
use super::tx_name::TxName;

/// A group whose transaction has not ended.
#[derive(Debug)]
pub(super) struct FoundGroup {
    pub first: Sequence,
    /// Its messages are among so many sequences from there.
    pub messages: u64,
    pub settlements: Vec<Settlement>,
    pub segment: u64,
}

/// See the module. None of it counts among what is live.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    pub groups: FxHashMap<TxName, Vec<FoundGroup>>,
    /// Messages of the groups.
    pub messages: FxHashMap<Sequence, (Located, QueueList)>,
    /// Decisions that are not forgotten, and their segments.
    pub decisions: FxHashMap<TxName, u64>,
    /// Decisions that the log that goes on is to forget.
    pub forgotten: Vec<TxName>,
    /// The group that is being read, and how many of its records are to come.
    open: Option<(TxName, u32)>,
}

impl Undecided {
    /// A group begins here. The copy that was read before, if there is one, is given up.
    pub fn begin(&mut self, tx: TxName, first: Sequence, records: u32, segment: u64) {
        let groups = self.groups.entry(tx).or_default();
        groups.retain(|group| group.first != first);
        groups.push(FoundGroup { first, messages: 0, settlements: Vec::new(), segment });
        self.open = Some((tx, records)).filter(|_| records > 0);
    }

    /// The group that the next message or settlements belong to.
    fn next(&mut self) -> Option<&mut FoundGroup> {
        let (tx, records) = self.open?;
        self.open = (records > 1).then_some((tx, records - 1));
        self.groups.get_mut(&tx)?.last_mut()
    }

    /// Takes a message if it is prepared. One that is not is no other group's any more.
    pub fn takes_message(
        &mut self,
        sequence: Sequence,
        located: Located,
        queues: impl FnOnce() -> QueueList,
    ) -> bool {
        let Some(group) = self.next() else {
            if !self.messages.is_empty() {
                self.messages.remove(&sequence);
            }
            return false;
        };
        group.messages = group.messages.max(sequence.saturating_sub(group.first) + 1);
        self.messages.insert(sequence, (located, queues()));
        true
    }

    /// Takes settlements if they are prepared. Those that are not may be of a prepared message, when a resolution
    /// that was not on stable storage was lost and what came behind it was not.
    pub fn takes_settled(&mut self, settled: &[Settlement]) -> bool {
        if let Some(group) = self.next() {
            group.settlements.extend_from_slice(settled);
            return true;
        }
        if self.messages.is_empty() {
            return false;
        }
        for (sequence, queue) in settled {
            if let Some((_, queues)) = self.messages.get_mut(sequence) {
                queues.retain(|other| other != queue);
                if queues.is_empty() {
                    self.messages.remove(sequence);
                }
            }
        }
        false
    }

    /// A transaction has ended here: its messages and settlements.
    pub fn end(&mut self, tx: TxName) -> (Vec<(Sequence, Located, QueueList)>, Vec<Settlement>) {
        let (mut messages, mut settlements) = (Vec::new(), Vec::new());
        for group in self.groups.remove(&tx).unwrap_or_default() {
            for sequence in group.first..group.first.saturating_add(group.messages) {
                let message = self.messages.remove(&sequence);
                messages.extend(message.map(|(located, queues)| (sequence, located, queues)));
            }
            settlements.extend(group.settlements);
        }
        (messages, settlements)
    }

    /// Segments that must be kept for a group or a decision, once for each.
    pub fn segments(&self) -> impl Iterator<Item = u64> + '_ {
        let groups = self.groups.values().flatten().map(|group| group.segment);
        groups.chain(self.decisions.values().copied())
    }
}

impl Recovered {
    /// Transactions that are prepared here and not resolved.
    pub fn undecided(&self) -> impl Iterator<Item = TxName> + '_ {
        self.undecided.groups.keys().copied()
    }

    /// Transactions that this log decided to commit, and may have to say so.
    pub fn decisions(&self) -> impl Iterator<Item = TxName> + '_ {
        self.undecided.decisions.keys().copied()
    }

    /// Nobody will ask for the decisions that were found: no log has anything of them that is not resolved on
    /// stable storage.
    pub fn forget_decisions(&mut self) {
        let decisions = std::mem::take(&mut self.undecided.decisions);
        for segment in decisions.values() {
            let at = self.segments.partition_point(|found| found.segment < *segment);
            self.segments[at].live -= 1;
        }
        self.undecided.forgotten.extend(decisions.into_keys());
    }
}

/// How the transactions end that these logs have prepared and not resolved, for each log in turn: those that
/// some log has decided to commit are committed, and the others rolled back. The logs are all that there are,
/// those of shards that are no more included.
pub fn outcomes(logs: &[&Recovered]) -> Vec<Vec<(TxName, bool)>> {
    let decided: FxHashSet<TxName> = logs.iter().flat_map(|log| log.decisions()).collect();
    let outcomes_of = |log: &&Recovered| {
        let mut outcomes: Vec<_> = log.undecided().map(|tx| (tx, decided.contains(&tx))).collect();
        outcomes.sort_unstable();
        outcomes
    };
    logs.iter().map(outcomes_of).collect()
}
