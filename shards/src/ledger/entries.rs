//! A queue's entries in publication order, its cursor, and the state of each message.
//!
//! Runs on the queue's owner. Positions are dense; entries stand in blocks, and a block is given back
//! when nothing in it is live, so one message that stays unacked for an hour does not keep the entries
//! of everything settled behind it. Nothing here ever scans: each operation costs the entries it
//! touches.
//!
//! Invariants: `ready + unacked = published − settled − dropped`; the cursor only grows; what lies
//! before it and is ready is in `requeued`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::shard::Verdict;

/// Entries in a block: one KiB.
const BLOCK_ENTRIES: usize = 64;

/// A message's place in its queue: counts up from 0 for as long as the queue exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Position(pub u64);

impl Position {
    fn block(self) -> u64 {
        self.0 / BLOCK_ENTRIES as u64
    }

    fn index(self) -> usize {
        (self.0 % BLOCK_ENTRIES as u64) as usize
    }
}

/// What a claimant saw of a queue: the owner's epoch and the count of claims and requeues so far.
/// Opaque to claimants; equal cursors mean that the same message would be taken next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The epoch of the owner that the claimant saw; a former owner's claims are refused by it.
    pub epoch: u32,
    /// Moves with each change of what is next.
    pub version: u64,
}

/// A claim was refused because the queue has moved; here is where it is now. Nothing was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleClaim {
    /// The cursor to claim with next.
    pub current: Cursor,
}

/// Who holds an unacked message: a consumer's slot on the owner, or nobody in particular (a get).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder(pub u32);

impl Holder {
    /// Taken by a get: no consumer's prefetch counts it.
    pub const GET: Holder = Holder(u32::MAX);
}

/// A message that was just claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Its place in the queue.
    pub position: Position,
    /// Its key in the shard's message store.
    pub message: u32,
    /// It was delivered before.
    pub redelivered: bool,
}

/// What a settlement did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    /// Who held it.
    pub holder: Holder,
    /// The message, if the queue let go of it; none if it is ready again.
    pub released: Option<u32>,
    /// Its time to live ran out while it was held, and it was dropped rather than requeued.
    pub expired: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum State {
    Settled,
    Ready,
    Unacked,
}

/// One message in one queue.
#[derive(Clone, Copy, Debug)]
struct Entry {
    message: u32,
    holder: u32,
    /// Times that it was delivered and came back.
    returns: u32,
    /// Those of `returns` that count against a delivery limit.
    failures: u16,
    state: State,
    /// Its time to live ran out while it was unacked.
    expired: bool,
}

const VACANT: Entry =
    Entry { message: 0, holder: 0, returns: 0, failures: 0, state: State::Settled, expired: false };
const _: () = assert!(size_of::<Entry>() == 16, "a waiting message costs 16 bytes of entry");

struct Block {
    /// Entries that are ready or unacked.
    live: u32,
    entries: [Entry; BLOCK_ENTRIES],
}

/// The ledger of one queue.
#[derive(Default)]
pub struct Entries {
    epoch: u32,
    version: u64,
    /// Number of the block at the front of `blocks`.
    first_block: u64,
    blocks: VecDeque<Option<Box<Block>>>,
    /// The first position that was never claimed.
    cursor: u64,
    /// The position that the next message gets.
    end: u64,
    /// Positions before the cursor that are ready again. May name some that have been dropped since.
    requeued: BinaryHeap<Reverse<u64>>,
    ready: u64,
    unacked: u64,
    settled: u64,
    dropped: u64,
}

impl Entries {
    /// An empty ledger of an owner with this epoch.
    pub fn new(epoch: u32) -> Entries {
        Entries { epoch, ..Entries::default() }
    }

    /// Messages that can be claimed.
    pub fn ready(&self) -> u64 {
        self.ready
    }

    /// Messages that are claimed and not settled.
    pub fn unacked(&self) -> u64 {
        self.unacked
    }

    /// Messages that ever entered.
    pub fn published(&self) -> u64 {
        self.end
    }

