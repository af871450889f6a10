//! A channel's unacked deliveries, by delivery tag.
//!
//! Runs on the home shard of the channel. Tags count up, so the deliveries stand in a ring in the
//! order of their tags; one acked out of order leaves a hole, and holes are squeezed out when they
//! outnumber what is held. `multiple` costs what it settles.

use std::collections::VecDeque;

use super::Position;
use crate::{DeliveryTag, QueueId};

/// An unacked delivery: the queue and the entry there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The queue it came from.
    pub queue: QueueId,
    /// Its place there.
    pub position: Position,
    /// It counts against the channel's own prefetch (a consumer got it, not a get).
    pub counted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u64,
    held: Option<Held>,
}

/// The ring of a channel.
#[derive(Default, Debug)]
pub struct Unacked {
    next_tag: u64,
    slots: VecDeque<Slot>,
    holes: usize,
}

impl Unacked {
    /// Deliveries that are unacked.
    pub fn len(&self) -> usize {
        self.slots.len() - self.holes
    }

    /// Nothing is unacked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tag for a delivery that is settled as it is made.
    pub fn skip(&mut self) -> DeliveryTag {
        self.next_tag += 1;
        DeliveryTag(self.next_tag)
    }

    /// Enters a delivery and gives it the channel's next tag.
    pub fn push(&mut self, held: Held) -> DeliveryTag {
        let tag = self.skip();
        self.slots.push_back(Slot { tag: tag.0, held: Some(held) });
        tag
    }

    /// Takes one delivery out; none if the tag is not unacked.
    pub fn take(&mut self, tag: DeliveryTag) -> Option<Held> {
        let index = self.find(tag.0)?;
        let held = self.slots[index].held.take()?;
        self.holes += 1;
        self.tidy();
        Some(held)
    }

    /// Takes out all up to and including `tag`, in order of tags; with tag 0, all there are. False,
    /// and nothing taken, if the tag is not unacked (with tag 0 there is no such thing).
    pub fn take_up_to(&mut self, tag: DeliveryTag, mut taken: impl FnMut(DeliveryTag, Held)) -> bool {
        if tag.0 != 0 && self.find(tag.0).is_none_or(|index| self.slots[index].held.is_none()) {
            return false;
        }
        while let Some(slot) = self.slots.front() {
            if tag.0 != 0 && slot.tag > tag.0 {
                break;
            }
            match slot.held {
                Some(held) => taken(DeliveryTag(slot.tag), held),
                None => self.holes -= 1,
            }
            self.slots.pop_front();
        }
        self.tidy();
        true
    }

    /// Puts back what was taken out, in the order of its tags, each under its own.
    pub fn put_back(&mut self, back: impl IntoIterator<Item = (DeliveryTag, Held)>) {
        let mut back = back.into_iter().map(|(tag, held)| Slot { tag: tag.0, held: Some(held) }).peekable();
        let mut slots = VecDeque::with_capacity(self.len() + back.size_hint().0);
        for slot in self.slots.drain(..).filter(|slot| slot.held.is_some()) {
            while let Some(earlier) = back.next_if(|earlier| earlier.tag < slot.tag) {
                slots.push_back(earlier);
            }
            slots.push_back(slot);
        }
        slots.extend(back);
        (self.slots, self.holes) = (slots, 0);
    }

    /// The tag that was given last.
    pub fn last_tag(&self) -> DeliveryTag {
        DeliveryTag(self.next_tag)
    }

    /// What is unacked, in the order of the tags.
    pub fn held(&self) -> impl Iterator<Item = (DeliveryTag, Held)> {
        self.slots.iter().filter_map(|slot| Some((DeliveryTag(slot.tag), slot.held?)))
    }

    /// How many count against the channel's own prefetch, by a full count. For tests and simulators.
    pub fn counted(&self) -> u32 {
        self.slots.iter().filter(|slot| slot.held.is_some_and(|held| held.counted)).count() as u32
    }

