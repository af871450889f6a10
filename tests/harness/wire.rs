//! A blocking AMQP client that hides nothing: it writes whatever bytes it is told to, and gives back every
//! method, close code and property as it came.
//!
//! Contents are put together per channel; an [`Event`] that somebody waits past is kept for whoever asks next.
//! Every wait ends after [`PATIENCE`] with a panic: a broker that hangs fails the test.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub use crate::frames::*;
use crate::limits::PATIENCE;
use crate::method::{Arguments, Method, Properties, Reader};

/// What a client offers while it logs in.
#[derive(Clone, Debug)]
pub struct Login {
    pub mechanism: String,
    pub response: Vec<u8>,
    pub vhost: String,
    /// 0 takes what the broker offers.
    pub channel_max: u16,
    /// 0 takes what the broker offers.
    pub frame_max: u32,
    /// Seconds; 0 asks for none.
    pub heartbeat: u16,
    /// Whether all capabilities are declared.
    pub capabilities: bool,
}

impl Default for Login {
    fn default() -> Login {
        Login {
            mechanism: "PLAIN".to_owned(),
            response: b"\0guest\0guest".to_vec(),
            vhost: "/".to_owned(),
            channel_max: 0,
            frame_max: 0,
            heartbeat: 0,
            capabilities: true,
        }
    }
}

/// One frame, its end byte checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub channel: u16,
    pub payload: Vec<u8>,
}

/// How the broker closes a channel or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    /// 0 for the connection.
    pub channel: u16,
    pub code: u16,
    pub text: String,
    /// Class and method id of what failed.
    pub ids: (u16, u16),
}

/// A message as it came by deliver, get-ok or return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub channel: u16,
    /// Empty for get-ok and return.
    pub consumer: String,
    /// 0 for return.
    pub tag: u64,
    pub redelivered: bool,
    pub exchange: String,
    pub routing_key: String,
    /// Messages left, in get-ok.
    pub left: u32,
    /// Reply code and text of a return.
    pub reply: Option<(u16, String)>,
    pub properties: Properties,
    pub body: Vec<u8>,
}

/// What the broker has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Deliver(Delivery),
    GetOk(Delivery),
    Return(Delivery),
    /// basic.ack: tag, multiple.
    Ack(u16, u64, bool),
    /// basic.nack: tag, multiple.
    Nack(u16, u64, bool),
    /// channel.close or connection.close.
    Close(Close),
    /// Any other method: channel, class and method id, arguments.
    Method(u16, (u16, u16), Reader),
    /// A heartbeat.
    Heartbeat,
    /// The broker has closed the socket.
    End,
}

/// A connection and what has arrived on it.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
    /// How much of it has been taken: it is moved up once a read, and not once a frame.
    taken: usize,
    contents: HashMap<u16, Content>,
    kept: VecDeque<Event>,
    /// As negotiated.
    pub frame_max: u32,
    /// As the broker offered: channel_max, frame_max, heartbeat.
    pub offered: (u16, u32, u16),
    /// As it came in connection.start.
    pub server_properties: Vec<u8>,
}

/// A content on its way in.
#[derive(Debug)]
struct Content {
    ids: (u16, u16),
    arguments: Reader,
    /// Size and properties, once the header is here.
    header: Option<(usize, Properties)>,
    body: Vec<u8>,
}

impl Wire {
    /// A socket on which nothing has been said.
    pub fn raw(address: SocketAddr) -> Wire {
        let stream = TcpStream::connect(address).expect("the broker accepts connections");
        stream.set_nodelay(true).expect("a fresh socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a fresh socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a fresh socket");
        Wire {
            stream,
            input: Vec::new(),
            taken: 0,
            contents: HashMap::new(),
            kept: VecDeque::new(),
            frame_max: 4096,
            offered: (0, 0, 0),
            server_properties: Vec::new(),
        }
    }

    /// A connection that is logged in.
    pub fn connect(address: SocketAddr) -> Wire {
        match Wire::log_in(address, &Login::default()) {
            Ok(wire) => wire,
            Err(event) => panic!("the broker did not let us in: {event:?}"),
        }
    }

