//! Where bindings that match alike are kept together: the destinations of one routing key, of one
//! topic pattern, or of a whole fanout exchange.
//!
//! Part of every replica. An entry's position is known to its binding, so that removing one costs
//! the same however many there are.

#![forbid(unsafe_code)]

use crate::QueueId;

/// An exchange's position in a replica, and in every other one of the same version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ExchangeIndex(pub(super) u32);

impl ExchangeIndex {
    /// As a number.
    pub fn position(self) -> usize {
        self.0 as usize
    }
}

/// A binding's position in its replica.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct BindingIndex(pub u32);

/// What a binding leads to, resolved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Destination {
    Queue(QueueId),
    Exchange(ExchangeIndex),
}

/// A binding's place in a routing table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub destination: Destination,
    pub binding: BindingIndex,
}

/// Entries without an order. The same destination can stand in it more than once.
#[derive(Clone, Default, Debug)]
pub(super) struct Bucket(Vec<Entry>);

impl Bucket {
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an entry and returns its position.
    pub fn add(&mut self, entry: Entry) -> u32 {
        self.0.push(entry);
        self.0.len() as u32 - 1
    }

    /// Removes the entry at `position`. Returns the binding that stands there now, if another one
    /// was moved into the gap.
    pub fn remove(&mut self, position: u32) -> Option<BindingIndex> {
        self.0.swap_remove(position as usize);
        self.0.get(position as usize).map(|moved| moved.binding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removing_names_the_entry_that_fills_the_gap() {
        let mut bucket = Bucket::default();
        for n in 0..3 {
            let entry =
                Entry { destination: Destination::Exchange(ExchangeIndex(n)), binding: BindingIndex(n) };
            assert_eq!(bucket.add(entry), n);
        }
        assert_eq!(bucket.remove(0), Some(BindingIndex(2)));
        assert_eq!(bucket.remove(1), None, "the last one leaves no gap");
        assert_eq!(bucket.entries()[0].binding, BindingIndex(2));
    }
}