    /// What a claim must name.
    pub fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, version: self.version }
    }

    /// Enters a message behind all others.
    pub fn push(&mut self, message: u32) -> Position {
        let position = Position(self.end);
        self.end += 1;
        let block = self.block_for(position);
        block.live += 1;
        block.entries[position.index()] = Entry { message, state: State::Ready, ..VACANT };
        self.ready += 1;
        position
    }

    /// Enters a message that a former owner had, behind all others; it has come back this often.
    pub fn restore(&mut self, message: u32, returns: u32) -> Position {
        let position = self.push(message);
        self.entry_mut(position).expect("it was just entered").returns = returns;
        position
    }

    /// A message that a consumer takes and settles as it arrives: it is counted and leaves no entry.
    ///
    /// # Panics
    /// When messages are ready: this one would overtake them.
    pub fn pass_through(&mut self) {
        assert_eq!(self.ready, 0, "a message must not overtake ready ones");
        self.end += 1;
        self.cursor = self.end;
        self.version += 1;
        self.settled += 1;
    }

    /// Takes the first ready message for `holder`, if `expected` is still the cursor.
    ///
    /// # Errors
    /// [`StaleClaim`] when the queue has moved, or has another owner; nothing is taken.
    pub fn claim(&mut self, expected: Cursor, holder: Holder) -> Result<Option<Claim>, StaleClaim> {
        if expected != self.cursor() {
            return Err(StaleClaim { current: self.cursor() });
        }
        let Some(position) = self.next_ready() else { return Ok(None) };
        self.version += 1;
        self.ready -= 1;
        self.unacked += 1;
        let entry = self.entry_mut(position).expect("a ready position has an entry");
        debug_assert_eq!(entry.state, State::Ready);
        entry.state = State::Unacked;
        entry.holder = holder.0;
        let claim = Claim { position, message: entry.message, redelivered: entry.returns > 0 };
        if position.0 >= self.cursor {
            self.cursor = position.0 + 1;
        } else {
            self.requeued.pop();
        }
        Ok(Some(claim))
    }

    /// Ends a claim. None when nothing is unacked there (a queue was purged of it, or the claim was
    /// ended before): settling twice changes nothing.
    pub fn settle(&mut self, position: Position, verdict: Verdict) -> Option<Settled> {
        let before_cursor = position.0 < self.cursor;
        let entry = self.entry_mut(position)?;
        if entry.state != State::Unacked {
            return None;
        }
        debug_assert!(before_cursor, "a claimed position lies before the cursor");
        let holder = Holder(entry.holder);
        let message = entry.message;
        let requeue = matches!(verdict, Verdict::Requeue | Verdict::Fail);
        let expired = entry.expired && requeue;
        if requeue && !expired {
            entry.state = State::Ready;
            entry.returns = entry.returns.saturating_add(1);
            entry.failures = entry.failures.saturating_add(u16::from(verdict == Verdict::Fail));
            self.requeued.push(Reverse(position.0));
            self.unacked -= 1;
            self.ready += 1;
            self.version += 1;
            return Some(Settled { holder, released: None, expired: false });
        }
        self.vacate(position);
        self.unacked -= 1;
        if verdict == Verdict::Accept {
            self.settled += 1
        } else {
            self.dropped += 1
        }
        Some(Settled { holder, released: Some(message), expired })
    }

    /// How often the message at `position` has come back, and how often because its consumer failed.
    pub fn returns(&self, position: Position) -> (u32, u16) {
        self.entry(position).map_or((0, 0), |entry| (entry.returns, entry.failures))
    }

    /// The message at `position`, if it is ready or unacked.
    pub fn message_at(&self, position: Position) -> Option<u32> {
        self.entry(position).filter(|entry| entry.state != State::Settled).map(|entry| entry.message)
    }

    /// The message at `position` is ready or unacked.
    pub fn is_live(&self, position: Position) -> bool {
        self.message_at(position).is_some()
    }

    /// Every ready message, by a full count.
    pub fn ready_messages(&self) -> impl Iterator<Item = u32> {
        let entries = self.blocks.iter().flatten().flat_map(|block| block.entries.iter());
        entries.filter(|entry| entry.state == State::Ready).map(|entry| entry.message)
    }

    /// The time to live of the message at `position` has run out. Gives the message if it was ready
    /// and is dropped now; one that is unacked is dropped if it should come back.
    pub fn expire(&mut self, position: Position) -> Option<u32> {
        let entry = self.entry_mut(position)?;
        match entry.state {
            State::Settled => None,
            State::Unacked => {
                entry.expired = true;
                None
            }
            State::Ready => {
                let message = entry.message;
                self.vacate(position);
                self.ready -= 1;
                self.dropped += 1;
                self.version += 1;
                Some(message)
            }
        }
    }

    /// Drops ready messages, at most `most`, first ones first, and gives each to `released`. Returns
    /// how many. The unacked stay.
    pub fn drop_ready(&mut self, most: u64, mut released: impl FnMut(u32)) -> u64 {
        let mut count = 0;
        while count < most {
            let Some(position) = self.next_ready() else { break };
            if position.0 >= self.cursor {
                self.cursor = position.0 + 1;
            } else {
                self.requeued.pop();
            }
            let entry = self.entry_mut(position).expect("a ready position has an entry");
            released(entry.message);
            self.vacate(position);
            self.ready -= 1;
            self.dropped += 1;
            self.version += 1;
            count += 1;
        }
        count
    }

    /// Drops everything that is left, claimed or not, at most `most` blocks at a time; for a queue that
    /// is gone. True when nothing remains.
    pub fn demolish(&mut self, most: usize, mut released: impl FnMut(u32)) -> bool {
        for _ in 0..most {
            let Some(block) = self.blocks.pop_front() else { break };
            self.first_block += 1;
            let Some(block) = block else { continue };
            for entry in &block.entries {
                if entry.state != State::Settled {
                    released(entry.message);
                }
            }
        }
        self.blocks.is_empty()
    }

    /// Moves all ready messages that were never claimed, whole blocks at a time, into a ledger of
    /// their own, so that dropping millions can go in slices; returns it with the count. What shares a
    /// block with other messages, and what was requeued, is dropped at once through `released`.
    pub fn split_ready(&mut self, mut released: impl FnMut(u32)) -> (Entries, u64) {
        let total = self.ready;
        let mut rest = Entries::new(self.epoch);
        // Up to the end of the cursor's block, and all requeued ones: few, or claimed before.
        while let Some(position) = self.next_ready() {
            if position.0 >= self.cursor && position.index() == 0 {
                break;
            }
            self.drop_ready(1, &mut released);
        }
        if self.ready > 0 {
            let first = self.next_ready().expect("some are ready").block();
            let keep = (first - self.first_block) as usize;
            let moved = self.blocks.split_off(keep);
            rest.first_block = first;
            rest.blocks = moved;
            rest.end = self.end;
            rest.cursor = first * BLOCK_ENTRIES as u64;
            rest.ready = self.ready;
            self.dropped += self.ready;
            self.ready = 0;
            self.cursor = self.end;
            self.version += 1;
        }
        (rest, total)
    }

    /// Counts every entry, for checks: (ready, unacked) as the states say.
    pub fn full_count(&self) -> (u64, u64) {
        let states = |wanted: State| {
            let blocks = self.blocks.iter().flatten();
            blocks.flat_map(|block| block.entries.iter()).filter(|entry| entry.state == wanted).count() as u64
        };
        (states(State::Ready), states(State::Unacked))
    }

    /// Asserts the invariants that need a full count. For tests and the simulator.
    ///
    /// # Panics
    /// When a counter disagrees with the states.
    pub fn assert_consistent(&self) {
        let (ready, unacked) = self.full_count();
        assert_eq!((ready, unacked), (self.ready, self.unacked), "counters against states");
        assert_eq!(ready + unacked, self.end - self.settled - self.dropped, "published − settled − dropped");
        for block in self.blocks.iter().flatten() {
            let live = block.entries.iter().filter(|entry| entry.state != State::Settled).count();
            assert_eq!(live, block.live as usize, "live entries of a block");
        }
    }

    /// The first ready position: the lowest requeued one, else the first at or behind the cursor.
    /// Moves past what was dropped; takes nothing.
    fn next_ready(&mut self) -> Option<Position> {
        if self.ready == 0 {
            self.requeued.clear();
            return None;
        }
        while let Some(&Reverse(position)) = self.requeued.peek() {
            if self.entry_mut(Position(position)).is_some_and(|entry| entry.state == State::Ready) {
                return Some(Position(position));
            }
            self.requeued.pop();
        }
        let mut position = Position(self.cursor);
        loop {
            assert!(position.0 < self.end, "a ready message lies before the end");
            match self.entry_mut(position) {
                Some(entry) if entry.state == State::Ready => break,
                Some(_) => position.0 += 1,
                // The whole block is gone.
                None => position.0 = (position.block() + 1) * BLOCK_ENTRIES as u64,
            }
        }
        self.cursor = position.0;
        Some(position)
    }

    fn entry(&self, position: Position) -> Option<&Entry> {
        let index = position.block().checked_sub(self.first_block)?;
        let block = self.blocks.get(usize::try_from(index).ok()?)?.as_ref()?;
        Some(&block.entries[position.index()])
    }

    fn entry_mut(&mut self, position: Position) -> Option<&mut Entry> {
        let index = position.block().checked_sub(self.first_block)?;
        let block = self.blocks.get_mut(usize::try_from(index).ok()?)?.as_mut()?;
        Some(&mut block.entries[position.index()])
    }

    fn block_for(&mut self, position: Position) -> &mut Block {
        let last = self.first_block + self.blocks.len() as u64;
        if last <= position.block()
            && self.blocks.back().is_some_and(|b| b.as_ref().is_some_and(|b| b.live == 0))
        {
            // The block that was kept for more messages has none left and gets no more.
            self.blocks.pop_back();
            self.trim();
        }
        if self.blocks.is_empty() {
            self.first_block = position.block();
        }
        let index = (position.block() - self.first_block) as usize;
        // Messages that passed through left whole blocks of positions without entries.
        while self.blocks.len() <= index {
            self.blocks.push_back(None);
        }
        self.blocks[index]
            // One allocation for 64 messages.
            .get_or_insert_with(|| Box::new(Block { live: 0, entries: [VACANT; BLOCK_ENTRIES] }))
    }

    /// Marks the entry settled and gives its block back if that was the last live one in it. The
    /// block that the next message goes to is kept.
    fn vacate(&mut self, position: Position) {
        let next = Position(self.end).block();
        let index = (position.block() - self.first_block) as usize;
        let slot = &mut self.blocks[index];
        let block = slot.as_mut().expect("a live entry has a block");
        block.entries[position.index()].state = State::Settled;
        block.live -= 1;
        if block.live == 0 && position.block() != next {
            *slot = None;
            self.trim();
        }
    }

    fn trim(&mut self) {
        while let Some(None) = self.blocks.front() {
            self.blocks.pop_front();
            self.first_block += 1;
        }
    }
}

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
