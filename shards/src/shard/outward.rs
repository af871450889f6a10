//! The way from an owner back to the homes of its consumers: straight into the local home, or into the
//! batch for another shard.

use super::batch::{DEAD_LETTERS, PeerMessage, RecordRef};
use super::effects::Effects;
use super::front_end::Reply;
use super::home::Home;
use crate::ledger::Position;
use crate::mesh::Lane;
use crate::{ChannelId, ConsumerId, QueueId, ShardId};

/// A delivery from an owner to a consumer's home.
pub(super) struct Delivery {
    pub home: ShardId,
    pub channel: ChannelId,
    pub consumer: ConsumerId,
    /// The unacked entry; none when the delivery is settled as it is made.
    pub entry: Option<(QueueId, Position)>,
    pub redelivered: bool,
    /// The channel has counted it already.
    pub granted: bool,
}

/// See the module.
pub(super) struct Outward<'a, E> {
    pub shard: ShardId,
    pub fx: &'a mut E,
    pub home: &'a mut Home,
}

impl<E: Effects> Outward<'_, E> {
    pub fn deliver(&mut self, delivery: &Delivery, record: RecordRef<'_>) {
        let Delivery { home, channel, consumer, entry, redelivered, granted } = *delivery;
        if home == self.shard {
            let (owner, view) = (self.shard, record.view());
            self.home.deliver(self.fx, channel, consumer, entry, redelivered, granted, owner, view);
        } else {
            let batch = self.fx.outgoing(home, Lane::Reply);
            let payload = batch.add_record(record);
            batch.push(PeerMessage::Deliver { channel, consumer, entry, redelivered, granted, payload });
        }
    }

    pub fn got(
        &mut self,
        home: ShardId,
        channel: ChannelId,
        entry: Option<(QueueId, Position)>,
        redelivered: bool,
        remaining: u64,
        record: RecordRef<'_>,
    ) {
        if home == self.shard {
            self.home.got(self.fx, channel, entry, redelivered, remaining, record.view());
        } else {
            let batch = self.fx.outgoing(home, Lane::Reply);
            let payload = batch.add_record(record);
            batch.push(PeerMessage::Got { channel, entry, redelivered, remaining, payload });
        }
    }

    /// Answers a request. A local one is written at once: deliveries that follow must not overtake it.
    pub fn answer(&mut self, home: ShardId, channel: ChannelId, reply: Reply) {
        if home == self.shard {
            self.home.answer(self.fx, channel, reply);
        } else {
            self.tell(home, PeerMessage::Answer { channel, reply: Box::new(reply) });
        }
    }

    pub fn queue_gone(&mut self, home: ShardId, channel: ChannelId) {
        self.tell(home, PeerMessage::QueueGone { channel });
    }

    pub fn confirmed(&mut self, home: ShardId, channel: ChannelId, number: u64, accepted: bool) {
        if home == self.shard && channel != DEAD_LETTERS {
            self.home.confirmed(channel, number, accepted);
        } else {
            self.tell(home, PeerMessage::Confirmed { channel, number, accepted });
        }
    }

    /// Says something to a shard; to this one, when the current step is done.
    pub fn tell(&mut self, to: ShardId, message: PeerMessage) {
        if to == self.shard {
            self.home.loopback.push_back(message);
        } else {
            self.fx.outgoing(to, Lane::Reply).push(message);
        }
    }

    /// Asks the topology's writer for something that nobody waits for.
    pub fn ask_writer(&mut self, message: PeerMessage) {
        if self.shard == super::WRITER {
            self.home.loopback.push_back(message);
        } else {
            self.fx.outgoing(super::WRITER, Lane::Forward).push(message);
        }
    }
}
