//! Numbered places for values that are many: a slab that grows without moving what is in it.
//!
//! A vector of a million messages that doubles has to copy all of them into memory that the kernel clears first:
//! a tenth of a second in which the shard does nothing else. Here places are made a chunk at a time, and stay where
//! they are.

#![forbid(unsafe_code)]

use std::ops::{Index, IndexMut};

/// Places of a chunk: some hundred KiB.
const CHUNK: usize = 4096;

#[derive(Debug)]
enum Slot<T> {
    Full(T),
    /// Names the next free one; [`NONE`] is the last.
    Free(u32),
}

const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct Slots<T> {
    /// All full but for the last.
    chunks: Vec<Vec<Slot<T>>>,
    free: u32,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { chunks: Vec::new(), free: NONE, len: 0 }
    }
}

impl<T> Slots<T> {
    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes a value in and gives its number, which was used last before if it was used at all.
    ///
    /// # Panics
    /// Beyond 2^32 values.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if self.free == NONE {
            return self.push(value);
        }
        let number = self.free;
        let slot = self.slot_mut(number).expect("the free ones are there");
        let Slot::Free(next) = std::mem::replace(slot, Slot::Full(value)) else {
            unreachable!("a free one is not full")
        };
        self.free = next;
        number
    }

    fn push(&mut self, value: T) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let at = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("it was just looked at");
        chunk.push(Slot::Full(value));
        let number = u32::try_from(at + chunk.len() - 1).ok().filter(|number| *number != NONE);
        number.expect("fewer than 2^32 values fit in memory")
    }

    /// Takes a value out.
    ///
    /// # Panics
    /// When there is none of this number.
    #[inline]
    pub fn remove(&mut self, number: u32) -> T {
        let free = self.free;
        match self.slot_mut(number).map(|slot| std::mem::replace(slot, Slot::Free(free))) {
            Some(Slot::Full(value)) => {
                self.free = number;
                self.len -= 1;
                value
            }
            _ => panic!("there is no value {number}"),
        }
    }

    /// A value, if there is one of this number.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slot_mut(number)? {
            Slot::Full(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().filter_map(|slot| match slot {
            Slot::Full(value) => Some(value),
            Slot::Free(_) => None,
        })
    }

    #[inline]
    fn slot_mut(&mut self, number: u32) -> Option<&mut Slot<T>> {
        self.chunks.get_mut(number as usize / CHUNK)?.get_mut(number as usize % CHUNK)
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        match &self.chunks[number as usize / CHUNK][number as usize % CHUNK] {
            Slot::Full(value) => value,
            Slot::Free(_) => panic!("there is no value {number}"),
        }
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        match &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK] {
            Slot::Full(value) => value,
            Slot::Free(_) => panic!("there is no value {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn values_are_where_they_were_put(steps in prop::collection::vec(prop::option::of(any::<u16>()), 0..200)) {
            let (mut slots, mut model) = (Slots::default(), HashMap::new());
            for (value, step) in steps.into_iter().enumerate() {
                match step {
                    Some(pick) if !model.is_empty() => {
                        let mut numbers: Vec<u32> = model.keys().copied().collect();
                        numbers.sort_unstable();
                        let number = numbers[usize::from(pick) % numbers.len()];
                        prop_assert_eq!(Some(slots.remove(number)), model.remove(&number));
                        prop_assert_eq!(slots.get_mut(number), None);
                    }
                    _ => prop_assert_eq!(model.insert(slots.insert(value), value), None),
                }
                prop_assert_eq!(slots.len(), model.len());
            }
            prop_assert_eq!(slots.iter().count(), model.len());
            prop_assert!(model.iter().all(|(&number, value)| slots[number] == *value));
        }
    }

    #[test]
    fn what_is_there_does_not_move_when_more_comes() {
        let mut slots = Slots::default();
        let first = slots.insert(7u64);
        let place: *const u64 = &slots[first];
        let numbers: Vec<u32> = (0..3 * CHUNK as u64).map(|value| slots.insert(value)).collect();
        assert!(std::ptr::eq(place, &slots[first]));
        assert!(numbers.iter().zip(0..).all(|(&number, value)| slots[number] == value));
        // What was given back is used again before there is more.
        slots.remove(numbers[5]);
        assert_eq!(slots.insert(9), numbers[5]);
    }
}
