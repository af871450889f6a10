//! A protocol of lines, small enough to test the server with: no AMQP, but the real kernel.
//!
//! `declare Q`, `consume Q`, `publish Q BODY`, `flood N` (N bytes come), `bye` (answered `goodbye`,
//! then the connection ends), `hold` / `go` (input is not wanted until some connection says `go`),
//! `stall` (the shard's thread stands still until the test lets it go).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};

use lepus_shards::ledger::Returns;
use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{
    Address, DeadLetterProperties, Death, FrontEnd, MessageProperty, NewConnection, NewConsumer, NoHeaders,
    PropertyFormat, Publish, Reply, Request, Shard, Traced, Verdict, WaitedProperties,
};
use lepus_shards::topology::Operation;
use lepus_shards::{Arguments, ChannelId, ConnectionId, ConsumerId, DeliveryTag, Refusal, Value, VhostId};

use crate::server::{Disposition, Protocol, Surroundings};

#[derive(Default)]
struct Line {
    taken: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    names: Option<(ConnectionId, ChannelId)>,
    held: bool,
    ending: bool,
    /// Deliveries to be accepted.
    unacked: Vec<DeliveryTag>,
}

/// Where a test holds a whole shard up.
pub struct Gate {
    pub entered: mpsc::Sender<()>,
    pub released: mpsc::Receiver<()>,
}

pub struct Lines {
    lines: Vec<Line>,
    dirty: Vec<u32>,
    gate: Arc<Mutex<Gate>>,
}

impl Lines {
    pub fn new(gate: Arc<Mutex<Gate>>) -> Lines {
        Lines { lines: Vec::new(), dirty: Vec::new(), gate }
    }

    fn say(&mut self, slot: u32, text: &str) {
        self.lines[slot as usize].output.extend_from_slice(text.as_bytes());
        self.dirty.push(slot);
    }
}

fn command(shard: &mut Shard, around: &mut Surroundings<Lines>, slot: u32, line: &str) {
    let (connection, channel) = *around.front.lines[slot as usize].names.get_or_insert_with(|| {
        let connection = shard.open_connection(slot, NewConnection { vhost: VhostId(0) });
        (connection, shard.open_channel(connection, 1))
    });
    assert_eq!(connection.slot, slot);
    if around.front.lines[slot as usize].ending {
        return;
    }
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    match words[..] {
        ["declare", name] => {
            let operation = Operation::DeclareQueue {
                vhost: VhostId(0),
                name: name.to_owned(),
                passive: false,
                durable: true,
                exclusive: false,
                auto_delete: false,
                arguments: Arguments::new(),
            };
            shard.request(around, channel, Request::Topology(operation));
        }
        ["consume", name] => {
            let id = shard.new_consumer_id();
            let consumer = NewConsumer { id, no_ack: false, exclusive: false, priority: 0 };
            let queue = name.to_owned();
            shard.request(around, channel, Request::Consume { vhost: VhostId(0), queue, consumer });
        }
        ["publish", queue, body] => {
            let message = MessageView {
                exchange: b"",
                routing_key: queue.as_bytes(),
                properties: b"",
                body: body.as_bytes(),
            };
            let publish = Publish {
                message,
                durability: Durability::Fsync,
                mandatory: false,
                ttl_ms: None,
                further_keys: &[],
                headers: &NoHeaders,
            };
            shard.publish(around, channel, &publish).unwrap();
        }
        ["flood", bytes] => around.front.say(slot, &"x".repeat(bytes.parse().unwrap())),
        ["bye"] => {
            around.front.say(slot, "goodbye\n");
            around.front.lines[slot as usize].ending = true;
        }
        ["stall"] => {
            let gate = around.front.gate.lock().unwrap();
            gate.entered.send(()).unwrap();
            gate.released.recv().unwrap();
        }
        ["hold"] => {
            around.front.lines[slot as usize].held = true;
            around.front.say(slot, "held\n");
        }
        ["go"] => around.front.lines.iter_mut().for_each(|line| line.held = false),
        _ => panic!("{line}"),
    }
}

impl Protocol for Lines {
    fn accept(&mut self, _peer: SocketAddr, _local: SocketAddr, _now_ms: u64) -> u32 {
        let free = self.lines.iter().position(|line| !line.taken);
        let slot = free.unwrap_or_else(|| {
            self.lines.push(Line::default());
            self.lines.len() - 1
        });
        self.lines[slot] = Line { taken: true, ..Line::default() };
        slot as u32
    }

