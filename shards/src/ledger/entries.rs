//! A queue's entries in publication order, its cursor, and the state of each message.
//!
//! Runs on the queue's owner. Positions are dense; entries stand in blocks, and a block is given back
//! when nothing in it is live, so one message that stays unacked for an hour does not keep the entries
//! of everything settled behind it. Nothing here ever scans: each operation costs the entries it
//! touches.
//!
//! A ready message is in memory, or *paged out*: then its entry has its name in the log, and nothing else
//! in memory knows of it. It is brought back before it is claimed.
//!
//! Invariants: `ready + unacked = published − settled − dropped`; the cursor only grows; what lies
//! before it and is ready is in `requeued`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::Returns;
use crate::shard::{LogSequence, Verdict};

/// Entries in a block: three quarters of a KiB, which allocators give without rounding up.
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

/// Where a message is that a queue has, or lets go of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// In the shard's message store, under this key.
    InMemory(u32),
    /// In the log, under this name.
    InLog(LogSequence),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Settled,
    Ready,
    Unacked,
    /// Ready, and not in memory.
    PagedOut,
}

impl State {
    fn is_ready(self) -> bool {
        matches!(self, State::Ready | State::PagedOut)
    }
}

/// One message in one queue, in words of 32 bits so that nothing is lost to padding.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The message's key; of one that is paged out, the lower half of its name.
    low: u32,
    /// Who holds it; of one that is paged out, the upper half of its name.
    high: u32,
    /// State: two bits. Whether its time to live ran out while it was unacked: one bit. How often it was
    /// delivered and came back: 13 bits. How many of those count against a delivery limit: 16 bits.
    meta: u32,
}

const EXPIRED: u32 = 1 << 2;
const RETURNS_SHIFT: u32 = 3;
const RETURNS_MAX: u32 = (1 << 13) - 1;
const FAILURES_SHIFT: u32 = RETURNS_SHIFT + 13;

impl Entry {
    fn new(state: State, kept: Kept, returns: Returns) -> Entry {
        let (low, high) = match kept {
            Kept::InMemory(message) => (message, 0),
            Kept::InLog(name) => (name as u32, (name >> 32) as u32),
        };
        let all = returns.all.min(RETURNS_MAX) << RETURNS_SHIFT;
        Entry { low, high, meta: state as u32 | all | u32::from(returns.failures) << FAILURES_SHIFT }
    }

    fn state(&self) -> State {
        match self.meta & 3 {
            0 => State::Settled,
            1 => State::Ready,
            2 => State::Unacked,
            _ => State::PagedOut,
        }
    }

    fn set_state(&mut self, state: State) {
        self.meta = self.meta & !3 | state as u32;
    }

    fn is_expired(&self) -> bool {
        self.meta & EXPIRED != 0
    }

    fn has_come_back(&self) -> bool {
        self.meta & RETURNS_MAX << RETURNS_SHIFT != 0
    }

    fn returns(&self) -> Returns {
        let all = self.meta >> RETURNS_SHIFT & RETURNS_MAX;
        Returns { all, failures: (self.meta >> FAILURES_SHIFT) as u16 }
    }

    /// Out of line: what is accepted is not to pay for it.
    #[cold]
    fn put_back(&mut self, failed: bool) {
        let Returns { all, failures } = self.returns();
        let returns = Returns { all: all + 1, failures: failures.saturating_add(u16::from(failed)) };
        *self = Entry::new(State::Ready, Kept::InMemory(self.low), returns);
    }

    fn kept(&self) -> Kept {
        match self.state() {
            State::PagedOut => Kept::InLog(u64::from(self.high) << 32 | u64::from(self.low)),
            _ => Kept::InMemory(self.low),
        }
    }
}

const VACANT: Entry = Entry { low: 0, high: 0, meta: State::Settled as u32 };
const _: () = assert!(size_of::<Entry>() == 12, "a waiting message costs 12 bytes of entry");

struct Block {
    /// Entries that are ready or unacked. Not beside them, where it would make the allocation an odd one.
    live: u32,
    entries: Box<[Entry; BLOCK_ENTRIES]>,
}

/// The ledger of one queue.
#[derive(Default)]
pub struct Entries {
    epoch: u32,
    version: u64,
    /// Number of the block at the front of `blocks`.
    first_block: u64,
    blocks: VecDeque<Option<Block>>,
    /// The first position that was never claimed.
    cursor: u64,
    /// The position that the next message gets.
    end: u64,
    /// Positions before the cursor that are ready again. May name some that have been dropped since.
    requeued: BinaryHeap<Reverse<u64>>,
    ready: u64,
    /// Of the ready ones.
    paged_out: u64,
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

