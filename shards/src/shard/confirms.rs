//! A channel's publisher confirms: in order of publishing, coalesced, whatever the order in which the
//! owners answer.
//!
//! Runs on the home shard of the channel.

use std::collections::VecDeque;

const REFUSED: u16 = 1 << 15;

/// Confirms that a channel owes its publisher.
#[derive(Debug)]
pub(super) struct Confirms {
    /// The publish that `owed` begins with; the first one of a channel has number 1.
    first: u64,
    /// For each publish that is not emitted: owners that have not answered, and whether one refused.
    owed: VecDeque<u16>,
    /// The channel stands in the shard's list.
    listed: bool,
}

impl Confirms {
    pub fn new() -> Confirms {
        Confirms { first: 1, owed: VecDeque::new(), listed: false }
    }

    /// The number that the next publish has.
    pub fn next(&self) -> u64 {
        self.first + self.owed.len() as u64
    }

    /// Enters a publish that this many owners answer for. True if it must be listed for emission.
    pub fn publish(&mut self, owners: usize) -> bool {
        let owners = u16::try_from(owners).ok().filter(|owners| owners & REFUSED == 0);
        self.owed.push_back(owners.expect("at most 1,024 shards"));
        self.front_is_resolved()
    }

    /// One owner has answered. True if the channel must be listed for emission.
    pub fn resolve(&mut self, number: u64, accepted: bool) -> bool {
        let index = number.checked_sub(self.first).expect("a confirm is resolved before it is emitted");
        let owed = &mut self.owed[index as usize];
        assert!(*owed & !REFUSED > 0, "no more answers than owners");
        *owed -= 1;
        if !accepted {
            *owed |= REFUSED;
        }
        self.front_is_resolved()
    }

    fn front_is_resolved(&mut self) -> bool {
        let resolved = self.owed.front().is_some_and(|owed| owed & !REFUSED == 0);
        if resolved && !self.listed {
            self.listed = true;
            return true;
        }
        false
    }

    /// Gives each run of resolved publishes, in order: first, last, and whether they were accepted.
    pub fn emit(&mut self, mut run: impl FnMut(u64, u64, bool)) {
        self.listed = false;
        while let Some(&front) = self.owed.front().filter(|owed| *owed & !REFUSED == 0) {
            let count = self.owed.iter().take_while(|&&owed| owed == front).count();
            let first = self.first;
            self.owed.drain(..count);
            self.first += count as u64;
            run(first, self.first - 1, front & REFUSED == 0);
        }
        if self.owed.is_empty() && self.owed.capacity() > 4096 {
            self.owed = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(confirms: &mut Confirms) -> Vec<(u64, u64, bool)> {
        let mut runs = Vec::new();
        confirms.emit(|first, last, accepted| runs.push((first, last, accepted)));
        runs
    }

    #[test]
    fn confirms_go_out_in_order_and_together() {
        let mut confirms = Confirms::new();
        assert!(!confirms.publish(1));
        assert!(!confirms.publish(2));
        assert!(!confirms.publish(0), "behind others it waits");
        assert!(!confirms.resolve(2, true));
        assert!(!confirms.resolve(2, true));
        assert!(emitted(&mut confirms).is_empty());
        assert!(confirms.resolve(1, true));
        assert_eq!(emitted(&mut confirms), [(1, 3, true)]);
        assert_eq!(confirms.next(), 4);
    }

    #[test]
    fn refused_ones_are_told_apart() {
        let mut confirms = Confirms::new();
        for _ in 0..4 {
            confirms.publish(1);
        }
        for (number, accepted) in [(1, true), (2, false), (3, false), (4, true)] {
            confirms.resolve(number, accepted);
        }
        assert_eq!(emitted(&mut confirms), [(1, 1, true), (2, 3, false), (4, 4, true)]);
    }

    #[test]
    fn one_refusal_among_owners_refuses() {
        let mut confirms = Confirms::new();
        confirms.publish(3);
        for accepted in [true, false, true] {
            confirms.resolve(1, accepted);
        }
        assert_eq!(emitted(&mut confirms), [(1, 1, false)]);
    }
}