    /// Logs in; what came instead of open-ok when it is not let in.
    pub fn log_in(address: SocketAddr, login: &Login) -> Result<Wire, Box<Event>> {
        let mut wire = Wire::raw(address);
        wire.begin(login)?;
        wire.send_method(0, &Method::new(10, 40).shortstr(&login.vhost).shortstr("").bits(&[false]));
        wire.answer(0, (10, 41))?;
        Ok(wire)
    }

    /// The handshake up to tune-ok.
    pub fn begin(&mut self, login: &Login) -> Result<(), Box<Event>> {
        self.send(PROTOCOL_HEADER);
        let mut start = self.answer(0, (10, 10))?;
        assert_eq!((start.octet(), start.octet()), (0, 9), "version");
        self.server_properties = start.longstr();
        self.send_method(0, &start_ok(login));
        let mut tune = self.answer(0, (10, 30))?;
        self.offered = (tune.short(), tune.long(), tune.short());
        let channel_max = if login.channel_max == 0 { self.offered.0 } else { login.channel_max };
        self.frame_max = if login.frame_max == 0 { self.offered.1 } else { login.frame_max };
        let tune_ok = Method::new(10, 31).short(channel_max).long(self.frame_max).short(login.heartbeat);
        self.send_method(0, &tune_ok);
        Ok(())
    }

