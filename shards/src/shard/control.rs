//! The topology's changes, one after another, on the one shard that writes them.
//!
//! A change goes through three stages, in the order of versions: decided (the writer's own topology
//! has it), stored (if anything of it is durable), applied by every shard. A request is answered when
//! everything that it was decided upon has been applied everywhere - also a request that found nothing
//! to change, since what it found may still be on its way. A deletion first asks the queue's owner,
//! who drops the queue if its conditions hold; until the owner has answered, no other request is
//! decided.

use std::collections::VecDeque;
use std::sync::Arc;

use super::batch::{Ask, PeerMessage};
use super::effects::Effects;
use super::outward::Outward;
use crate::mesh::Lane;
use crate::topology::{Change, Evaluation, Operation, Outcome, Writer};
use crate::{ChannelId, QueueId, Refusal, RefusalKind, ShardId};

/// Who waits for an answer: a channel of a shard, or nobody.
type Asker = Option<(ShardId, ChannelId)>;

/// A version on its way to all shards.
struct Underway {
    version: u64,
    changes: Arc<Vec<Change>>,
    stored: bool,
    sent: bool,
    /// Shards that have not applied it.
    missing: usize,
}

/// An answer that waits for a version.
struct Waiting {
    version: u64,
    asker: Asker,
    result: Result<Outcome, Refusal>,
}

/// Queues that their owners are asked to drop.
struct Dropping {
    asker: Asker,
    missing: usize,
    dropped: Vec<QueueId>,
    messages: u64,
    refused: Option<Refusal>,
}

/// The writer and what is underway. See the module.
pub(super) struct Control {
    writer: Writer,
    shards: usize,
    asks: VecDeque<(Asker, Ask)>,
    dropping: Option<Dropping>,
    underway: VecDeque<Underway>,
    waiting: VecDeque<Waiting>,
    short_of_space: bool,
}

impl Control {
    pub fn new(writer: Writer, shards: usize) -> Control {
        Control {
            writer,
            shards,
            asks: VecDeque::new(),
            dropping: None,
            underway: VecDeque::new(),
            waiting: VecDeque::new(),
            short_of_space: false,
        }
    }

    /// Takes a request in.
    pub fn ask<E: Effects>(&mut self, out: &mut Outward<'_, E>, from: ShardId, ask: Ask) {
        self.asks.push_back((ask.answer_to.map(|channel| (from, channel)), ask));
        self.decide(out);
    }

    fn decide<E: Effects>(&mut self, out: &mut Outward<'_, E>) {
        while self.dropping.is_none()
            && let Some((asker, ask)) = self.asks.pop_front()
        {
            let evaluation = match self.short_of_space && self.would_store(&ask.operation) {
                true => Evaluation::Refused(Refusal::new(
                    RefusalKind::ResourceError,
                    "the disk is short of space: nothing durable can be declared until there is more",
                )),
                false => self.writer.evaluate(&ask.operation, ask.requester),
            };
            self.take(out, asker, evaluation);
        }
        self.advance(out);
    }

    /// The disk is short of space: what would be stored anew is refused, since a store that cannot be
    /// written ends the broker.
    pub fn note_space(&mut self, short_of_space: bool) {
        self.short_of_space = short_of_space;
    }

    /// The operation makes something durable that is not there.
    fn would_store(&self, operation: &Operation) -> bool {
        let topology = self.writer.topology();
        match operation {
            Operation::DeclareExchange { vhost, name, passive: false, durable: true, .. } => {
                topology.exchange(*vhost, name).is_none()
            }
            Operation::DeclareQueue {
                vhost, name, passive: false, durable: true, exclusive: false, ..
            } => topology.queue(*vhost, name).is_none(),
            Operation::SetPolicy { .. } => true,
            _ => false,
        }
    }

