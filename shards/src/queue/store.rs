//! The messages that wait on a shard in memory, each once, with a count of the queues it is in; and what
//! those cost that are paged out.
//!
//! Runs on the owner; the counts are plain integers. A record keeps routing data, properties and body
//! in wire form, in one piece:
//!
//! ```text
//! exchange length u8 | routing key length u8 | properties length u32 LE | exchange | routing key | properties | body
//! ```

use crate::limits::SHARED_BODY_BYTES_MIN;
use crate::message::MessageView;
use crate::shard::LogSequence;
use bytes::Bytes;

use super::slots::Slots;

const HEAD_BYTES: usize = 6;

/// What a stored message costs beside its bytes: its slot here, the allocator's share, its place in the log.
const OVERHEAD_BYTES: usize = 72;

/// What it costs in each queue: an entry, and its share of the block.
const ENTRY_BYTES: u64 = 13;

/// What a message costs that is paged out, beside its entry: its place in the log.
const PLACE_BYTES: u64 = 9;

/// Bytes of the record of `message`.
pub fn record_size(message: &MessageView<'_>) -> usize {
    HEAD_BYTES + message.size()
}

/// The first bytes of the record of `message`; its parts follow, in the order of the view's fields.
pub fn record_head(message: &MessageView<'_>) -> [u8; HEAD_BYTES] {
    let exchange = u8::try_from(message.exchange.len()).expect("an exchange name has at most 255 bytes");
    let routing_key = u8::try_from(message.routing_key.len()).expect("a routing key has at most 255 bytes");
    let properties = u32::try_from(message.properties.len()).expect("properties fit a frame");
    let [a, b, c, d] = properties.to_le_bytes();
    [exchange, routing_key, a, b, c, d]
}

/// Appends the record of `message` to `out`.
pub fn encode_record(message: &MessageView<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&record_head(message));
    out.extend_from_slice(message.exchange);
    out.extend_from_slice(message.routing_key);
    out.extend_from_slice(message.properties);
    out.extend_from_slice(message.body);
}

/// The message in a record that [`encode_record`] wrote.
pub fn view_record(record: &[u8]) -> MessageView<'_> {
    let (head, rest) = record.split_at(HEAD_BYTES);
    let (exchange, rest) = rest.split_at(usize::from(head[0]));
    let (routing_key, rest) = rest.split_at(usize::from(head[1]));
    let properties = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
    let (properties, body) = rest.split_at(properties);
    MessageView { exchange, routing_key, properties, body }
}

/// A record that owns its bytes.
#[derive(Clone, Debug)]
pub enum Record {
    /// Small: copied when it travels to another shard. The one allocation that a waiting message has;
    /// made and freed on the same thread.
    Own(Box<[u8]>),
    /// Large: shared with other shards, counted. At this size a copy costs more than an atomic.
    Shared(Bytes),
}

impl Record {
    /// The record of a borrowed message.
    pub fn of(message: &MessageView<'_>) -> Record {
        let mut bytes = Vec::with_capacity(record_size(message));
        encode_record(message, &mut bytes);
        if bytes.len() >= SHARED_BODY_BYTES_MIN {
            Record::Shared(Bytes::from(bytes))
        } else {
            Record::Own(bytes.into_boxed_slice())
        }
    }

    /// The record that these bytes are.
    pub fn from_bytes(bytes: Box<[u8]>) -> Record {
        match bytes.len() >= SHARED_BODY_BYTES_MIN {
            true => Record::Shared(Bytes::from(bytes)),
            false => Record::Own(bytes),
        }
    }

    /// The record of a borrowed message in shared form, if it is large enough for that.
    pub fn of_large(message: &MessageView<'_>) -> Option<Bytes> {
        match record_size(message) >= SHARED_BODY_BYTES_MIN {
            true => match Record::of(message) {
                Record::Shared(bytes) => Some(bytes),
                Record::Own(_) => None,
            },
            false => None,
        }
    }

    /// All bytes of the record.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Record::Own(bytes) => bytes,
            Record::Shared(bytes) => bytes,
        }
    }

    /// The message in it.
    pub fn view(&self) -> MessageView<'_> {
        view_record(self.bytes())
    }
}

struct Stored {
    record: Record,
    /// Queues of this shard that it is in.
    references: u32,
    /// Its name in the log; 0 if it is not there.
    log: LogSequence,
    /// It was in the log for this queue alone when it came into memory: whatever the queue is, the log is
    /// to be told.
    paged_in: bool,
    /// It is on its way to the disk for some queue, to be out of memory.
    spilling: bool,
}

/// What a queue that lets go of a message has to tell the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InLog {
    /// The message's name there; 0 if it is not there.
    pub name: LogSequence,
    /// The log has it for the queue, durable or not.
    pub for_any_queue: bool,
}