    /// Writes bytes as they are.
    ///
    /// # Panics
    /// When the broker has closed the socket, or does not read for too long.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads what it is sent");
    }

    /// Writes bytes to a broker that may hang up meanwhile.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub fn send_frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        self.send(&frame(kind, channel, payload));
    }

    pub fn send_method(&mut self, channel: u16, method: &Method) {
        self.send_frame(FRAME_METHOD, channel, method.payload());
    }

    /// Sends a method and gives the arguments of its `-ok`, which has the next method id.
    ///
    /// # Panics
    /// When the broker answers with a close.
    pub fn call(&mut self, channel: u16, method: Method) -> Reader {
        self.send_method(channel, &method);
        let (class, id) = ids(method.payload());
        self.expect(channel, (class, id + 1))
    }

    /// The arguments of this method, past which only events that are kept may come.
    ///
    /// # Panics
    /// When a close or the end comes first.
    pub fn expect(&mut self, channel: u16, wanted: (u16, u16)) -> Reader {
        self.answer(channel, wanted)
            .unwrap_or_else(|event| panic!("waited for method {wanted:?}, got {event:?}"))
    }

    fn answer(&mut self, channel: u16, wanted: (u16, u16)) -> Result<Reader, Box<Event>> {
        let found = self.wait_for(|event| match event {
            Event::Method(on, ids, _) => (*on, *ids) == (channel, wanted),
            Event::Close(close) => close.channel == channel || close.channel == 0,
            Event::End => true,
            _ => false,
        });
        match found {
            Event::Method(_, _, arguments) => Ok(arguments),
            other => Err(Box::new(other)),
        }
    }

    /// The first event, kept or new, that is as wanted; those before it are kept.
    pub fn wait_for(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).expect("the position was just found");
        }
        loop {
            let event = self.receive();
            if wanted(&event) {
                return event;
            }
            assert_ne!(event, Event::End, "the broker closed the socket; before that came {:?}", self.kept);
            self.kept.push_back(event);
        }
    }

    /// The next event, kept or new. Heartbeats are passed over.
    pub fn event(&mut self) -> Event {
        self.wait_for(|event| *event != Event::Heartbeat)
    }

    /// The next message for a consumer.
    pub fn delivery(&mut self) -> Delivery {
        match self.wait_for(|event| matches!(event, Event::Deliver(_) | Event::Close(_))) {
            Event::Deliver(delivery) => delivery,
            other => panic!("waited for a delivery, got {other:?}"),
        }
    }

    /// The next message for a consumer, or none when the broker has nothing to say for this long.
    pub fn delivery_within(&mut self, time: Duration) -> Option<Delivery> {
        if self.kept.is_empty() && self.input.len() == self.taken && self.is_silent_for(time) {
            return None;
        }
        Some(self.delivery())
    }

    /// The next message for a consumer, if it may take longer than [`PATIENCE`].
    pub fn patient_delivery(&mut self, patience: Duration) -> Delivery {
        if self.kept.is_empty() && self.input.len() == self.taken {
            assert!(!self.is_silent_for(patience), "the broker sent nothing for {patience:?}");
        }
        self.delivery()
    }

    /// This many messages for consumers.
    pub fn deliveries(&mut self, count: usize) -> Vec<Delivery> {
        (0..count).map(|_| self.delivery()).collect()
    }

    /// The next close, of a channel or of the connection.
    pub fn closed(&mut self) -> Close {
        match self.wait_for(|event| matches!(event, Event::Close(_))) {
            Event::Close(close) => close,
            _ => unreachable!("only a close was waited for"),
        }
    }

    /// Deliveries that have arrived and that nobody asked for. A round trip on the channel comes first: what
    /// the broker sent before it answered is here then.
    pub fn arrived(&mut self, channel: u16) -> Vec<Delivery> {
        self.round_trip(channel);
        let (deliveries, others) = self.kept.drain(..).partition(|event| matches!(event, Event::Deliver(_)));
        self.kept = others;
        let deliveries: VecDeque<Event> = deliveries;
        deliveries
            .into_iter()
            .filter_map(|event| if let Event::Deliver(d) = event { Some(d) } else { None })
            .collect()
    }

    /// Whether a return has arrived; takes it. A return is written before what follows on its channel.
    pub fn returned(&mut self) -> bool {
        let at = self.kept.iter().position(|event| matches!(event, Event::Return(_)));
        at.and_then(|at| self.kept.remove(at)).is_some()
    }

    /// Confirms up to and including this sequence number.
    ///
    /// # Panics
    /// At a nack.
    pub fn confirmed(&mut self, upto: u64) {
        let mut below = 0;
        while below < upto {
            match self.wait_for(|event| matches!(event, Event::Ack(..) | Event::Nack(..) | Event::Close(_))) {
                // Without `multiple`, confirms may come in any order; Lepus and RabbitMQ count up on one shard.
                Event::Ack(_, tag, _) => below = below.max(tag),
                other => panic!("waited for confirm {upto}, got {other:?}"),
            }
        }
    }

    /// Waits until the broker has closed the socket and gives what came before, heartbeats left out.
    pub fn until_end(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.kept.drain(..).collect();
        loop {
            match self.receive() {
                Event::End => return events,
                Event::Heartbeat => {}
                event => events.push(event),
            }
        }
    }

    /// Bytes that have come and are no whole frame, once the broker has closed the socket.
    pub fn bytes_until_end(&mut self) -> Vec<u8> {
        while self.fill() {}
        self.input.split_off(self.taken)
    }

    fn receive(&mut self) -> Event {
        loop {
            let Some(frame) = self.frame() else { return Event::End };
            if let Some(event) = self.take(frame) {
                return event;
            }
        }
    }

    /// The next frame; none at the end of the stream.
    pub fn frame(&mut self) -> Option<Frame> {
        loop {
            let input = &self.input[self.taken..];
            if input.len() >= 7 {
                let size = u32::from_be_bytes(input[3..7].try_into().expect("four bytes")) as usize;
                if input.len() >= size + 8 {
                    assert_eq!(input[size + 7], FRAME_END, "end byte");
                    let frame = Frame {
                        kind: input[0],
                        channel: u16::from_be_bytes([input[1], input[2]]),
                        payload: input[7..size + 7].to_vec(),
                    };
                    self.taken += size + 8;
                    return Some(frame);
                }
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn fill(&mut self) -> bool {
        self.input.drain(..self.taken);
        self.taken = 0;
        let mut chunk = [0; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(read) => {
                self.input.extend_from_slice(&chunk[..read]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            // A read with a timeout is not taken up again by the system when the process was stopped and goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the broker sent nothing for {PATIENCE:?}; kept: {:?}", self.kept)
            }
            Err(error) => panic!("cannot read from the broker: {error}"),
        }
    }

    fn take(&mut self, frame: Frame) -> Option<Event> {
        match frame.kind {
            FRAME_METHOD => self.take_method(frame),
            FRAME_HEADER => {
                let content = self.contents.get_mut(&frame.channel).expect("a header follows its method");
                let mut header = Reader::new(frame.payload);
                assert_eq!((header.short(), header.short()), (60, 0), "class and weight");
                let size = usize::try_from(header.longlong()).expect("sizes are small here");
                content.header = Some((size, Properties(header.rest().to_vec())));
                self.whole(frame.channel)
            }
            FRAME_BODY => {
                let content = self.contents.get_mut(&frame.channel).expect("a body follows its header");
                assert!(!frame.payload.is_empty(), "an empty body frame");
                assert!(frame.payload.len() + 8 <= self.frame_max as usize, "a frame longer than frame_max");
                content.body.extend(frame.payload);
                self.whole(frame.channel)
            }
            FRAME_HEARTBEAT => {
                assert_eq!(
                    (frame.channel, frame.payload.len()),
                    (0, 0),
                    "a heartbeat is empty and on channel 0"
                );
                Some(Event::Heartbeat)
            }
            kind => panic!("a frame of type {kind}"),
        }
    }

    fn take_method(&mut self, frame: Frame) -> Option<Event> {
        let channel = frame.channel;
        assert!(!self.contents.contains_key(&channel), "a method inside a content");
        let method = ids(&frame.payload);
        let mut arguments = Reader::new(frame.payload[4..].to_vec());
        Some(match method {
            (60, 50 | 60 | 71) => {
                let content = Content { ids: method, arguments, header: None, body: Vec::new() };
                self.contents.insert(channel, content);
                return None;
            }
            (60, 80) => Event::Ack(channel, arguments.longlong(), arguments.octet() & 1 == 1),
            (60, 120) => Event::Nack(channel, arguments.longlong(), arguments.octet() & 1 == 1),
            (10, 50) | (20, 40) => Event::Close(Close {
                channel,
                code: arguments.short(),
                text: arguments.shortstr(),
                ids: (arguments.short(), arguments.short()),
            }),
            _ => Event::Method(channel, method, arguments),
        })
    }

    /// The content of this channel as an event, if it is complete.
    fn whole(&mut self, channel: u16) -> Option<Event> {
        let size = self.contents[&channel].header.as_ref().map(|(size, _)| *size)?;
        let have = self.contents[&channel].body.len();
        assert!(have <= size, "more body than the header announced");
        if have < size {
            return None;
        }
        let Content { ids, mut arguments, header, body } =
            self.contents.remove(&channel).expect("it was just there");
        let (_, properties) = header.expect("it was just there");
        let from = &mut arguments;
        let (mut consumer, mut tag, mut redelivered, mut reply) = (String::new(), 0, false, None);
        match ids {
            (60, 60) => {
                (consumer, tag, redelivered) = (from.shortstr(), from.longlong(), from.octet() & 1 == 1)
            }
            (60, 71) => (tag, redelivered) = (from.longlong(), from.octet() & 1 == 1),
            _ => reply = Some((from.short(), from.shortstr())),
        }
        let (exchange, routing_key) = (from.shortstr(), from.shortstr());
        let left = if ids == (60, 71) { from.long() } else { 0 };
        let delivery = Delivery {
            channel,
            consumer,
            tag,
            redelivered,
            exchange,
            routing_key,
            left,
            reply,
            properties,
            body,
        };
        Some(match ids {
            (60, 60) => Event::Deliver(delivery),
            (60, 71) => Event::GetOk(delivery),
            _ => Event::Return(delivery),
        })
    }

    /// Whether nothing can be read for this long. Only for showing that something is not read by a peer or
    /// does not come, never for waiting until something has happened.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        self.stream.set_read_timeout(Some(time)).expect("an open socket");
        let mut byte = [0; 1];
        let silent = loop {
            match self.stream.peek(&mut byte) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    break true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted && Instant::now() < deadline => {}
                _ => break false,
            }
        };
        self.stream.set_read_timeout(Some(PATIENCE)).expect("an open socket");
        silent
    }

    /// The socket, for what a test does with it alone.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }
}

fn start_ok(login: &Login) -> Method {
    let mut capabilities = Arguments::new();
    if login.capabilities {
        for name in [
            "publisher_confirms",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "authentication_failure_close",
        ] {
            capabilities = capabilities.bool(name, true);
        }
    }
    let properties = Arguments::new().text("product", "lepus-tests").nested("capabilities", &capabilities);
    Method::new(10, 11)
        .table(&properties)
        .shortstr(&login.mechanism)
        .longstr(&login.response)
        .shortstr("en_US")
}

fn ids(payload: &[u8]) -> (u16, u16) {
    (u16::from_be_bytes([payload[0], payload[1]]), u16::from_be_bytes([payload[2], payload[3]]))
}
