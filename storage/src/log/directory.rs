//! Where each live message of a log is: sequence to place, eight bytes a message.
//!
//! Runs on the shard's thread. Sequences are dense within a start of the broker, so places stand in
//! chunks, in order; a chunk is given back when nothing in it is live. Nothing here knows of bodies: a
//! backlog costs its places, wherever it lies.

use std::collections::VecDeque;

use super::format::{Sequence, epoch_of};

/// Places in a chunk: one KiB, which allocators give without rounding up.
const CHUNK: usize = 128;

const SEGMENT_BITS: u32 = 20;
/// A segment's file may have 16 GiB.
const BLOCK_BITS: u32 = 22;
const SIZE_BITS: u32 = 18;
/// Sizes are counted in units of so many bytes; what is larger than the field holds counts as that much.
const SIZE_UNIT_BYTES: usize = 32;
const BUILDER_BITS: u32 = 27;

const SHARED: u64 = 1 << 2;
const SPILLED: u64 = 1 << 3;
const FLAGS: u32 = 4;
const IN_SEGMENT: u64 = 1;
const IN_BUILDER: u64 = 2;
const RELOCATED: u64 = 1 << FLAGS;

const _: () = assert!(FLAGS + SEGMENT_BITS + BLOCK_BITS + SIZE_BITS == u64::BITS);
const _: () = assert!(FLAGS + 1 + BUILDER_BITS + u32::BITS == u64::BITS);

/// Where a message's record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In a commit that has not begun.
    Builder {
        /// The builder's number, cut to its lower 27 bits.
        builder: u32,
        /// Where in its buffer.
        offset: u32,
        /// An older copy may be on disk.
        relocated: bool,
    },
    /// In a segment, on disk or on its way.
    Segment {
        /// The segment's number, cut to its lower 20 bits.
        segment: u32,
        /// The first block of its commit.
        block: u32,
        /// About the bytes of its record.
        bytes: u32,
    },
}

/// What is known of a live message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Located {
    pub place: Place,
    /// More than one queue has it, or had it.
    pub shared: bool,
    /// It is only here to be out of memory: it ends with the process.
    pub spilled: bool,
}

fn cut(number: u64, bits: u32) -> u64 {
    number & ((1 << bits) - 1)
}

/// A builder's number as places have it.
pub(super) fn short_builder(number: u64) -> u32 {
    cut(number, BUILDER_BITS) as u32
}

/// A segment's number as places have it.
pub(super) fn short_segment(number: u64) -> u32 {
    cut(number, SEGMENT_BITS) as u32
}

/// A record's size as places have it: equal for what is entered and what is taken out.
pub(super) fn counted_bytes(bytes: usize) -> u32 {
    let units = bytes.div_ceil(SIZE_UNIT_BYTES).min((1 << SIZE_BITS) - 1);
    (units * SIZE_UNIT_BYTES) as u32
}

impl Located {
    fn pack(self) -> u64 {
        let flags = if self.shared { SHARED } else { 0 } | if self.spilled { SPILLED } else { 0 };
        flags
            | match self.place {
                Place::Builder { builder, offset, relocated } => {
                    IN_BUILDER
                        | if relocated { RELOCATED } else { 0 }
                        | u64::from(builder) << (FLAGS + 1)
                        | u64::from(offset) << (FLAGS + 1 + BUILDER_BITS)
                }
                Place::Segment { segment, block, bytes } => {
                    let units = u64::from(bytes) / SIZE_UNIT_BYTES as u64;
                    IN_SEGMENT
                        | u64::from(segment) << FLAGS
                        | u64::from(block) << (FLAGS + SEGMENT_BITS)
                        | units << (FLAGS + SEGMENT_BITS + BLOCK_BITS)
                }
            }
    }

    fn unpack(slot: u64) -> Option<Located> {
        let place = match slot & 3 {
            IN_SEGMENT => Place::Segment {
                segment: cut(slot >> FLAGS, SEGMENT_BITS) as u32,
                block: cut(slot >> (FLAGS + SEGMENT_BITS), BLOCK_BITS) as u32,
                bytes: (slot >> (FLAGS + SEGMENT_BITS + BLOCK_BITS)) as u32 * SIZE_UNIT_BYTES as u32,
            },
            IN_BUILDER => Place::Builder {
                builder: cut(slot >> (FLAGS + 1), BUILDER_BITS) as u32,
                offset: (slot >> (FLAGS + 1 + BUILDER_BITS)) as u32,
                relocated: slot & RELOCATED != 0,
            },
            _ => return None,
        };
        Some(Located { place, shared: slot & SHARED != 0, spilled: slot & SPILLED != 0 })
    }
}

struct Chunk {
    /// Slots that are not 0. Not beside them, where it would make the allocation an odd one.
    live: u32,
    slots: Box<[u64; CHUNK]>,
}

/// The messages of one start of the broker.
struct Epoch {
    epoch: u32,
    /// Number of the first chunk: sequences divided by [`CHUNK`].
    first: u64,
    chunks: VecDeque<Option<Chunk>>,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("live", &self.live).finish_non_exhaustive()
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Directory {
    /// Oldest first; this start's is the last one. There are as many as starts with a message left.
    epochs: Vec<Epoch>,
    live: u64,
    /// Kept from one chunk that emptied to the next that is begun.
    spare: Option<Chunk>,
}

impl Directory {
    /// How many messages are live.
    pub fn len(&self) -> u64 {
        self.live
    }

