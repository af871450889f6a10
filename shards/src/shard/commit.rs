//! How a transaction is committed. The home of the channel coordinates; the owners of the queues that the
//! transaction touches take part.
//!
//! With one participant there is one message: the owner logs its part as one group, does everything in
//! the same step, and answers when the log has it. With several:
//!
//! ```text
//!  home                                     owners
//!   │ ── Part ──────────────────────────────▶ │  kept aside; the durable part is prepared in the log
//!   │ ◀───────────── Prepared, or Refused ── │  when that is on disk
//!   ├─ decision in its own log, on disk       │
//!   │ ── Commit, or Abort ──────────────────▶ │  resolved in the log, done in the queues
//!   │ ◀───────────────────────── Applied ── │
//!   ├─ commit-ok                              │
//!   │ ◀──────────────────────── Resolved ── │  when the resolution is on disk
//!   ├─ the decision is forgotten              │
//! ```
//!
//! The answer comes when all have done their part: whoever hears of it sees all of it, from any shard. What
//! can refuse a part is a queue that is full and rejects; an owner that has said that it is prepared takes the
//! part whatever happens meanwhile. Once begun, a commit does not need its channel any more.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Shard;
use super::batch::{PeerMessage, Publisher, RecordRef};
use super::direct_reply::Replies;
use super::effects::Effects;
use super::front_end::{Reply, Verdict};
use super::history::Remembered;
use super::outward::Outward;
use super::transactions::{Settled, counted};
use crate::ledger::Position;
use crate::queue::Record;
use crate::{ChannelId, Durability, QueueId, Refusal, RefusalKind, ShardId, TxName, VhostId};

/// A message of a transaction.
#[derive(Debug)]
pub(crate) struct TxPublish {
    pub record: Record,
    /// Those of one owner stand side by side.
    pub queues: SmallVec<[QueueId; 2]>,
    pub durability: Durability,
    pub ttl_ms: Option<u64>,
}

/// A delivery that a transaction ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxSettlement {
    pub queue: QueueId,
    pub position: Position,
    pub verdict: Verdict,
}

/// What one owner has to do.
#[derive(Debug)]
pub(crate) struct TxPart {
    pub name: TxName,
    /// No other owner takes part.
    pub alone: bool,
    /// Done first, in order, and then the settlements: RabbitMQ's order.
    pub publishes: Vec<TxPublish>,
    pub settlements: Vec<TxSettlement>,
}

impl TxPart {
    pub fn new(name: TxName) -> TxPart {
        TxPart { name, alone: false, publishes: Vec::new(), settlements: Vec::new() }
    }
}

/// What a transaction's shards say to each other.
#[derive(Debug)]
pub(crate) enum TxMessage {
    // To an owner
    /// Behind everything that the channel has published before: the only one on the Forward lane.
    Part(Box<TxPart>),
    Commit(TxName),
    Abort(TxName),

    // To the coordinator
    /// The part can be done, whatever happens, and what is durable of it is in the log as was `asked`: then
    /// the log will have to be told of the outcome. Not so with [`Durability::Memory`].
    Prepared {
        name: TxName,
        asked: Durability,
    },
    /// The part cannot be done, and is forgotten.
    Refused(TxName),
    /// The decision is on disk.
    Decided(TxName),
    Applied(TxName),
    /// The outcome is on disk with the owner.
    Resolved(TxName),
}

/// Copies of a message that go to what is no queue: histories of exchanges, channels that wait for a reply.
#[derive(Debug)]
pub(super) struct Beside {
    pub record: Record,
    pub histories: Vec<Remembered>,
    pub replies: Replies,
    /// The publisher wants the message back if it cannot be delivered.
    pub return_it: bool,
}

/// What the home does when the owners have done their parts.
pub(super) struct Rest {
    pub channel: ChannelId,
    pub vhost: VhostId,
    /// Its prefetch is free then; if the transaction is refused, it is unacked again.
    pub settled: Vec<Settled>,
    /// Mandatory messages that no queue takes.
    pub returns: Vec<Record>,
    pub beside: Vec<Beside>,
}

/// A commit under way.
pub(super) struct Committing {
    /// None once it is done.
    rest: Option<Rest>,
    /// Owners that are prepared.
    prepared: SmallVec<[ShardId; 4]>,
    /// Answers that are missing in this phase.
    awaited: usize,
    /// Owners whose logs do not have the outcome on disk yet.
    unresolved: usize,
    /// The most that an owner's log was asked for.
    asked: Durability,
    refused: bool,
}

type AllCommitting = FxHashMap<TxName, Committing>;

/// A commit that has not ended: every message names one but those that say so.
fn known(all: &mut AllCommitting, name: TxName) -> &mut Committing {
    all.get_mut(&name).expect("a commit ends when all have answered")
}

impl Shard {
    /// Sends each owner its part.
    pub(super) fn begin_commit<E: Effects>(
        &mut self,
        fx: &mut E,
        name: TxName,
        rest: Rest,
        parts: Vec<(ShardId, TxPart)>,
    ) {
        if parts.is_empty() {
            return self.end_commit(fx, rest);
        }
        let alone = parts.len() == 1;
        let committing = Committing {
            rest: Some(rest),
            prepared: SmallVec::new(),
            awaited: parts.len(),
            unresolved: 0,
            asked: Durability::Memory,
            refused: false,
        };
        self.transactions.committing.insert(name, committing);
        for (owner, part) in parts {
            let part = TxMessage::Part(Box::new(TxPart { alone, ..part }));
            self.send_forward(fx, owner, PeerMessage::Transaction(part));
        }
    }

