//! Where dead letters go: routed on this shard's topology like any publish, with two differences. An
//! exchange that does not exist takes nothing, an internal one does; and a queue that the message came
//! through by itself before does not get it again.
//!
//! What has waited in a delayed exchange goes the same way, but as it was published, and if it leads nowhere
//! it ends there.

use super::Shard;
use super::batch::RecordRef;
use super::effects::Effects;
use super::owner::DeadLetter;
use super::properties::{Death, StoredHeaders};
use crate::QueueId;
use crate::message::{Durability, MessageView};
use crate::queue::Record;
use crate::topology::RoutingData;

/// A dead letter as it is published.
struct Addressed {
    record: Record,
    durability: Durability,
    ttl_ms: Option<u64>,
    /// It had destinations before those were taken out that it came from.
    led_somewhere: bool,
}

impl Shard {
    /// Publishes what queues have given up in this step. False if there was nothing.
    pub(super) fn publish_dead_letters<E: Effects>(&mut self, fx: &mut E) -> bool {
        let Some(first) = self.owner.next_dead_letter() else { return false };
        self.publish_dead_letter(fx, first);
        while let Some(letter) = self.owner.next_dead_letter() {
            self.publish_dead_letter(fx, letter);
        }
        true
    }

    fn publish_dead_letter<E: Effects>(&mut self, fx: &mut E, letter: DeadLetter) {
        let mut targets = std::mem::take(&mut self.targets);
        let addressed = match letter.to.has_waited {
            false => self.address_letter(fx, &letter, &mut targets),
            true => self.address_waited(fx, &letter, &mut targets),
        };
        let record = RecordRef::Stored(&addressed.record);
        if !letter.to.at_least_once {
            self.dispatch(fx, record, &targets, addressed.durability, addressed.ttl_ms, None);
            self.dispatch_delayed(fx, record, addressed.durability, None);
            self.owner.end_dead_letter(fx, &letter);
        } else if targets.is_empty()
            && self.route.delayed.is_empty()
            && (addressed.led_somewhere || letter.to.has_waited)
        {
            // It goes in circles: trying again would not change that.
            self.owner.end_dead_letter(fx, &letter);
        } else {
            let (delayed, delay_ms) = (std::mem::take(&mut self.route.delayed), self.route.delay_ms);
            targets.extend_from_slice(&delayed);
            let publishers = self.owner.keep_dead_letter(fx, self.id, letter, &mut targets);
            for (target, publisher) in targets.iter().zip(&publishers) {
                let ttl_ms = if delayed.contains(target) { Some(delay_ms) } else { addressed.ttl_ms };
                let target = std::slice::from_ref(target);
                self.dispatch(fx, record, target, addressed.durability, ttl_ms, Some(publisher));
            }
        }
        self.targets = targets;
    }

    /// Makes the message ready to go on after its wait, and leaves the queues that it goes to in `targets`.
    fn address_waited<E: Effects>(
        &mut self,
        fx: &mut E,
        letter: &DeadLetter,
        targets: &mut Vec<QueueId>,
    ) -> Addressed {
        let message = self.owner.dead_letter_record(letter).view();
        let waited = fx.waited(message.properties);
        let message = MessageView { properties: &waited.properties, ..message };
        let headers = StoredHeaders { format: fx, properties: &waited.properties };
        let further_keys = fx.further_keys(&waited.properties);
        let further_keys: Vec<&[u8]> = further_keys.iter().map(Vec::as_slice).collect();
        let data =
            RoutingData { routing_key: message.routing_key, further_keys: &further_keys, headers: &headers };
        self.topology.route_inside(letter.source.vhost, &letter.to.exchange, &data, &mut self.route);
        targets.clear();
        targets.extend_from_slice(&self.route.queues);
        let durability = if waited.persistent { Durability::Fsync } else { Durability::Memory };
        let (record, led_somewhere) = (Record::of(&message), !targets.is_empty());
        Addressed { record, durability, ttl_ms: waited.ttl_ms, led_somewhere }
    }

    /// Makes the dead letter out of the message, and leaves the queues that it goes to in `targets`.
    fn address_letter<E: Effects>(
        &mut self,
        fx: &mut E,
        letter: &DeadLetter,
        targets: &mut Vec<QueueId>,
    ) -> Addressed {
        let message = self.owner.dead_letter_record(letter).view();
        let (source, to) = (&letter.source, &letter.to);
        let dead = fx.dead_letter(&message, &Death { queue: &source.name, reason: letter.reason });
        let message = MessageView {
            exchange: to.exchange.as_bytes(),
            routing_key: to.routing_key.as_deref().map_or(message.routing_key, str::as_bytes),
            properties: &dead.properties,
            body: message.body,
        };
        let headers = StoredHeaders { format: fx, properties: &dead.properties };
        // A routing key that the queue gives takes the place of all that the message had.
        let further_keys = match to.routing_key {
            Some(_) => Vec::new(),
            None => fx.further_keys(&dead.properties),
        };
        let further_keys: Vec<&[u8]> = further_keys.iter().map(Vec::as_slice).collect();
        let (routing_key, further_keys) = (message.routing_key, &*further_keys);
        let data = RoutingData { routing_key, further_keys, headers: &headers };
        self.topology.route_inside(source.vhost, &to.exchange, &data, &mut self.route);
        targets.clear();
        targets.extend_from_slice(&self.route.queues);
        let led_somewhere = !targets.is_empty();
        targets.retain(|&queue| {
            let queue = self.topology.queue_by_id(queue).expect("a route leads to queues that exist");
            !dead.circled.iter().any(|name| **name == *queue.name)
        });
        // The properties lie in front of the body: a new record is a copy of both.
        let durability = if dead.persistent { Durability::Fsync } else { Durability::Memory };
        Addressed { record: Record::of(&message), durability, ttl_ms: None, led_somewhere }
    }
}
