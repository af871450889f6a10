//! Slots with stable numbers, in pieces: however many there are, taking one more moves none of them, and the
//! memory of pieces that have emptied goes back. A single vector of millions would be moved as a whole when
//! it grows, which takes hundreds of milliseconds, and would keep its size for good.

use std::ops::{Index, IndexMut};

use slab::Slab;

/// Slots of a piece.
const PIECE: usize = 1 << PIECE_BITS;
const PIECE_BITS: u32 = 10;

/// See the module.
pub(super) struct Slots<T> {
    /// Each has room for [`PIECE`], or none if it is empty.
    pieces: Vec<Slab<T>>,
    /// Pieces that are not full, each once; the last one takes what comes next.
    open: Vec<u32>,
    /// The piece that emptied last keeps its memory: few messages, or one at a time, use it again and again.
    emptied: Option<u32>,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { pieces: Vec::new(), open: Vec::new(), emptied: None, len: 0 }
    }
}

fn split(number: u32) -> (usize, usize) {
    ((number >> PIECE_BITS) as usize, number as usize % PIECE)
}

impl<T> Slots<T> {
    /// Slots that are taken.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Takes a slot; gives its number.
    ///
    /// # Panics
    /// Beyond 2^32 slots.
    pub fn insert(&mut self, value: T) -> u32 {
        let at = match self.open.last() {
            Some(&at) => at,
            None => self.open_another(),
        };
        let piece = &mut self.pieces[at as usize];
        if piece.capacity() == 0 {
            piece.reserve_exact(PIECE);
        }
        let slot = piece.insert(value);
        if piece.len() == PIECE {
            self.open.pop();
        }
        self.len += 1;
        (at << PIECE_BITS) | slot as u32
    }

    #[cold]
    fn open_another(&mut self) -> u32 {
        let at = self.pieces.len();
        assert!(at < 1 << (u32::BITS - PIECE_BITS), "fewer than 2^32 messages fit in memory");
        self.pieces.push(Slab::new());
        self.open.push(at as u32);
        at as u32
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// When it is not taken.
    pub fn remove(&mut self, number: u32) -> T {
        let (at, slot) = split(number);
        let piece = &mut self.pieces[at];
        let value = piece.remove(slot);
        self.len -= 1;
        if piece.len() + 1 == PIECE {
            self.open.push(at as u32);
        } else if piece.is_empty() {
            self.note_emptied(at as u32);
        }
        value
    }

    fn note_emptied(&mut self, at: u32) {
        let former = self.emptied.replace(at).filter(|&former| former != at);
        if let Some(former) = former.map(|former| &mut self.pieces[former as usize])
            && former.is_empty()
        {
            *former = Slab::new();
        }
    }

    /// What is in a slot, if it is taken.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (at, slot) = split(number);
        self.pieces.get_mut(at)?.get_mut(slot)
    }

    /// What is in all slots that are taken.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flat_map(|piece| piece.iter().map(|(_, value)| value))
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        let (at, slot) = split(number);
        &self.pieces[at][slot]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        let (at, slot) = split(number);
        &mut self.pieces[at][slot]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Each step inserts so many, or removes so many, from a place in between.
        #[test]
        fn slots_are_those_of_a_map(steps in prop::collection::vec((any::<bool>(), 1..1_500usize, any::<usize>()), 1..20)) {
            let (mut slots, mut model, mut count) = (Slots::default(), HashMap::new(), 0u64);
            let mut order = Vec::new();
            for (inserts, many, from) in steps {
                for _ in 0..many {
                    if inserts {
                        let number = slots.insert(count);
                        prop_assert_eq!(model.insert(number, count), None, "a number is given once");
                        order.push(number);
                        count += 1;
                    } else if !order.is_empty() {
                        let number = order.remove(from % order.len());
                        prop_assert_eq!(Some(slots.remove(number)), model.remove(&number));
                        prop_assert!(slots.get_mut(number).is_none());
                    }
                }
                prop_assert_eq!(slots.len(), model.len());
                prop_assert_eq!(slots.iter().count(), model.len());
                for (&number, &value) in &model {
                    prop_assert_eq!(slots[number], value);
                }
            }
        }
    }

    #[test]
    fn what_was_taken_by_millions_is_given_back_but_for_a_piece() {
        let mut slots = Slots::default();
        let numbers: Vec<u32> = (0..1_000_000u64).map(|value| slots.insert(value)).collect();
        for number in numbers {
            slots.remove(number);
        }
        let room: usize = slots.pieces.iter().map(Slab::capacity).sum();
        assert!(room <= PIECE, "{room}");
        // One message at a time uses the same piece again and again.
        let number = slots.insert(1);
        slots.remove(number);
        assert_eq!(slots.pieces.iter().map(Slab::capacity).sum::<usize>(), PIECE);
    }
}