    fn receive(shard: &mut Shard, around: &mut Surroundings<Lines>, slot: u32, bytes: &[u8]) {
        around.front.lines[slot as usize].input.extend_from_slice(bytes);
        let input = std::mem::take(&mut around.front.lines[slot as usize].input);
        let complete = input.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in std::str::from_utf8(&input[..complete]).unwrap().lines() {
            command(shard, around, slot, line);
        }
        around.front.lines[slot as usize].input = input[complete..].to_vec();
    }

    fn resume(shard: &mut Shard, around: &mut Surroundings<Lines>) {
        for index in 0..around.front.lines.len() {
            let Some((_, channel)) = around.front.lines[index].names else { continue };
            for tag in std::mem::take(&mut around.front.lines[index].unacked) {
                shard.settle(around, channel, tag, false, Verdict::Accept).unwrap();
            }
        }
    }

    fn disconnected(shard: &mut Shard, around: &mut Surroundings<Lines>, slot: u32) {
        let line = std::mem::take(&mut around.front.lines[slot as usize]);
        if let Some((connection, _)) = line.names {
            shard.close_connection(around, connection);
        }
    }

    fn tick(_shard: &mut Shard, _around: &mut Surroundings<Lines>, _now_ms: u64) {}

    fn shutdown(_shard: &mut Shard, around: &mut Surroundings<Lines>, reason: &str) {
        for slot in 0..around.front.lines.len() {
            if around.front.lines[slot].taken {
                around.front.say(slot as u32, &format!("{reason}\n"));
                around.front.lines[slot].ending = true;
            }
        }
    }

    fn pending(&mut self, slot: u32) -> &[u8] {
        &self.lines[slot as usize].output
    }

    fn written(&mut self, slot: u32, count: usize) {
        self.lines[slot as usize].output.drain(..count);
    }

    fn next_dirty(&mut self) -> Option<u32> {
        self.dirty.pop()
    }

    fn disposition(&self, slot: u32) -> Disposition {
        if self.lines[slot as usize].ending { Disposition::CloseWhenWritten } else { Disposition::Keep }
    }

    fn wants_input(&self, slot: u32) -> bool {
        !self.lines[slot as usize].held
    }

    fn connection_id(&self, slot: u32) -> Option<ConnectionId> {
        self.lines[slot as usize].names.map(|(connection, _)| connection)
    }
}

/// Lines have no properties.
impl PropertyFormat for Lines {
    fn headers(&self, _: &[u8]) -> Arguments {
        Arguments::new()
    }

    fn property(&self, _: &[u8], _: MessageProperty) -> Option<Value> {
        None
    }

    fn further_keys(&self, _: &[u8]) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn priority(&self, _: &[u8]) -> u8 {
        0
    }

    fn dead_letter(&self, message: &MessageView<'_>, _: &Death<'_>) -> DeadLetterProperties {
        let properties = message.properties.to_vec();
        DeadLetterProperties { properties, persistent: false, circled: Vec::new() }
    }

    fn waited(&self, properties: &[u8]) -> WaitedProperties {
        WaitedProperties { properties: properties.to_vec(), persistent: false, ttl_ms: None }
    }

    fn with_returns(&self, properties: &[u8], _: Returns) -> Vec<u8> {
        properties.to_vec()
    }
}

impl FrontEnd for Lines {
    fn deliver(
        &mut self,
        to: Address,
        _consumer: ConsumerId,
        tag: DeliveryTag,
        _redelivered: bool,
        message: MessageView<'_>,
    ) {
        let slot = to.connection.slot;
        self.lines[slot as usize].output.extend_from_slice(message.body);
        self.say(slot, "\n");
        self.lines[slot as usize].unacked.push(tag);
    }

    fn got(&mut self, _: Address, _: DeliveryTag, _: bool, _: u64, _: MessageView<'_>) {
        unreachable!("nothing is got");
    }

    fn reply(&mut self, to: Address, reply: Reply) {
        let text = match reply {
            Reply::QueueDeclared { name, .. } => format!("declared {name}\n"),
            Reply::Consuming { .. } => "consuming\n".to_owned(),
            other => format!("{other:?}\n"),
        };
        self.say(to.connection.slot, &text);
    }

    fn confirm(&mut self, _: Address, _: u64, _: u64, _: bool) {}

    fn returned(&mut self, _: Address, _: MessageView<'_>) {
        unreachable!("nothing is mandatory");
    }

    fn consumer_cancelled(&mut self, _: Address, _: ConsumerId) {}

    fn channel_failed(&mut self, _: Address, _: Refusal) {}

    fn publishing_held(&mut self, _: Address, _: bool) {}

    fn traced(&self, _: &MessageView<'_>, _: &Traced<'_>) -> Vec<u8> {
        Vec::new()
    }

    fn publishing_blocked(&mut self, _: bool) {}
}