    fn take<E: Effects>(&mut self, out: &mut Outward<'_, E>, asker: Asker, evaluation: Evaluation) {
        let result = match evaluation {
            Evaluation::Refused(refusal) => Err(refusal),
            Evaluation::Unchanged(outcome) => Ok(outcome),
            Evaluation::Changed { version, changes, outcome } => {
                let writes = self.writer.take_store_writes();
                let stored = writes.is_empty();
                if !stored {
                    out.fx.persist(version, writes);
                }
                let (changes, missing) = (Arc::new(changes), self.shards);
                self.underway.push_back(Underway { version, changes, stored, sent: false, missing });
                Ok(outcome)
            }
            Evaluation::DropQueues { queues, if_unused, if_empty } => {
                let missing = queues.len();
                if missing == 0 {
                    let evaluation = self.writer.queues_dropped(&[], 0);
                    return self.take(out, asker, evaluation);
                }
                self.dropping =
                    Some(Dropping { asker, missing, dropped: Vec::new(), messages: 0, refused: None });
                for queue in queues {
                    let message = PeerMessage::DropQueue { queue, if_unused, if_empty };
                    if queue.owner() == out.shard {
                        out.home.loopback.push_back(message);
                    } else {
                        out.fx.outgoing(queue.owner(), Lane::Forward).push(message);
                    }
                }
                return;
            }
        };
        self.waiting.push_back(Waiting { version: self.writer.version(), asker, result });
    }

    /// An owner has dropped a queue, or says why not.
    pub fn dropped<E: Effects>(
        &mut self,
        out: &mut Outward<'_, E>,
        queue: QueueId,
        result: Result<u64, Refusal>,
    ) {
        let dropping = self.dropping.as_mut().expect("owners answer what they were asked");
        dropping.missing -= 1;
        match result {
            Ok(messages) => {
                dropping.dropped.push(queue);
                dropping.messages += messages;
            }
            Err(refusal) => dropping.refused = Some(refusal),
        }
        if dropping.missing > 0 {
            return;
        }
        let done = self.dropping.take().expect("it was just looked at");
        match done.refused {
            // Conditions come with single deletions only, so nothing else was dropped.
            Some(refusal) => self.take(out, done.asker, Evaluation::Refused(refusal)),
            None => {
                let evaluation = self.writer.queues_dropped(&done.dropped, done.messages);
                self.take(out, done.asker, evaluation);
            }
        }
        self.decide(out);
    }

    /// Everything up to this version is stored.
    pub fn persisted<E: Effects>(&mut self, out: &mut Outward<'_, E>, version: u64) {
        for underway in self.underway.iter_mut().take_while(|underway| underway.version <= version) {
            underway.stored = true;
        }
        self.advance(out);
    }

    /// One more shard has applied this version.
    pub fn applied<E: Effects>(&mut self, out: &mut Outward<'_, E>, version: u64) {
        let first = self.underway.front().expect("an applied version is underway").version;
        self.underway[(version - first) as usize].missing -= 1;
        self.advance(out);
    }

    /// Sends what is stored to every shard, in order, and answers what has been applied everywhere.
    fn advance<E: Effects>(&mut self, out: &mut Outward<'_, E>) {
        for underway in self.underway.iter_mut().take_while(|underway| underway.stored) {
            if !underway.sent {
                underway.sent = true;
                for shard in 0..self.shards {
                    let (version, changes) = (underway.version, underway.changes.clone());
                    out.tell(ShardId(shard as u16), PeerMessage::Apply { version, changes });
                }
            }
        }
        while self.underway.front().is_some_and(|underway| underway.missing == 0) {
            self.underway.pop_front();
        }
        let applied = match self.underway.front() {
            Some(underway) => underway.version - 1,
            None => self.writer.version(),
        };
        while let Some(waiting) = self.waiting.front()
            && waiting.version <= applied
        {
            let Waiting { asker, result, .. } = self.waiting.pop_front().expect("it was just looked at");
            if let Some((shard, channel)) = asker {
                out.tell(shard, PeerMessage::TopologyAnswer { channel, result: Box::new(result) });
            }
        }
    }
}
