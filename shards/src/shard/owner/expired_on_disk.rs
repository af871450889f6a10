//! Messages whose time has come while they are on disk, and that have somewhere to go: they are read first.
//!
//! When many are due they are due in any order, but lie on disk in the order of their queue. So a queue's are read
//! in that order, round and round, and not as they fall due: what the disk gives with one of them has others that
//! are due, and what follows is read ahead. Little is asked for at a time, or what was read for one would push out
//! what was read for another before that is used.

use std::collections::BTreeSet;

use super::Owner;
use crate::QueueId;
use crate::ledger::Position;
use crate::limits::{EXPIRED_PER_STEP, EXPIRED_READS_MAX};
use crate::shard::effects::Effects;
use crate::shard::outward::Outward;

/// A queue's messages that have expired and are on disk.
pub(super) struct ExpiredOnDisk {
    positions: BTreeSet<Position>,
    /// Where the round goes on.
    next: Position,
    /// Something was asked for, and its arrival will be told.
    asked: bool,
    /// It is on the list of queues to go on with.
    listed: bool,
}

impl Default for ExpiredOnDisk {
    fn default() -> ExpiredOnDisk {
        ExpiredOnDisk { positions: BTreeSet::new(), next: Position(0), asked: false, listed: false }
    }
}

impl Owner {
    /// A message has expired that is on disk. It ends when it has been read.
    #[cold]
    pub(super) fn expire_when_read<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        id: QueueId,
        position: Position,
    ) {
        let expired = self.expired_on_disk.entry(id).or_default();
        expired.positions.insert(position);
        if !expired.asked && !expired.listed {
            self.expire_read(out, id);
        }
    }

    /// What a queue's expired messages waited for has been read.
    pub(super) fn expired_arrived<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId) {
        if let Some(expired) = self.expired_on_disk.get_mut(&id)
            && !expired.listed
        {
            expired.asked = false;
            self.expire_read(out, id);
        }
    }

    /// Expired messages have been read that there was no time for yet.
    pub fn has_expired_to_end(&self) -> bool {
        !self.expired_to_end.is_empty()
    }

    /// Goes on with them, a slice at a time. True if more is left.
    pub(super) fn end_expired<E: Effects>(&mut self, out: &mut Outward<'_, E>) -> bool {
        if let Some(id) = self.expired_to_end.pop_front() {
            if let Some(expired) = self.expired_on_disk.get_mut(&id) {
                expired.listed = false;
            }
            self.expire_read(out, id);
        }
        self.has_expired_to_end()
    }

    /// Ends what can be read at once of a queue's expired messages, and asks for what comes next.
    fn expire_read<E: Effects>(&mut self, out: &mut Outward<'_, E>, id: QueueId) {
        let Some(mut expired) = self.expired_on_disk.remove(&id) else { return };
        // With the queue its messages are gone.
        let Some(slot) = self.slot_of(id) else { return };
        let (mut first_asked, mut asked, mut left) = (None, 0, EXPIRED_PER_STEP);
        let (begin, mut from, mut second_half) = (expired.next, expired.next, false);
        while left > 0 && asked < EXPIRED_READS_MAX {
            let found = expired.positions.range(from..).next().copied();
            let Some(position) = found.filter(|&position| !second_half || position < begin) else {
                if second_half {
                    break;
                }
                (second_half, from) = (true, Position(0));
                continue;
            };
            from = Position(position.0 + 1);
            left -= 1;
            if self.expiring_is_in_memory(out, slot, position) {
                expired.positions.remove(&position);
                self.end_expired_message(out, slot, position);
            } else {
                first_asked.get_or_insert(position);
                asked += 1;
            }
        }
        expired.asked = asked > 0;
        expired.next = first_asked.unwrap_or(from);
        if left == 0 && asked == 0 {
            expired.listed = true;
            self.expired_to_end.push_back(id);
        }
        if !expired.positions.is_empty() {
            self.expired_on_disk.insert(id, expired);
        }
    }
}
