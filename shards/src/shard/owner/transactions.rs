//! An owner's part in transactions: it is kept aside until all owners can do theirs, and then done in one
//! step. See `shard/commit.rs`.
//!
//! What is durable of a part is in the log, as one group, before anything of it is in a queue. So its messages
//! have their names when they enter, and a queue that does not keep one settles it there. Deliveries that
//! end are settled by the log itself, with the group; the log hears of them once more when the queue lets
//! them go, and takes no notice.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Durables, Entered, Owner};
use crate::ledger::Kept;
use crate::message::Durability;
use crate::queue::Overflow;
use crate::shard::batch::{PeerMessage, RecordRef};
use crate::shard::commit::{TxMessage, TxPart, TxPublish, TxSettlement};
use crate::shard::effects::{Effects, LogSequence};
use crate::shard::front_end::Verdict;
use crate::shard::outward::Outward;
use crate::shard::transaction_log::{GroupMessage, LogGroup, LoggedGroup, TransactionLog};
use crate::{DurableId, ShardId, TxName};

/// A part that waits for the outcome.
struct Prepared {
    part: Box<TxPart>,
    in_log: Option<InLog>,
}

/// What the log has of a part.
struct InLog {
    /// Of each publish: its name, if it is there, and the queues that it is there for.
    messages: Vec<(LogSequence, Durables)>,
    /// All of it is committed with this one.
    sequence: LogSequence,
    /// How durable it is then.
    asked: Durability,
}

/// The parts of a shard.
#[derive(Default)]
pub(super) struct Transactions {
    prepared: FxHashMap<TxName, Prepared>,
    /// What is said when the log is committed up to a sequence; these grow.
    waiting: VecDeque<(LogSequence, ShardId, PeerMessage)>,
    /// Bytes of messages that wait for the outcome.
    pub bytes: u64,
}

fn bytes(part: &TxPart) -> u64 {
    part.publishes.iter().map(|publish| publish.record.bytes().len() as u64).sum()
}

/// How a part is to be logged.
#[derive(Default)]
struct Plan {
    /// For each publish, the queues for which it is logged; none if it is not.
    queues: Vec<Durables>,
    settlements: Vec<(LogSequence, DurableId)>,
    /// The most that a message asks for.
    asked: Durability,
}

impl Owner {
    /// Takes a part: does it if it is the whole transaction, else gets prepared.
    pub fn take_part<E: Effects>(&mut self, out: &mut Outward<'_, E>, home: ShardId, mut part: Box<TxPart>) {
        let name = part.name;
        // One that is gone keeps nothing, and one that is still to come was not there to be logged for.
        for publish in &mut part.publishes {
            publish.queues.retain(|queue| self.slot_of(*queue).is_some());
        }
        if self.refuses(&part) {
            return out.tell(home, PeerMessage::Transaction(TxMessage::Refused(name)));
        }
        let in_log = self.log_part(out.fx, &part);
        let asked = in_log.as_ref().map_or(Durability::Memory, |in_log| in_log.asked);
        let sequence = in_log.as_ref().map(|in_log| in_log.sequence);
        let answer = match part.alone {
            true => {
                self.apply(out, &part, in_log);
                TxMessage::Applied(name)
            }
            false => {
                self.transactions.bytes += bytes(&part);
                self.transactions.prepared.insert(name, Prepared { part, in_log });
                TxMessage::Prepared { name, asked }
            }
        };
        let answer = PeerMessage::Transaction(answer);
        match sequence {
            None => out.tell(home, answer),
            Some(sequence) => self.tell_when_committed(sequence, home, answer),
        }
    }

    /// The transaction counts.
    pub fn commit_part<E: Effects>(&mut self, out: &mut Outward<'_, E>, home: ShardId, name: TxName) {
        let Prepared { part, in_log } = self.end_wait(name);
        if in_log.is_some() {
            out.fx.resolve(name, true);
        }
        self.apply(out, &part, in_log);
        out.tell(home, PeerMessage::Transaction(TxMessage::Applied(name)));
    }

    /// It does not: nothing has happened.
    pub fn abort_part(&mut self, fx: &mut impl TransactionLog, name: TxName) {
        if self.end_wait(name).in_log.is_some() {
            fx.resolve(name, false);
        }
    }

    fn end_wait(&mut self, name: TxName) -> Prepared {
        let prepared = self.transactions.prepared.remove(&name).expect("an outcome is of a prepared part");
        self.transactions.bytes -= bytes(&prepared.part);
        prepared
    }

    /// Says this when the log is committed up to `sequence`.
    pub fn tell_when_committed(&mut self, sequence: LogSequence, to: ShardId, message: PeerMessage) {
        debug_assert!(self.transactions.waiting.back().is_none_or(|(last, ..)| *last <= sequence));
        self.transactions.waiting.push_back((sequence, to, message));
    }

    /// Says what waits for the log up to here.
    pub(super) fn tell_committed<E: Effects>(&mut self, out: &mut Outward<'_, E>) {
        while let Some((sequence, ..)) = self.transactions.waiting.front()
            && *sequence <= self.committed
            && let Some((_, to, message)) = self.transactions.waiting.pop_front()
        {
            out.tell(to, message);
        }
    }