    /// A message about a transaction, to the coordinator or to an owner.
    pub(super) fn take_transaction<E: Effects>(&mut self, fx: &mut E, from: ShardId, message: TxMessage) {
        let all = &mut self.transactions.committing;
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        match message {
            TxMessage::Part(part) => self.owner.take_part(&mut out, from, part),
            TxMessage::Commit(name) => self.owner.commit_part(&mut out, from, name),
            TxMessage::Abort(name) => self.owner.abort_part(fx, name),
            TxMessage::Prepared { name, asked } => {
                let committing = known(all, name);
                committing.prepared.push(from);
                committing.asked = committing.asked.max(asked);
                committing.unresolved += usize::from(asked > Durability::Memory);
                self.part_is_known(fx, name);
            }
            TxMessage::Refused(name) => {
                known(all, name).refused = true;
                self.part_is_known(fx, name);
            }
            TxMessage::Decided(name) => self.send_commits(fx, name),
            TxMessage::Applied(name) => self.part_is_applied(fx, name),
            TxMessage::Resolved(name) => self.part_is_resolved(fx, name),
        }
    }

    /// One owner more has said whether it can do its part.
    fn part_is_known<E: Effects>(&mut self, fx: &mut E, name: TxName) {
        let committing = known(&mut self.transactions.committing, name);
        committing.awaited -= 1;
        if committing.awaited > 0 {
            return;
        }
        if committing.refused {
            self.abort(fx, name);
        } else if committing.asked > Durability::Memory {
            let sequence = fx.decide(name, committing.asked == Durability::Fsync);
            let decided = PeerMessage::Transaction(TxMessage::Decided(name));
            self.owner.tell_when_committed(sequence, self.id, decided);
        } else {
            self.send_commits(fx, name);
        }
    }

    fn send_commits<E: Effects>(&mut self, fx: &mut E, name: TxName) {
        let committing = known(&mut self.transactions.committing, name);
        let owners = committing.prepared.clone();
        committing.awaited = owners.len();
        for owner in owners {
            self.tell_owner(fx, owner, TxMessage::Commit(name));
        }
    }

    /// Nothing of it counts. Logs need no decision for that.
    fn abort<E: Effects>(&mut self, fx: &mut E, name: TxName) {
        let committing = self.transactions.committing.remove(&name).expect("it was just looked at");
        for owner in committing.prepared {
            self.tell_owner(fx, owner, TxMessage::Abort(name));
        }
        let Rest { channel, settled, .. } = committing.rest.expect("an aborted transaction is not done");
        self.put_back(fx, channel, settled);
        let text = "a full queue refuses the transaction, and nothing of it was committed";
        let refusal = Refusal::new(RefusalKind::PreconditionFailed, text);
        self.home.answer(fx, channel, Reply::Refused(refusal));
    }

    /// One owner more has done its part.
    fn part_is_applied<E: Effects>(&mut self, fx: &mut E, name: TxName) {
        let committing = known(&mut self.transactions.committing, name);
        committing.awaited -= 1;
        if committing.awaited > 0 {
            return;
        }
        let rest = committing.rest.take().expect("all owners are done once");
        self.forget_resolved(fx, name);
        self.end_commit(fx, rest);
    }

    /// An owner's log has the outcome on disk. The coordinator has forgotten those that were aborted.
    fn part_is_resolved<E: Effects>(&mut self, fx: &mut E, name: TxName) {
        let Some(committing) = self.transactions.committing.get_mut(&name) else { return };
        committing.unresolved -= 1;
        self.forget_resolved(fx, name);
    }

    /// Forgets a transaction that is done, in memory and in all logs.
    fn forget_resolved<E: Effects>(&mut self, fx: &mut E, name: TxName) {
        let committing = known(&mut self.transactions.committing, name);
        if committing.awaited > 0 || committing.unresolved > 0 {
            return;
        }
        if committing.asked > Durability::Memory {
            fx.forget_decision(name);
        }
        self.transactions.committing.remove(&name);
    }

    /// All owners have done their parts: what is left is the channel's.
    fn end_commit<E: Effects>(&mut self, fx: &mut E, rest: Rest) {
        let Rest { channel: id, vhost, settled, returns, beside } = rest;
        for record in returns {
            self.returned(fx, id, record.view());
        }
        let from = Publisher { home: self.id, channel: id, number: 0 };
        for Beside { record, histories, replies, return_it } in beside {
            let copy = RecordRef::Stored(&record);
            self.send_to_keepers(fx, histories, copy);
            let handed_out = self.hand_out_replies(fx, vhost, from, copy, replies, return_it);
            if return_it && handed_out == 0 {
                self.returned(fx, id, record.view());
            }
        }
        self.home.answer(fx, id, Reply::Committed);
        let Some(channel) = self.home.channel_mut(id) else { return };
        channel.in_use -= counted(&settled);
        if !channel.wants.is_empty() {
            self.give_grants(fx, id);
        }
    }

    fn tell_owner<E: Effects>(&mut self, fx: &mut E, owner: ShardId, message: TxMessage) {
        let mut out = Outward { shard: self.id, fx, home: &mut self.home };
        out.tell(owner, PeerMessage::Transaction(message));
    }

    /// The log has the outcome of these transactions on disk: the coordinators are told.
    pub fn resolved<E: Effects>(&mut self, fx: &mut E, names: impl IntoIterator<Item = TxName>) {
        for name in names {
            let coordinator = name.coordinator();
            // A broker may start with fewer shards than it had.
            if coordinator.index() < self.shards {
                self.tell_owner(fx, coordinator, TxMessage::Resolved(name));
            }
        }
        self.finish_step(fx);
    }
}