/// The messages of a shard.
#[derive(Default)]
pub struct MessageStore {
    slots: Slots<Stored>,
    bytes: u64,
    /// Entries of queues that are paged out.
    paged_out: u64,
}

impl MessageStore {
    /// Bytes that all messages take, stored and paged out, overhead included.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.paged_out * (ENTRY_BYTES + PLACE_BYTES)
    }

    /// How many messages are stored.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0
    }

    /// Stores a record that one queue has; see [`Self::add_reference`].
    ///
    /// # Panics
    /// Beyond 2^32 messages on one shard.
    pub fn insert(&mut self, record: Record) -> u32 {
        self.bytes += (record.bytes().len() + OVERHEAD_BYTES) as u64 + ENTRY_BYTES;
        self.slots.insert(Stored { record, references: 1, log: 0, paged_in: false, spilling: false })
    }

    /// One more queue has the message.
    pub fn add_reference(&mut self, message: u32) {
        self.slots[message].references += 1;
        self.bytes += ENTRY_BYTES;
    }

    /// One queue less has the message; it goes with the last one. Gives what the log has of it.
    pub fn release(&mut self, message: u32) -> InLog {
        let stored = &mut self.slots[message];
        let in_log = InLog { name: stored.log, for_any_queue: stored.paged_in };
        stored.references = stored.references.checked_sub(1).expect("a released message was referenced");
        self.bytes -= ENTRY_BYTES;
        if stored.references == 0 {
            self.bytes -= (stored.record.bytes().len() + OVERHEAD_BYTES) as u64;
            self.slots.remove(message);
        }
        in_log
    }

    /// The message is on its way to the disk to be out of memory.
    pub fn is_spilling(&self, message: u32) -> bool {
        self.slots[message].spilling
    }

    /// Begins or ends that. One that is gone meanwhile is left alone.
    pub fn set_spilling(&mut self, message: u32, spilling: bool) {
        if let Some(stored) = self.slots.get_mut(message) {
            stored.spilling = spilling;
        }
    }

    /// A queue has the message in the log only, from now on.
    pub fn page_out(&mut self, message: u32) {
        self.release(message);
        self.paged_out += 1;
    }

    /// A queue has a message in the log only: one that was there when the shard started.
    pub fn add_paged_out(&mut self) {
        self.paged_out += 1;
    }

    /// A queue that had a message in the log only lets go of it.
    pub fn release_paged_out(&mut self) {
        self.paged_out -= 1;
    }

    /// Stores the record of a message that one queue had in the log only.
    pub fn page_in(&mut self, record: Record, log: LogSequence) -> u32 {
        self.paged_out -= 1;
        let message = self.insert(record);
        let stored = &mut self.slots[message];
        (stored.log, stored.paged_in) = (log, true);
        message
    }

    /// What the log has of a stored message.
    pub fn in_log(&self, message: u32) -> InLog {
        let stored = &self.slots[message];
        InLog { name: stored.log, for_any_queue: stored.paged_in }
    }

    /// The record of a stored message.
    pub fn record(&self, message: u32) -> &Record {
        &self.slots[message].record
    }

    /// Bytes of a stored message's body.
    pub fn body_bytes(&self, message: u32) -> u64 {
        self.record(message).view().body.len() as u64
    }

    /// References of all messages together, paged out ones too, by a full count. For tests and the simulator.
    pub fn references(&self) -> u64 {
        self.slots.iter().map(|stored| u64::from(stored.references)).sum::<u64>() + self.paged_out
    }

    /// The message is in the log.
    pub fn set_log(&mut self, message: u32, log: LogSequence) {
        self.slots[message].log = log;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_gives_back_the_message(
            exchange in prop::collection::vec(any::<u8>(), 0..=255),
            routing_key in prop::collection::vec(any::<u8>(), 0..=255),
            properties in prop::collection::vec(any::<u8>(), 0..2_000),
            body in prop::collection::vec(any::<u8>(), 0..40_000),
        ) {
            let message = MessageView { exchange: &exchange, routing_key: &routing_key, properties: &properties, body: &body };
            let record = Record::of(&message);
            prop_assert_eq!(record.view(), message);
            prop_assert_eq!(record.bytes().len(), record_size(&message));
        }
    }

    #[test]
    fn a_message_goes_with_its_last_queue() {
        let mut store = MessageStore::default();
        let message = MessageView { exchange: b"", routing_key: b"q", properties: &[0, 0], body: b"hello" };
        let key = store.insert(Record::of(&message));
        store.add_reference(key);
        store.release(key);
        assert_eq!(store.record(key).view(), message);
        store.release(key);
        assert_eq!((store.len(), store.bytes()), (0, 0));
    }
}