    /// A queue of the part is full and rejects what comes.
    fn refuses(&self, part: &TxPart) -> bool {
        // Messages and bytes that the part adds to such queues.
        let mut added: SmallVec<[(usize, u64, u64); 4]> = SmallVec::new();
        for publish in &part.publishes {
            for slot in publish.queues.iter().filter_map(|&id| self.slot_of(id)) {
                let queue = self.queue_at(slot);
                let Some(bound) = queue.settings.bound else { continue };
                if matches!(bound.overflow, Overflow::DropHead | Overflow::Block) {
                    continue;
                }
                let at = added.iter().position(|(other, ..)| *other == slot).unwrap_or_else(|| {
                    added.push((slot, 0, 0));
                    added.len() - 1
                });
                let (_, messages, bytes) = &mut added[at];
                *messages += 1;
                *bytes += publish.record.view().body.len() as u64;
                if bound.is_exceeded_by(queue.entries.ready() + *messages, queue.ready_bytes + *bytes) {
                    return true;
                }
            }
        }
        false
    }

    /// Puts what is durable of a part into the log; none if nothing is, or there is no log.
    fn log_part(&mut self, fx: &mut impl TransactionLog, part: &TxPart) -> Option<InLog> {
        let plan = self.plan(part);
        if plan.asked == Durability::Memory {
            return None;
        }
        let logged = part.publishes.iter().zip(&plan.queues).filter(|(_, queues)| !queues.is_empty());
        let messages: Vec<GroupMessage<'_>> = logged
            .map(|(publish, queues)| GroupMessage {
                message: publish.record.view(),
                ttl_ms: publish.ttl_ms,
                queues,
            })
            .collect();
        let sync = plan.asked == Durability::Fsync;
        let group = LogGroup { messages: &messages, settlements: &plan.settlements, sync };
        let LoggedGroup { names, sequence } = match part.alone {
            true => fx.append_group(&group),
            false => fx.prepare(part.name, &group),
        }?;
        let mut names = names.into_iter();
        let messages = plan.queues.into_iter().map(|queues| {
            let name = if queues.is_empty() { None } else { names.next() };
            (name.unwrap_or(0), queues)
        });
        Some(InLog { messages: messages.collect(), sequence, asked: plan.asked })
    }

    fn plan(&self, part: &TxPart) -> Plan {
        let mut plan = Plan::default();
        for TxPublish { queues, durability, .. } in &part.publishes {
            let (mut durables, mut asked) = (Durables::new(), Durability::Memory);
            for queue in queues.iter().filter_map(|&id| self.queue(id)) {
                if let Some(durable) = queue.durable_id {
                    asked = asked.max(queue.durability.min(*durability));
                    durables.push(durable);
                }
            }
            // As for any message: all durable queues have it there if one asks.
            if asked == Durability::Memory {
                durables.clear();
            }
            plan.asked = plan.asked.max(asked);
            plan.queues.push(durables);
        }
        for settlement in &part.settlements {
            if let Some((message, queue, durability)) = self.ends_in_log(settlement) {
                plan.settlements.push((message, queue));
                plan.asked = plan.asked.max(durability);
            }
        }
        plan
    }

    /// What the log has of a delivery that is simply over with this, and how durable its queue is. One that
    /// goes on as a dead letter is settled when its copies are in the log.
    fn ends_in_log(&self, settlement: &TxSettlement) -> Option<(LogSequence, DurableId, Durability)> {
        let queue = self.queue(settlement.queue)?;
        let durable = queue.durable_id?;
        let ends = match settlement.verdict {
            Verdict::Accept => true,
            Verdict::Reject => queue.settings.dead_letter.is_none(),
            Verdict::Requeue | Verdict::Fail => false,
        };
        let Some(Kept::InMemory(message)) = queue.entries.kept_at(settlement.position).filter(|_| ends)
        else {
            return None;
        };
        let name = self.store.in_log(message).name;
        (name != 0).then_some((name, durable, queue.durability))
    }

    fn apply<E: Effects>(&mut self, out: &mut Outward<'_, E>, part: &TxPart, in_log: Option<InLog>) {
        let messages = in_log.map_or(Vec::new(), |in_log| in_log.messages);
        let mut messages = messages.iter();
        for publish in &part.publishes {
            let in_log = messages.next().filter(|(name, _)| *name != 0);
            self.enter_promised(out, publish, in_log.map(|(name, queues)| (*name, queues.as_slice())));
        }
        for &TxSettlement { queue, position, verdict } in &part.settlements {
            self.settle(out, queue, position, verdict);
        }
    }

    /// As [`Owner::enter`], for a message that the log has under a name for these queues already, and that
    /// no queue turns away.
    fn enter_promised<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        publish: &TxPublish,
        in_log: Option<(LogSequence, &[DurableId])>,
    ) {
        let (record, mut stored) = (RecordRef::Stored(&publish.record), None);
        let (mut kept, mut claimed) = (Durables::new(), Durables::new());
        for &id in &publish.queues {
            // One that is gone meanwhile keeps nothing.
            let Some(slot) = self.slot_of(id) else { continue };
            let entered = self.admit_to(out, slot, record, &mut stored, publish.ttl_ms, true);
            let Some(durable) = self.queue_at(slot).durable_id else { continue };
            if matches!(entered, Entered::Ready | Entered::Claimed) {
                kept.push(durable);
            }
            if entered == Entered::Claimed {
                claimed.push(durable);
            }
        }
        let Some((name, queues)) = in_log else { return };
        if let Some(message) = stored.filter(|_| !kept.is_empty()) {
            self.store.set_log(message, name);
            // Their deliveries are written in this step and go out after it.
            claimed.iter().for_each(|&queue| out.fx.claimed(name, queue));
        }
        for &queue in queues.iter().filter(|queue| !kept.contains(queue)) {
            out.fx.settled(name, Some(queue));
        }
    }

    /// Asserts the counts of bytes. For tests and simulators.
    pub(super) fn assert_parts(&self) {
        let counted: u64 = self.transactions.prepared.values().map(|prepared| bytes(&prepared.part)).sum();
        assert_eq!(counted, self.transactions.bytes, "bytes of messages that wait for an outcome");
    }
}
