//! Where dead letters go: routed on this shard's topology like any publish, with two differences. An
//! exchange that does not exist takes nothing, an internal one does; and a queue that the message came
//! through by itself before does not get it again.

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
        let addressed = self.address_letter(fx, &letter, &mut targets);
        let record = RecordRef::Stored(&addressed.record);
        if !letter.to.at_least_once {
            self.dispatch(fx, record, &targets, addressed.durability, None, None);
            self.owner.end_dead_letter(fx, &letter);
        } else if targets.is_empty() && addressed.led_somewhere {
            // It goes in circles: trying again would not change that.
            self.owner.end_dead_letter(fx, &letter);
        } else {
            let publishers = self.owner.keep_dead_letter(fx, self.id, letter, &mut targets);
            for (target, publisher) in targets.iter().zip(&publishers) {
                let target = std::slice::from_ref(target);
                self.dispatch(fx, record, target, addressed.durability, None, Some(publisher));
            }
        }
        self.targets = targets;
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
        Addressed { record: Record::of(&message), durability, led_somewhere }
    }
}
