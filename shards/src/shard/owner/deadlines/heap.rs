//! A binary heap, least first, in pieces: however large it is, growing moves none of what it holds, and a
//! turn never pays for more than a path of it. The standard heap gives no access to a place in between, and
//! copies everything when it grows.

/// Values of a piece.
const PIECE: usize = 1 << PIECE_BITS;
const PIECE_BITS: u32 = 10;

/// See the module. A place is a number below [`Heap::len`]; what is at a place is not less than what is at
/// `(place - 1) / 2`.
pub(super) struct Heap<T> {
    /// All are full but the last; an empty one may follow, so that a length around a piece's end does not
    /// allocate again and again.
    pieces: Vec<Vec<T>>,
    len: usize,
}

impl<T: Copy + Ord> Heap<T> {
    pub fn new() -> Heap<T> {
        Heap { pieces: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that the pieces take.
    pub fn bytes(&self) -> usize {
        let first = self.pieces.first().map_or(0, Vec::capacity);
        (first + self.pieces.len().saturating_sub(1) * PIECE) * size_of::<T>()
    }

    /// What is at a place.
    ///
    /// # Panics
    /// Beyond the last place, as all that take one.
    pub fn at(&self, place: usize) -> T {
        self.pieces[place >> PIECE_BITS][place % PIECE]
    }

    fn put(&mut self, place: usize, value: T) {
        self.pieces[place >> PIECE_BITS][place % PIECE] = value;
    }

    /// The least.
    pub fn first(&self) -> Option<T> {
        (self.len > 0).then(|| self.at(0))
    }

    pub fn push(&mut self, value: T) {
        let (piece, place) = (self.len >> PIECE_BITS, self.len);
        if piece == self.pieces.len() {
            // The first one grows, so that a few values do not take a piece.
            self.pieces.push(Vec::with_capacity(if piece == 0 { 0 } else { PIECE }));
        }
        self.pieces[piece].push(value);
        self.len += 1;
        self.rise(place, value);
    }

    /// Takes the least out.
    pub fn pop(&mut self) -> Option<T> {
        (self.len > 0).then(|| self.remove(0))
    }

    /// Takes out what is at a place. Of the others, at most one moves from a place before it to this place
    /// or behind it, and that to this place.
    pub fn remove(&mut self, place: usize) -> T {
        let removed = self.at(place);
        let last = self.take_last();
        if place < self.len {
            match place > 0 && last < self.at((place - 1) / 2) {
                true => self.rise(place, last),
                false => self.sink(place, last),
            }
        }
        removed
    }

    fn take_last(&mut self) -> T {
        self.len -= 1;
        let piece = self.len >> PIECE_BITS;
        self.pieces.truncate(piece + 2);
        self.pieces[piece].pop().expect("pieces are full but for the last")
    }

    /// Puts a value at a place that is free for it, or at one on the way to the first.
    fn rise(&mut self, mut place: usize, value: T) {
        while place > 0 {
            let parent = (place - 1) / 2;
            let above = self.at(parent);
            if above <= value {
                break;
            }
            self.put(place, above);
            place = parent;
        }
        self.put(place, value);
    }

    /// Puts a value at a place that is free for it, or at one behind.
    fn sink(&mut self, mut place: usize, value: T) {
        loop {
            let left = 2 * place + 1;
            if left >= self.len {
                break;
            }
            let (mut child, mut least) = (left, self.at(left));
            if left + 1 < self.len && self.at(left + 1) < least {
                (child, least) = (left + 1, self.at(left + 1));
            }
            if value <= least {
                break;
            }
            self.put(place, least);
            place = child;
        }
        self.put(place, value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// So many, in rising order, falling order, or neither.
        Push(usize, u8),
        Pop(usize),
        /// So many from the middle, chosen by the number.
        Remove(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1..2 * PIECE, 0..3u8).prop_map(|(many, order)| Step::Push(many, order)),
            (1..2 * PIECE).prop_map(Step::Pop),
            (1..PIECE, any::<usize>()).prop_map(|(many, from)| Step::Remove(many, from)),
        ];
        prop::collection::vec(step, 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_least_comes_first_whatever_was_taken_from_the_middle(steps in steps()) {
            let (mut heap, mut model, mut count) = (Heap::new(), BTreeSet::new(), 0u64);
            for step in steps {
                match step {
                    Step::Push(many, order) => for _ in 0..many {
                        count += 1;
                        let key = match order {
                            0 => count,
                            1 => u64::MAX - count,
                            _ => count.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                        };
                        heap.push((key, count));
                        model.insert((key, count));
                    },
                    Step::Pop(many) => for _ in 0..many {
                        prop_assert_eq!(heap.pop(), model.pop_first());
                    },
                    Step::Remove(many, from) => for _ in 0..many {
                        if heap.len() > 0 {
                            let place = from % heap.len();
                            let before: Vec<_> = (0..place).map(|place| heap.at(place)).collect();
                            let removed = heap.remove(place);
                            prop_assert!(model.remove(&removed), "it was there, once");
                            let crossed = before.iter().filter(|value| !(0..place).any(|at| heap.at(at) == **value));
                            let crossed: Vec<_> = crossed.copied().collect();
                            prop_assert!(crossed.len() <= 1 && crossed.iter().all(|value| heap.at(place) == *value));
                            if place > 64 { break; } // The check above is quadratic.
                        }
                    },
                }
                prop_assert_eq!((heap.len(), heap.first()), (model.len(), model.first().copied()));
            }
            prop_assert_eq!(std::iter::from_fn(|| heap.pop()).collect::<Vec<_>>(), Vec::from_iter(model));
        }
    }

    #[test]
    fn what_millions_took_is_given_back_but_for_a_piece() {
        let mut heap = Heap::new();
        (0..1_000_000u64).for_each(|value| heap.push(value));
        assert!(heap.bytes() < 8 * (1_000_000 + 2 * PIECE));
        while heap.pop().is_some() {}
        assert!(heap.bytes() <= 2 * PIECE * 8, "{}", heap.bytes());
    }
}
