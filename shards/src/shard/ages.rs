//! How long deliveries have been unacked, and what becomes of a channel that keeps one for too long.
//!
//! Runs on the home shard of the channel. A delivery carries no time of its own. Instead, each channel
//! notes now and then which tag it has come to: what has a lower one is at least as old as that note. So
//! a delivery costs nothing, an idle channel costs a look each second, and a timeout strikes late by a
//! 64th of it and a second more, never early.

use std::collections::VecDeque;

use super::effects::Effects;
use super::home::{Channel, ChannelState};
use super::requests::address;
use super::{Refusal, RefusalKind, Shard};
use crate::topology::Topology;
use crate::{ChannelId, DeliveryTag, QueueId};

/// How often channels are looked at, in milliseconds.
const LOOK_MS: u64 = 1_000;
/// Notes for one timeout's time.
const NOTES: u64 = 64;

/// Tags up to this one were given by that time.
#[derive(Clone, Copy, Debug)]
struct Note {
    tag: DeliveryTag,
    at_ms: u64,
}

/// The notes of a channel.
#[derive(Default, Debug)]
pub(super) struct Ages {
    notes: VecDeque<Note>,
    /// The shortest timeout of the queues that the channel takes from, in milliseconds; 0 is none.
    shortest_ms: u64,
}

impl Ages {
    /// Notes the last tag, unless there is no other one or the last note is young.
    fn note(&mut self, tag: DeliveryTag, now_ms: u64) {
        let is_due = self.notes.back().is_none_or(|last| {
            last.tag < tag && now_ms.saturating_sub(last.at_ms) >= self.shortest_ms / NOTES
        });
        if is_due {
            self.notes.push_back(Note { tag, at_ms: now_ms });
        }
    }

    /// How long this tag has been unacked, as far as is known.
    fn age_ms(&self, tag: DeliveryTag, now_ms: u64) -> u64 {
        let after = self.notes.partition_point(|note| note.tag < tag);
        self.notes.get(after).map_or(0, |note| now_ms.saturating_sub(note.at_ms))
    }
}

/// How long deliveries of this queue may stay unacked, in milliseconds; 0 is for ever.
fn timeout_ms(topology: &Topology, queue: QueueId, default_ms: u64) -> u64 {
    let info = topology.queue_by_id(queue);
    info.and_then(|info| info.consumer_timeout_ms()).unwrap_or(default_ms)
}

/// The timeout of the first delivery of the channel that is past it.
fn overdue(channel: &Channel, topology: &Topology, default_ms: u64, now_ms: u64) -> Option<u64> {
    for (tag, held) in channel.unacked.held() {
        let age_ms = channel.ages.age_ms(tag, now_ms);
        if age_ms < channel.ages.shortest_ms {
            // Later ones are no older.
            return None;
        }
        let timeout_ms = timeout_ms(topology, held.queue, default_ms);
        if timeout_ms > 0 && age_ms >= timeout_ms {
            return Some(timeout_ms);
        }
    }
    None
}

impl Shard {
    /// The channel takes messages from this queue from now on.
    pub(super) fn note_timeout(&mut self, id: ChannelId, queue: QueueId) {
        let timeout_ms = timeout_ms(&self.topology, queue, self.consumer_timeout_ms);
        let ages = &mut self.home.open_channel_mut(id).ages;
        if timeout_ms > 0 && (ages.shortest_ms == 0 || timeout_ms < ages.shortest_ms) {
            ages.shortest_ms = timeout_ms;
        }
    }

    /// Looks at all channels about once a second, and reports those that keep a delivery for too long.
    pub(super) fn age_deliveries<E: Effects>(&mut self, fx: &mut E) {
        let now_ms = self.now_ms;
        if now_ms < self.next_ageing_ms {
            return;
        }
        self.next_ageing_ms = now_ms + LOOK_MS;
        for channel in self.home.channels_mut() {
            if channel.state != ChannelState::Open || channel.ages.shortest_ms == 0 {
                continue;
            }
            let Some((oldest, _)) = channel.unacked.held().next() else {
                channel.ages.notes.clear();
                continue;
            };
            let (ages, last) = (&mut channel.ages, channel.unacked.last_tag());
            ages.note(last, now_ms);
            while ages.notes.front().is_some_and(|note| note.tag < oldest) {
                ages.notes.pop_front();
            }
            if let Some(timeout_ms) = overdue(channel, &self.topology, self.consumer_timeout_ms, now_ms) {
                let text = format!(
                    "delivery acknowledgement on channel {} timed out. Timeout value used: {timeout_ms} ms. This \
                     timeout value can be configured, see consumers doc guide to learn more",
                    channel.number
                );
                fx.channel_failed(address(channel), Refusal::new(RefusalKind::PreconditionFailed, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_as_old_as_the_first_note_that_covers_it() {
        let mut ages = Ages { shortest_ms: 6_400, ..Ages::default() };
        ages.note(DeliveryTag(3), 1_000);
        ages.note(DeliveryTag(3), 5_000);
        ages.note(DeliveryTag(4), 1_050);
        ages.note(DeliveryTag(7), 6_000);
        let age = |tag| ages.age_ms(DeliveryTag(tag), 10_000);
        assert_eq!([age(1), age(3), age(4), age(7), age(8)], [9_000, 9_000, 4_000, 4_000, 0]);
        assert_eq!(ages.notes.len(), 2, "nothing new, or too soon");
    }
}
