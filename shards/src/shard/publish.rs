//! A message on its way in: from a channel of this shard to the owners of its queues.
//!
//! Runs on the home of the publishing channel, which routes on its own replica of the topology. The route of
//! a channel's last message is kept, since most publishers send to one place.

use super::Shard;
use super::batch::{PeerMessage, Publisher, RecordRef};
use super::effects::Effects;
use super::front_end::{Publish, Published};
use super::outward::Outward;
use super::requests::address;
use crate::mesh::Lane;
use crate::topology::RoutingData;
use crate::{ChannelId, Durability, QueueId, Refusal};

impl Shard {
    /// Routes a message and sends it to the owners of its queues.
    ///
    /// # Errors
    /// When the exchange does not exist or is internal, or a transaction is too large; nothing has happened
    /// then, and no confirm number is used.
    pub fn publish<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        publish: &Publish<'_>,
    ) -> Result<Published, Refusal> {
        let mut targets = std::mem::take(&mut self.targets);
        let routed = self.find_targets(id, publish, &mut targets);
        let routed = routed.and_then(|beside| match beside {
            false => Ok(self.send_to_owners(fx, id, publish, &targets)),
            true => self.send_beside_owners(fx, id, publish, &targets),
        });
        self.targets = targets;
        self.finish_step(fx);
        routed
    }

    /// Leaves the queues of a message in `targets`, those of one owner side by side. True if it does not simply
    /// go there: see [`Self::send_beside_owners`].
    fn find_targets(
        &mut self,
        id: ChannelId,
        publish: &Publish<'_>,
        targets: &mut Vec<QueueId>,
    ) -> Result<bool, Refusal> {
        targets.clear();
        let version = self.topology.version();
        let channel = self.home.open_channel_mut(id);
        let message = &publish.message;
        if publish.further_keys.is_empty() && channel.route.is_for(version, message) {
            targets.extend_from_slice(&channel.route.queues);
            return Ok(false);
        }
        let vhost = channel.vhost;
        let exchange = std::str::from_utf8(message.exchange).map_err(|_| {
            let name = String::from_utf8_lossy(message.exchange);
            Refusal::no_exchange(&name, self.topology.vhost_name(vhost))
        })?;
        let (key, further_keys, headers) = (message.routing_key, publish.further_keys, publish.headers);
        let data = RoutingData { routing_key: key, further_keys, headers };
        let cacheable = self.topology.route(vhost, exchange, &data, &mut self.route)?;
        targets.extend_from_slice(&self.route.queues);
        let (kept, traced) = (channel.transaction.is_some(), channel.traced);
        // With a route at hand nobody would ask whether the message is to be kept, or traced.
        if cacheable.0 && !kept && !traced {
            let route = &mut channel.route;
            route.version = version;
            route.exchange.clear();
            route.exchange.extend_from_slice(message.exchange);
            route.routing_key.clear();
            route.routing_key.extend_from_slice(key);
            route.queues.clear();
            route.queues.extend_from_slice(targets);
        }
        let route = &self.route;
        Ok(kept
            || traced
            || !route.histories.is_empty()
            || !route.replies.is_empty()
            || !route.delayed.is_empty())
    }

    /// Sends a message to its queues and to what is beside them, and traces it if its vhost is traced.
    #[cold]
    fn send_beside_owners<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        publish: &Publish<'_>,
        targets: &[QueueId],
    ) -> Result<Published, Refusal> {
        let channel = self.home.open_channel_mut(id);
        let (to, vhost, traced) = (address(channel), channel.vhost, channel.traced);
        let names = if traced { self.routed_names(publish, targets) } else { Vec::new() };
        let published = self.send_beside_queues(fx, id, publish, targets);
        if traced {
            self.trace_publish(fx, to, vhost, publish, &names);
        }
        published
    }

    /// Sends a message to its queues and to what is beside them: the histories of exchanges, channels that
    /// wait for a direct reply, and where it waits before it goes on. That of a transaction is kept.
    fn send_beside_queues<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        publish: &Publish<'_>,
        targets: &[QueueId],
    ) -> Result<Published, Refusal> {
        if self.home.open_channel_mut(id).transaction.is_some() {
            return self.keep_publish(id, publish, targets);
        }
        let remembered = self.take_remembered(publish);
        self.send_to_keepers(fx, remembered, RecordRef::View(publish.message));
        // Replies come from the default exchange, which no delayed one is bound to.
        Ok(match (self.route.replies.is_empty(), self.route.delayed.is_empty()) {
            (false, _) => self.send_replies(fx, id, publish, targets),
            (true, false) => self.send_delayed(fx, id, publish, targets),
            (true, true) => self.send_to_owners(fx, id, publish, targets),
        })
    }

    /// Sends a message to its queues, and to the delayed exchanges on its way.
    fn send_delayed<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        publish: &Publish<'_>,
        targets: &[QueueId],
    ) -> Published {
        self.route.delayed.sort_unstable();
        let owners = |queues: &[QueueId]| queues.chunk_by(|a, b| a.owner() == b.owner()).count();
        let (count, answers) =
            (targets.len() + self.route.delayed.len(), owners(targets) + owners(&self.route.delayed));
        let from = self.publisher(id, || answers);
        let record = RecordRef::View(publish.message);
        self.dispatch(fx, record, targets, publish.durability, publish.ttl_ms, Some(&from));
        self.dispatch_delayed(fx, record, publish.durability, Some(&from));
        Published::Routed(count as u32)
    }

    /// Sends a message to the delayed exchanges that its route has met. The time that it waits there is its
    /// time to live in the queues where it does; one of its own begins when it goes on.
    pub(super) fn dispatch_delayed<E: Effects>(
        &mut self,
        fx: &mut E,
        record: RecordRef<'_>,
        durability: Durability,
        from: Option<&Publisher>,
    ) {
        let delayed = std::mem::take(&mut self.route.delayed);
        self.dispatch(fx, record, &delayed, durability, Some(self.route.delay_ms), from);
    }

    #[inline(always)]
    fn send_to_owners<E: Effects>(
        &mut self,
        fx: &mut E,
        id: ChannelId,
        publish: &Publish<'_>,
        targets: &[QueueId],
    ) -> Published {
        let from = self.publisher(id, || targets.chunk_by(|a, b| a.owner() == b.owner()).count());
        let record = RecordRef::View(publish.message);
        self.dispatch(fx, record, targets, publish.durability, publish.ttl_ms, Some(&from));
        match targets.len() {
            0 => Published::Unroutable,
            count => Published::Routed(count as u32),
        }
    }

    /// Who publishes this, for those who answer: if the channel wants confirms, the publish is counted, and
    /// so many have to answer for it.
    #[inline(always)]
    pub(super) fn publisher(&mut self, id: ChannelId, answers: impl FnOnce() -> usize) -> Publisher {
        let mut from = Publisher { home: self.id, channel: id, number: 0 };
        if let Some(confirms) = self.home.open_channel_mut(id).confirms.as_deref_mut() {
            from.number = confirms.next();
            if confirms.publish(answers()) {
                self.home.confirming.push(id);
            }
        }
        from
    }

    /// Sends a message to the owners of its queues; those of one owner stand side by side.
    #[inline(always)]
    pub(super) fn dispatch<E: Effects>(
        &mut self,
        fx: &mut E,
        record: RecordRef<'_>,
        targets: &[QueueId],
        durability: Durability,
        ttl_ms: Option<u64>,
        from: Option<&Publisher>,
    ) {
        let home = self.id;
        for queues in targets.chunk_by(|a, b| a.owner() == b.owner()) {
            let owner = queues[0].owner();
            if owner == home {
                let mut out = Outward { shard: home, fx, home: &mut self.home };
                self.owner.admit(&mut out, record, queues, durability, ttl_ms, from);
            } else {
                let batch = fx.outgoing(owner, Lane::Forward);
                let payload = batch.add_record(record);
                let queues = batch.add_queues(queues);
                let from = from.copied();
                batch.push(PeerMessage::Publish { payload, queues, durability, ttl_ms, from });
            }
        }
    }
}
