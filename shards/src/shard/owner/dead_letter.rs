//! What a queue gives up: rejected, expired, beyond its length, back too often.
//!
//! A message that has somewhere to go leaves its queue at once and keeps its place in the store. Where it
//! goes, the shard finds out on its topology before the step ends (`shard/dead_letters.rs`). Only then
//! does the queue let go of it, so that its copies are in the log before the original is settled there.
//! With at-least-once the queue keeps it longer, until each queue that it goes to has confirmed it: what
//! is refused or leads nowhere is tried again, and after a crash the message is back in its queue.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::deadlines::Due;
use super::{Owner, released};
use crate::ledger::Kept as Place;
use crate::queue::{DeadLetterTo, Record};
use crate::shard::batch::{DEAD_LETTERS, Publisher, RecordRef};
use crate::shard::effects::{Backplane, Effects};
use crate::shard::outward::Outward;
pub(in crate::shard) use crate::shard::properties::Reason;
use crate::topology::QueueInfo;
use crate::{QueueId, ShardId};

/// How long a dead letter waits before it is tried again, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// A message that has left its queue and still is in the store.
#[derive(Clone)]
pub(in crate::shard) struct DeadLetter {
    /// The queue that gave it up.
    pub source: Arc<QueueInfo>,
    pub to: Arc<DeadLetterTo>,
    pub reason: Reason,
    /// Its number among those that are kept until they are confirmed, from the first try on.
    pub kept_as: Option<u64>,
    message: u32,
}

/// A dead letter that its queue keeps until it is confirmed.
struct Kept {
    letter: DeadLetter,
    /// Queues that have it.
    reached: SmallVec<[QueueId; 2]>,
    /// Queues that have not answered.
    missing: usize,
    refused: bool,
}

/// The dead letters of a shard.
#[derive(Default)]
pub(super) struct DeadLetters {
    /// To be routed before the step ends.
    fresh: VecDeque<DeadLetter>,
    kept: FxHashMap<u64, Kept>,
    /// By the number of the publish: the letter, and the queue that it went to.
    awaited: FxHashMap<u64, (u64, QueueId)>,
    last_number: u64,
}

impl DeadLetters {
    /// How many messages of the store they hold.
    pub fn len(&self) -> usize {
        // One that is tried again is among both.
        self.fresh.iter().filter(|letter| letter.kept_as.is_none()).count() + self.kept.len()
    }

    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

impl Owner {
    /// A queue gives a message up that is out of its entries already: it goes where the queue says.
    pub(super) fn let_go<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        slot: usize,
        message: u32,
        reason: Reason,
    ) {
        let queue = self.queue_at(slot);
        match &queue.settings.dead_letter {
            Some(to) => {
                let (source, to) = (Arc::clone(&queue.info), Arc::clone(to));
                let letter = DeadLetter { source, to, reason, kept_as: None, message };
                self.dead_letters.fresh.push_back(letter);
            }
            None => {
                let durable_id = queue.durable_id;
                released(&mut self.store, out.fx, Place::InMemory(message), durable_id);
            }
        }
    }

    /// A queue gives a message up that it never took in.
    #[cold]
    pub(super) fn give_up(&mut self, slot: usize, record: RecordRef<'_>, reason: Reason) {
        let queue = self.queue_at(slot);
        let Some(to) = &queue.settings.dead_letter else { return };
        let (source, to) = (Arc::clone(&queue.info), Arc::clone(to));
        // Not in the log: nothing is settled there when it is let go.
        let message = self.store.insert(record.to_record());
        self.dead_letters.fresh.push_back(DeadLetter { source, to, reason, kept_as: None, message });
    }

    /// A message that was given up and has not been routed.
    pub fn next_dead_letter(&mut self) -> Option<DeadLetter> {
        self.dead_letters.fresh.pop_front()
    }

    /// The message of a dead letter.
    pub fn dead_letter_record(&self, letter: &DeadLetter) -> &Record {
        self.store.record(letter.message)
    }

    /// The dead letter is where it should be, or nowhere: its queue lets go of it.
    pub fn end_dead_letter(&mut self, fx: &mut impl Backplane, letter: &DeadLetter) {
        if let Some(number) = letter.kept_as {
            self.dead_letters.kept.remove(&number);
        }
        released(&mut self.store, fx, Place::InMemory(letter.message), letter.source.durable_id);
    }

    /// Keeps a letter that goes to these queues until they have confirmed it. Takes out those that have it
    /// from an earlier try, and gives each other one the publisher to name in its copy. If there is none
    /// at all, the letter is tried again later.
    pub fn keep_dead_letter(
        &mut self,
        fx: &mut impl Backplane,
        home: ShardId,
        letter: DeadLetter,
        targets: &mut Vec<QueueId>,
    ) -> Vec<Publisher> {
        let letters = &mut self.dead_letters;
        let number = letter.kept_as.unwrap_or_else(|| letters.number());
        let letter = DeadLetter { kept_as: Some(number), ..letter };
        let new = Kept { letter: letter.clone(), reached: SmallVec::new(), missing: 0, refused: false };
        let kept = letters.kept.entry(number).or_insert(new);
        let somewhere = !targets.is_empty();
        targets.retain(|queue| !kept.reached.contains(queue));
        (kept.missing, kept.refused) = (targets.len(), false);
        let publishers = targets.iter().map(|&queue| {
            letters.last_number += 1;
            letters.awaited.insert(letters.last_number, (number, queue));
            Publisher { home, channel: DEAD_LETTERS, number: letters.last_number }
        });
        let publishers: Vec<Publisher> = publishers.collect();
        if !somewhere {
            self.deadlines.push(self.now_ms.saturating_add(RETRY_MS), Due::DeadLetter(number));
        } else if publishers.is_empty() {
            self.end_dead_letter(fx, &letter);
        }
        publishers
    }

    /// A queue has its copy of a kept letter, or refuses it.
    pub fn dead_letter_confirmed(&mut self, fx: &mut impl Backplane, number: u64, accepted: bool) {
        let letters = &mut self.dead_letters;
        let (number, queue) = letters.awaited.remove(&number).expect("a dead letter is confirmed once");
        let kept = letters.kept.get_mut(&number).expect("a letter is kept until all have answered");
        kept.missing -= 1;
        match accepted {
            true => kept.reached.push(queue),
            false => kept.refused = true,
        }
        match (kept.missing, kept.refused) {
            (0, true) => self.deadlines.push(self.now_ms.saturating_add(RETRY_MS), Due::DeadLetter(number)),
            (0, false) => {
                let letter = kept.letter.clone();
                self.end_dead_letter(fx, &letter);
            }
            _ => {}
        }
    }

    /// The time for another try has come.
    pub(super) fn retry_dead_letter(&mut self, number: u64) {
        let Some(kept) = self.dead_letters.kept.get(&number) else { return };
        let letter = kept.letter.clone();
        self.dead_letters.fresh.push_back(letter);
    }
}