    /// Of those, the ones that are not in memory.
    pub fn paged_out(&self) -> u64 {
        self.paged_out
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
        self.enter(Entry::new(State::Ready, Kept::InMemory(message), Returns::default()))
    }

    /// Enters a message that a former owner had, behind all others; it has come back this often.
    pub fn restore(&mut self, message: u32, returns: Returns) -> Position {
        self.enter(Entry::new(State::Ready, Kept::InMemory(message), returns))
    }

    /// As [`Self::restore`], of a message that is in the log only.
    pub fn restore_paged_out(&mut self, message: LogSequence, returns: Returns) -> Position {
        self.paged_out += 1;
        self.enter(Entry::new(State::PagedOut, Kept::InLog(message), returns))
    }

    fn enter(&mut self, entry: Entry) -> Position {
        let position = Position(self.end);
        self.end += 1;
        let block = self.block_for(position);
        block.live += 1;
        block.entries[position.index()] = entry;
        self.ready += 1;
        position
    }

    /// The message that would be claimed next, if it is paged out.
    pub fn next_paged_out(&mut self) -> Option<(Position, LogSequence)> {
        if self.paged_out == 0 {
            return None;
        }
        let position = self.next_ready()?;
        match self.entry_mut(position).expect("a ready position has an entry").kept() {
            Kept::InLog(message) => Some((position, message)),
            Kept::InMemory(_) => None,
        }
    }

    /// The message at this position, which was paged out, is in memory again.
    ///
    /// # Panics
    /// When it was not paged out.
    pub fn page_in(&mut self, position: Position, message: u32) {
        let entry = self.entry_mut(position).expect("a paged out message has an entry");
        assert_eq!(entry.state(), State::PagedOut);
        *entry = Entry::new(State::Ready, Kept::InMemory(message), entry.returns());
        self.paged_out -= 1;
    }

    /// The message at this position is in the log and leaves memory. False if it is not ready any more, or
    /// not this one.
    pub fn page_out(&mut self, position: Position, message: u32, name: LogSequence) -> bool {
        let Some(entry) = self.entry_mut(position) else { return false };
        if entry.state() != State::Ready || entry.low != message {
            return false;
        }
        *entry = Entry::new(State::PagedOut, Kept::InLog(name), entry.returns());
        self.paged_out += 1;
        true
    }

    /// The first message at or behind `from` that is ready, in memory, and was never claimed; within `most`
    /// positions. Gives also where to go on.
    pub fn next_in_memory(&mut self, from: u64, most: u64) -> (Option<(Position, u32)>, u64) {
        let mut at = from.max(self.cursor);
        let to = self.end.min(at.saturating_add(most));
        while at < to {
            match self.entry_mut(Position(at)) {
                Some(entry) if entry.state() == State::Ready => {
                    return (Some((Position(at), entry.low)), at + 1);
                }
                Some(_) => at += 1,
                // The whole block is gone.
                None => at = (Position(at).block() + 1) * BLOCK_ENTRIES as u64,
            }
        }
        (None, at.min(to))
    }

