//! The path of a message through one shard, with neither sockets nor threads: publish frames in, route, enter, claim,
//! deliver frames out, ack frames in.

use lepus::amqp::trial::{Trial, frame, method};

/// Messages that come with one read, and are acked with one `multiple`.
pub const PER_TURN: usize = 100;

/// What clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The consumer has a prefetch of 500 and acks.
    Ack,
    /// The consumer does not ack.
    NoAck,
    /// As `Ack`, with persistent messages in a durable queue, and confirms.
    Confirm,
}

/// A publisher, a queue and a consumer.
pub struct Path {
    broker: Trial,
    publisher: u32,
    consumer: u32,
    publishes: Vec<u8>,
    acks: bool,
    tag: u64,
}

impl Path {
    /// All is declared, and nothing published yet.
    pub fn new(mode: Mode, body_bytes: usize) -> Path {
        let (acks, confirms) = (mode != Mode::NoAck, mode == Mode::Confirm);
        let mut broker = Trial::with_budgets(u64::MAX, 1 << 28);
        let (publisher, consumer) = (broker.open(), broker.open());
        let durable = if confirms { 2 } else { 0 };
        broker.send(publisher, &method(1, 50, 10, &[0, 0, 1, b'q', durable, 0, 0, 0, 0]));
        broker.turn();
        if confirms {
            broker.send(publisher, &method(1, 85, 10, &[0]));
        }
        broker.send(consumer, &method(1, 60, 10, &[0, 0, 0, 0, 1, 244, 0]));
        let no_ack = if acks { 0 } else { 2 };
        broker.send(consumer, &method(1, 60, 20, &[0, 0, 1, b'q', 1, b'c', no_ack, 0, 0, 0, 0]));
        broker.discard(publisher);
        broker.discard(consumer);
        let publishes = publish(body_bytes, confirms).repeat(PER_TURN);
        Path { broker, publisher, consumer, publishes, acks, tag: 0 }
    }

    /// Publishes, delivers and settles `turns * PER_TURN` messages. Returns how many bytes the consumer got.
    #[inline(never)]
    pub fn run(&mut self, turns: usize) -> usize {
        let mut delivered_bytes = 0;
        let mut ack = method(1, 60, 80, &[0, 0, 0, 0, 0, 0, 0, 0, 1]);
        for _ in 0..turns {
            self.broker.send(self.publisher, &self.publishes);
            self.broker.discard(self.publisher);
            delivered_bytes += self.broker.discard(self.consumer);
            self.tag += PER_TURN as u64;
            if self.acks {
                ack[11..19].copy_from_slice(&self.tag.to_be_bytes());
                self.broker.send(self.consumer, &ack);
            }
        }
        delivered_bytes
    }
}

/// The frames of a publish to the queue `q`.
pub fn publish(body_bytes: usize, persistent: bool) -> Vec<u8> {
    let mut publish = method(1, 60, 40, b"\0\0\0\x01q\0");
    let mut header = vec![0, 60, 0, 0];
    header.extend_from_slice(&(body_bytes as u64).to_be_bytes());
    header.extend_from_slice(if persistent { &[0x10, 0, 2][..] } else { &[0, 0][..] });
    publish.extend_from_slice(&frame(2, 1, &header));
    publish.extend_from_slice(&frame(3, 1, &vec![b'x'; body_bytes]));
    publish
}