    fn find(&self, tag: u64) -> Option<usize> {
        let first = self.slots.front()?.tag;
        let guess = usize::try_from(tag.checked_sub(first)?).ok()?;
        if self.slots.get(guess).is_some_and(|slot| slot.tag == tag) {
            return Some(guess);
        }
        // Tags are missing in between: settled as they were delivered, or squeezed out.
        self.slots.binary_search_by_key(&tag, |slot| slot.tag).ok()
    }

    fn tidy(&mut self) {
        while let Some(Slot { held: None, .. }) = self.slots.front() {
            self.slots.pop_front();
            self.holes -= 1;
        }
        if self.holes > 32 && self.holes > self.slots.len() / 2 {
            self.slots.retain(|slot| slot.held.is_some());
            self.holes = 0;
        }
        if self.slots.is_empty() && self.slots.capacity() > 1024 {
            self.slots = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardId;
    use proptest::prelude::*;

    fn held(n: u64) -> Held {
        Held { queue: QueueId::new(ShardId(0), 0, 0), position: Position(n), counted: true }
    }

    #[test]
    fn tags_count_from_one_and_unknown_ones_are_told_apart() {
        let mut unacked = Unacked::default();
        assert_eq!(unacked.push(held(0)), DeliveryTag(1));
        assert_eq!(unacked.skip(), DeliveryTag(2));
        assert_eq!(unacked.push(held(1)), DeliveryTag(3));
        assert_eq!(unacked.take(DeliveryTag(2)), None, "settled as it was delivered");
        assert_eq!(unacked.take(DeliveryTag(4)), None, "not delivered yet");
        assert_eq!(unacked.take(DeliveryTag(3)), Some(held(1)));
        assert_eq!(unacked.take(DeliveryTag(3)), None, "settled before");
        assert!(unacked.take_up_to(DeliveryTag(0), |_, _| {}));
        assert!(unacked.take_up_to(DeliveryTag(0), |_, _| {}), "all of nothing is fine");
    }

    #[test]
    fn a_delivery_held_for_long_does_not_keep_the_slots_behind_it() {
        let mut unacked = Unacked::default();
        unacked.push(held(0));
        for n in 1..100_000 {
            let tag = unacked.push(held(n));
            assert!(unacked.take(tag).is_some());
        }
        assert!(unacked.slots.len() < 100);
        assert_eq!(unacked.len(), 1);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u8..6, any::<u64>()), 0..500)) {
            let mut unacked = Unacked::default();
            let mut map = std::collections::BTreeMap::new();
            let (mut next, mut out) = (0, std::collections::BTreeMap::new());
            for (step, n) in steps {
                match step {
                    0 | 1 => { next += 1; prop_assert_eq!(unacked.push(held(next)).0, next); map.insert(next, held(next)); }
                    2 => {
                        // Taken out for a while.
                        let tag = n % (next + 2);
                        let held = unacked.take(DeliveryTag(tag));
                        prop_assert_eq!(held, map.remove(&tag));
                        out.extend(held.map(|held| (tag, held)));
                    }
                    3 => {
                        let back = std::mem::take(&mut out);
                        unacked.put_back(back.iter().map(|(tag, held)| (DeliveryTag(*tag), *held)));
                        map.extend(back);
                    }
                    4 => { let tag = n % (next + 2); prop_assert_eq!(unacked.take(DeliveryTag(tag)), map.remove(&tag)); }
                    _ => {
                        let tag = n % (next + 2);
                        let mut got = Vec::new();
                        let known = unacked.take_up_to(DeliveryTag(tag), |tag, held| got.push((tag.0, held)));
                        prop_assert_eq!(known, tag == 0 || map.contains_key(&tag));
                        if known {
                            let rest = if tag == 0 { Default::default() } else { map.split_off(&(tag + 1)) };
                            prop_assert_eq!(got, std::mem::replace(&mut map, rest).into_iter().collect::<Vec<_>>());
                        }
                    }
                }
                prop_assert_eq!(unacked.len(), map.len());
            }
        }
    }
}