    /// The first position that was never claimed.
    pub fn cursor_position(&self) -> u64 {
        self.cursor
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

    /// Takes the first ready message for `holder`, if `expected` is still the cursor. It must be in memory:
    /// see [`Self::next_paged_out`].
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
        assert_eq!(entry.state(), State::Ready, "what is claimed is in memory");
        entry.set_state(State::Unacked);
        entry.high = holder.0;
        let claim = Claim { position, message: entry.low, redelivered: entry.has_come_back() };
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
        if entry.state() != State::Unacked {
            return None;
        }
        debug_assert!(before_cursor, "a claimed position lies before the cursor");
        let (holder, message) = (Holder(entry.high), entry.low);
        let requeue = matches!(verdict, Verdict::Requeue | Verdict::Fail);
        let expired = entry.is_expired() && requeue;
        if requeue && !expired {
            entry.put_back(verdict == Verdict::Fail);
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

    /// How often the message at `position` has come back.
    pub fn returns(&self, position: Position) -> Returns {
        self.entry(position).map_or(Returns::default(), Entry::returns)
    }

    /// Where the message at `position` is, if it is ready or unacked.
    pub fn kept_at(&self, position: Position) -> Option<Kept> {
        self.entry(position).filter(|entry| entry.state() != State::Settled).map(Entry::kept)
    }

    /// The message at `position` is ready or unacked.
    pub fn is_live(&self, position: Position) -> bool {
        self.kept_at(position).is_some()
    }

    /// Every ready message that is in memory, by a full count.
    pub fn ready_messages(&self) -> impl Iterator<Item = u32> {
        let entries = self.blocks.iter().flatten().flat_map(|block| block.entries.iter());
        entries.filter(|entry| entry.state() == State::Ready).map(|entry| entry.low)
    }

    /// The time to live of the message at `position` has run out. Gives the message if it was ready
    /// and is dropped now; one that is unacked is dropped if it should come back.
    pub fn expire(&mut self, position: Position) -> Option<Kept> {
        let entry = self.entry_mut(position)?;
        match entry.state() {
            State::Settled => None,
            State::Unacked => {
                entry.meta |= EXPIRED;
                None
            }
            State::Ready | State::PagedOut => {
                let kept = entry.kept();
                self.drop_at(position);
                Some(kept)
            }
        }
    }

    /// A ready message is dropped.
    fn drop_at(&mut self, position: Position) {
        let state = self.entry_mut(position).expect("a ready position has an entry").state();
        self.paged_out -= u64::from(state == State::PagedOut);
        self.vacate(position);
        self.ready -= 1;
        self.dropped += 1;
        self.version += 1;
    }

    /// Drops ready messages, at most `most`, first ones first, and gives each to `released`. Returns
    /// how many. The unacked stay.
    pub fn drop_ready(&mut self, most: u64, mut released: impl FnMut(Kept)) -> u64 {
        let mut count = 0;
        while count < most {
            let Some(position) = self.next_ready() else { break };
            if position.0 >= self.cursor {
                self.cursor = position.0 + 1;
            } else {
                self.requeued.pop();
            }
            released(self.entry_mut(position).expect("a ready position has an entry").kept());
            self.drop_at(position);
            count += 1;
        }
        count
    }

    /// Drops everything that is left, claimed or not, at most `most` blocks at a time; for a queue that
    /// is gone. True when nothing remains.
    pub fn demolish(&mut self, most: usize, mut released: impl FnMut(Kept)) -> bool {
        for _ in 0..most {
            let Some(block) = self.blocks.pop_front() else { break };
            self.first_block += 1;
            let Some(block) = block else { continue };
            for entry in block.entries.iter() {
                if entry.state() != State::Settled {
                    released(entry.kept());
                }
            }
        }
        self.blocks.is_empty()
    }

    /// Moves all ready messages that were never claimed, whole blocks at a time, into a ledger of
    /// their own, so that dropping millions can go in slices; returns it with the count. What shares a
    /// block with other messages, and what was requeued, is dropped at once through `released`.
    pub fn split_ready(&mut self, mut released: impl FnMut(Kept)) -> (Entries, u64) {
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
            (rest.ready, rest.paged_out) = (self.ready, self.paged_out);
            self.dropped += self.ready;
            (self.ready, self.paged_out) = (0, 0);
            self.cursor = self.end;
            self.version += 1;
        }
        (rest, total)
    }

    /// Counts every entry, for checks: (ready, unacked) as the states say.
    pub fn full_count(&self) -> (u64, u64) {
        (self.count(State::is_ready), self.count(|state| state == State::Unacked))
    }

    fn count(&self, wanted: impl Fn(State) -> bool) -> u64 {
        let entries = self.blocks.iter().flatten().flat_map(|block| block.entries.iter());
        entries.filter(|entry| wanted(entry.state())).count() as u64
    }

    /// Asserts the invariants that need a full count. For tests and the simulator.
    ///
    /// # Panics
    /// When a counter disagrees with the states.
    pub fn assert_consistent(&self) {
        let (ready, unacked) = self.full_count();
        assert_eq!((ready, unacked), (self.ready, self.unacked), "counters against states");
        assert_eq!(self.count(|state| state == State::PagedOut), self.paged_out, "paged out ones");
        assert_eq!(ready + unacked, self.end - self.settled - self.dropped, "published − settled − dropped");
        for block in self.blocks.iter().flatten() {
            let live = block.entries.iter().filter(|entry| entry.state() != State::Settled).count();
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
            if self.entry_mut(Position(position)).is_some_and(|entry| entry.state().is_ready()) {
                return Some(Position(position));
            }
            self.requeued.pop();
        }
        let mut position = Position(self.cursor);
        loop {
            assert!(position.0 < self.end, "a ready message lies before the end");
            match self.entry_mut(position) {
                Some(entry) if entry.state().is_ready() => break,
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
            .get_or_insert_with(|| Block { live: 0, entries: Box::new([VACANT; BLOCK_ENTRIES]) })
    }

    /// Marks the entry settled and gives its block back if that was the last live one in it. The
    /// block that the next message goes to is kept.
    fn vacate(&mut self, position: Position) {
        let next = Position(self.end).block();
        let index = (position.block() - self.first_block) as usize;
        let slot = &mut self.blocks[index];
        let block = slot.as_mut().expect("a live entry has a block");
        block.entries[position.index()] = VACANT;
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