    /// Gives where each live message is.
    pub fn each(&self, each: impl FnMut(Located)) {
        let chunks = self.epochs.iter().flat_map(|epoch| epoch.chunks.iter().flatten());
        chunks.flat_map(|chunk| chunk.slots.iter().filter_map(|&slot| Located::unpack(slot))).for_each(each);
    }

    /// Where a message is; none if it is not live.
    pub fn get(&self, sequence: Sequence) -> Option<Located> {
        let (chunk, at) = split(sequence);
        let epoch = self.epochs.iter().rev().find(|epoch| epoch.epoch == epoch_of(sequence))?;
        let index = usize::try_from(chunk.checked_sub(epoch.first)?).ok()?;
        Located::unpack(epoch.chunks.get(index)?.as_ref()?.slots[at])
    }

    /// Enters a message, or where it is now.
    pub fn set(&mut self, sequence: Sequence, located: Located) {
        let (number, at) = split(sequence);
        let epoch = self.epoch_for(epoch_of(sequence), number);
        let epoch = &mut self.epochs[epoch];
        while number < epoch.first {
            epoch.chunks.push_front(None);
            epoch.first -= 1;
        }
        let index = (number - epoch.first) as usize;
        while epoch.chunks.len() <= index {
            epoch.chunks.push_back(None);
        }
        let spare = &mut self.spare;
        let chunk = epoch.chunks[index].get_or_insert_with(|| {
            // One allocation for 128 messages, and mostly not even that.
            spare.take().unwrap_or_else(|| Chunk { live: 0, slots: Box::new([0; CHUNK]) })
        });
        if std::mem::replace(&mut chunk.slots[at], located.pack()) == 0 {
            chunk.live += 1;
            self.live += 1;
        }
    }

    /// Takes a message out; gives where it was.
    pub fn remove(&mut self, sequence: Sequence) -> Option<Located> {
        let (number, at) = split(sequence);
        let position = self.epochs.iter().rposition(|epoch| epoch.epoch == epoch_of(sequence))?;
        let epoch = &mut self.epochs[position];
        let index = usize::try_from(number.checked_sub(epoch.first)?).ok()?;
        let place = epoch.chunks.get_mut(index)?;
        let chunk = place.as_mut()?;
        let located = Located::unpack(std::mem::take(&mut chunk.slots[at]))?;
        chunk.live -= 1;
        self.live -= 1;
        if chunk.live == 0 {
            self.spare = place.take();
            while let Some(None) = epoch.chunks.front() {
                epoch.chunks.pop_front();
                epoch.first += 1;
            }
            if epoch.chunks.is_empty() && position + 1 < self.epochs.len() {
                self.epochs.remove(position);
            }
        }
        Some(located)
    }

    fn epoch_for(&mut self, epoch: u32, chunk: u64) -> usize {
        let at = self.epochs.partition_point(|other| other.epoch < epoch);
        match self.epochs.get_mut(at) {
            Some(found) if found.epoch == epoch => {
                if found.chunks.is_empty() {
                    found.first = chunk;
                }
            }
            _ => self.epochs.insert(at, Epoch { epoch, first: chunk, chunks: VecDeque::new() }),
        }
        at
    }
}

fn split(sequence: Sequence) -> (u64, usize) {
    (sequence / CHUNK as u64, (sequence % CHUNK as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::first_sequence;
    use proptest::prelude::*;

    fn located() -> impl Strategy<Value = Located> {
        let in_builder = (0u32..1 << BUILDER_BITS, any::<u32>(), any::<bool>())
            .prop_map(|(builder, offset, relocated)| Place::Builder { builder, offset, relocated });
        let in_segment = (0u32..1 << SEGMENT_BITS, 0u32..1 << BLOCK_BITS, 0usize..20_000_000).prop_map(
            |(segment, block, bytes)| Place::Segment { segment, block, bytes: counted_bytes(bytes) },
        );
        (prop_oneof![in_builder, in_segment], any::<bool>(), any::<bool>())
            .prop_map(|(place, shared, spilled)| Located { place, shared, spilled })
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u32..3, 1u64..2_000, prop::option::of(located())), 0..400)) {
            let mut directory = Directory::default();
            let mut map = std::collections::BTreeMap::new();
            for (epoch, count, step) in steps {
                let sequence = first_sequence(epoch + 1) + count;
                match step {
                    Some(located) => { directory.set(sequence, located); map.insert(sequence, located); }
                    None => prop_assert_eq!(directory.remove(sequence), map.remove(&sequence)),
                }
                prop_assert_eq!(directory.get(sequence), map.get(&sequence).copied());
                prop_assert_eq!(directory.len(), map.len() as u64);
            }
            for (sequence, located) in &map {
                prop_assert_eq!(directory.get(*sequence), Some(*located));
            }
        }
    }

    #[test]
    fn what_is_gone_leaves_no_chunk_but_a_spare_one() {
        let mut directory = Directory::default();
        let place = Place::Segment { segment: 1, block: 1, bytes: 64 };
        let located = Located { place, shared: false, spilled: false };
        let first = first_sequence(1);
        directory.set(first, located);
        for count in 1..100_000 {
            directory.set(first + count, located);
            directory.remove(first + count).unwrap();
        }
        assert!(directory.epochs[0].chunks.iter().flatten().count() <= 2);
        directory.remove(first).unwrap();
        assert!(directory.epochs[0].chunks.len() <= 1);
    }
}
