//! A blocking client: one call, one answer. Methods go through `amq-protocol`.
//!
//! Contents and confirms that come between a call and its answer are kept, and are the first input of the
//! [`Link`] that the client becomes.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Instant;

use amq_protocol::protocol::{AMQPClass, channel, connection, parse_class};
use amq_protocol::types::{AMQPValue, FieldTable, LongString, ShortString};
use serde::Serialize;

use crate::error::BenchError;
use crate::limits::{CALL_TIMEOUT, CLOSE_TIMEOUT, FRAME_BYTES_MAX};
use crate::uri::BrokerUri;
use crate::wire::encode::{CHANNEL, put_method};
use crate::wire::scan::{Event, Frames};

/// What a broker says that it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Broker {
    /// Such as `Lepus` or `RabbitMQ`.
    pub product: String,
    /// Its version.
    pub version: String,
}

/// A connection, logged in.
#[derive(Debug)]
pub struct Client {
    pub(super) socket: TcpStream,
    pub(super) input: Vec<u8>,
    /// Contents and confirms that nobody has asked for yet, as they came.
    pub(super) kept: Vec<u8>,
    output: Vec<u8>,
    /// Who is at the other end.
    pub broker: Broker,
    /// As negotiated.
    pub frame_max: usize,
}

/// A connection with channel 1 open, for load: a socket that does not block, and what has come already.
#[derive(Debug)]
pub struct Link {
    /// The socket.
    pub socket: TcpStream,
    /// Bytes that were read and not looked at.
    pub rest: Vec<u8>,
}

/// The broker has taken messages of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// Tags are those of this channel.
    pub channel: u16,
    /// Of the message.
    pub tag: u64,
    /// Of all messages up to it too; then 0 stands for all that there are.
    pub multiple: bool,
}

impl Client {
    /// Connects and logs in, without heartbeats.
    ///
    /// # Errors
    /// When the broker is not there or does not let the user in.
    pub fn connect(uri: &BrokerUri) -> Result<Client, BenchError> {
        Client::connect_with_heartbeat(uri, 0)
    }

    /// Connects and opens channel 1.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with_channel(uri: &BrokerUri) -> Result<Client, BenchError> {
        let mut client = Client::connect(uri)?;
        client.open_channel(CHANNEL)?;
        Ok(client)
    }

    /// Connects and logs in. Whoever asks for heartbeats (seconds) has to send them.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with_heartbeat(uri: &BrokerUri, heartbeat_s: u16) -> Result<Client, BenchError> {
        let socket = dial(uri).map_err(|source| BenchError::Connect { address: uri.address(), source })?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(CALL_TIMEOUT))?;
        socket.set_write_timeout(Some(CALL_TIMEOUT))?;
        let mut client = Client {
            socket,
            input: Vec::new(),
            kept: Vec::new(),
            output: Vec::new(),
            broker: Broker::default(),
            frame_max: FRAME_BYTES_MAX,
        };
        client.log_in(uri, heartbeat_s)?;
        Ok(client)
    }

    fn log_in(&mut self, uri: &BrokerUri, heartbeat_s: u16) -> Result<(), BenchError> {
        const WHILE: &str = "during the login: is the user allowed, and from this host?";
        self.socket.write_all(b"AMQP\x00\x00\x09\x01")?;
        let AMQPClass::Connection(connection::AMQPMethod::Start(start)) = self.answer("login", WHILE)? else {
            return Err(BenchError::Unexpected("no connection.start".to_owned()));
        };
        self.broker = Broker {
            product: text(&start.server_properties, "product"),
            version: text(&start.server_properties, "version"),
        };
        self.send(0, connection::AMQPMethod::StartOk(start_ok(uri)));
        self.flush()?;
        let AMQPClass::Connection(connection::AMQPMethod::Tune(tune)) = self.answer("login", WHILE)? else {
            return Err(BenchError::Unexpected("no connection.tune".to_owned()));
        };
        if tune.frame_max > 0 {
            self.frame_max = self.frame_max.min(tune.frame_max as usize);
        }
        let frame_max = u32::try_from(self.frame_max).expect("the offered size fits");
        let ok = connection::TuneOk { channel_max: tune.channel_max, frame_max, heartbeat: heartbeat_s };
        self.send(0, connection::AMQPMethod::TuneOk(ok));
        let virtual_host = uri.vhost.as_str().into();
        self.send(0, connection::AMQPMethod::Open(connection::Open { virtual_host }));
        self.flush()?;
        match self.answer("login", WHILE)? {
            AMQPClass::Connection(connection::AMQPMethod::OpenOk(_)) => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Opens a channel.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn open_channel(&mut self, number: u16) -> Result<(), BenchError> {
        let open = AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}));
        self.call_on(number, "a channel", &open).map(|_| ())
    }

    /// Closes a channel.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn close_channel(&mut self, number: u16) -> Result<(), BenchError> {
        let close = channel::Close { reply_code: 200, reply_text: "OK".into(), class_id: 0, method_id: 0 };
        self.call_on(number, "closing a channel", &AMQPClass::Channel(channel::AMQPMethod::Close(close)))
            .map(|_| ())
    }

    /// Calls a method on channel 1 and waits for its answer. `what` stands in the error.
    ///
    /// # Errors
    /// When the broker refuses or the socket fails.
    pub fn call(&mut self, what: &str, method: &AMQPClass) -> Result<AMQPClass, BenchError> {
        self.call_on(CHANNEL, what, method)
    }

    pub(super) fn call_on(
        &mut self,
        number: u16,
        what: &str,
        method: &AMQPClass,
    ) -> Result<AMQPClass, BenchError> {
        put_method(&mut self.output, number, method);
        self.flush()?;
        self.answer(what, "")
    }

    /// Sends bytes of whole frames.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<(), BenchError> {
        Ok(self.socket.write_all(bytes)?)
    }

    /// Waits for confirms, and gives those that have come, of all channels.
    ///
    /// # Errors
    /// When a message is refused, the broker closes the channel, or the socket fails.
    pub fn confirmed(&mut self, confirms: &mut Vec<Confirm>) -> Result<(), BenchError> {
        confirms.clear();
        loop {
            let mut frames = Frames::new(&self.input);
            while let Some(frame) = frames.next_frame()? {
                match frame.event() {
                    Some(Event::Ack(tag, multiple)) => {
                        confirms.push(Confirm { channel: frame.channel, tag, multiple });
                    }
                    Some(Event::Nack(tag, _)) => {
                        return Err(BenchError::Unexpected(format!("message {tag} was refused by a nack")));
                    }
                    Some(Event::Other(payload)) => {
                        if let Some(error) = refusal("a publish", payload)? {
                            return Err(error);
                        }
                    }
                    _ => {}
                }
            }
            let consumed = frames.consumed();
            self.input.drain(..consumed);
            if !confirms.is_empty() {
                return Ok(());
            }
            self.read("a publish")?;
        }
    }

    fn send(&mut self, number: u16, method: connection::AMQPMethod) {
        put_method(&mut self.output, number, &AMQPClass::Connection(method));
    }

    fn flush(&mut self) -> Result<(), BenchError> {
        self.socket.write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    /// The next method that is an answer. Notices are passed over, contents and confirms are kept.
    fn answer(&mut self, what: &str, when_closed: &'static str) -> Result<AMQPClass, BenchError> {
        loop {
            let mut frames = Frames::new(&self.input);
            let mut answer = None;
            let mut from = 0;
            while let Some(event) = frames.next_event()? {
                let frame = &self.input[from..frames.consumed()];
                from = frames.consumed();
                match event {
                    Event::Other(payload) => {
                        if let Some(error) = refusal(what, payload)? {
                            return Err(error);
                        }
                        let class = parsed(payload)?;
                        if !is_notice(&class) {
                            answer = Some(class);
                            break;
                        }
                    }
                    Event::Heartbeat => {}
                    _ => self.kept.extend_from_slice(frame),
                }
            }
            self.input.drain(..from);
            if let Some(answer) = answer {
                return Ok(answer);
            }
            match self.read(what) {
                Err(BenchError::Closed(_)) if !when_closed.is_empty() => {
                    return Err(BenchError::Closed(when_closed));
                }
                other => other?,
            }
        }
    }

    pub(super) fn read(&mut self, what: &str) -> Result<(), BenchError> {
        let mut chunk = [0; 16 * 1024];
        match self.socket.read(&mut chunk) {
            Ok(0) => Err(BenchError::Closed("without a word")),
            Ok(read) => {
                self.input.extend_from_slice(&chunk[..read]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let text = format!("no answer to {what} within {} s", CALL_TIMEOUT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, text).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes it a connection for load.
    ///
    /// # Errors
    /// When the socket cannot be made non-blocking.
    pub fn into_link(mut self) -> Result<Link, BenchError> {
        self.socket.set_nonblocking(true)?;
        let mut rest = self.kept;
        rest.append(&mut self.input);
        Ok(Link { socket: self.socket, rest })
    }

    /// Closes the connection as the protocol has it. What goes wrong then does not matter any more.
    pub fn close(self) {
        close_socket(self.socket, self.input);
    }
}

impl Link {
    /// Closes the connection as the protocol has it, unless the broker takes too long.
    pub fn close(self) {
        if self.socket.set_nonblocking(false).is_ok() {
            close_socket(self.socket, self.rest);
        }
    }
}

/// Asks for the end and reads until the broker agrees: what is still on its way is passed over.
fn close_socket(mut socket: TcpStream, mut input: Vec<u8>) {
    let close = connection::Close { reply_code: 200, reply_text: "OK".into(), class_id: 0, method_id: 0 };
    let mut bytes = Vec::new();
    put_method(&mut bytes, 0, &AMQPClass::Connection(connection::AMQPMethod::Close(close)));
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    let timeouts =
        socket.set_write_timeout(Some(CLOSE_TIMEOUT)).and(socket.set_read_timeout(Some(CLOSE_TIMEOUT)));
    if timeouts.is_err() || socket.write_all(&bytes).is_err() {
        return;
    }
    let mut chunk = vec![0; 64 * 1024];
    while Instant::now() < deadline {
        let mut frames = Frames::new(&input);
        while let Ok(Some(event)) = frames.next_event() {
            if matches!(event, Event::Other([0, 10, 0, 51, ..])) {
                return;
            }
        }
        let consumed = frames.consumed();
        input.drain(..consumed);
        match socket.read(&mut chunk) {
            Ok(read @ 1..) => input.extend_from_slice(&chunk[..read]),
            _ => return,
        }
    }
}

fn dial(uri: &BrokerUri) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (uri.host.as_str(), uri.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CALL_TIMEOUT) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn start_ok(uri: &BrokerUri) -> connection::StartOk {
    let capabilities = [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "publisher_confirms",
    ];
    let mut table = FieldTable::default();
    for capability in capabilities {
        table.insert(capability.into(), AMQPValue::Boolean(true));
    }
    let mut client_properties = FieldTable::default();
    client_properties.insert("capabilities".into(), AMQPValue::FieldTable(table));
    let long = |text: &str| AMQPValue::LongString(text.as_bytes().to_vec().into());
    client_properties.insert("product".into(), long("lepus bench"));
    client_properties.insert("version".into(), long(env!("CARGO_PKG_VERSION")));
    let response: LongString = format!("\0{}\0{}", uri.user, uri.password).into_bytes().into();
    let mechanism: ShortString = "PLAIN".into();
    connection::StartOk { client_properties, mechanism, response, locale: "en_US".into() }
}

fn text(table: &FieldTable, key: &str) -> String {
    match table.inner().get(key) {
        Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        _ => String::new(),
    }
}

fn parsed(payload: &[u8]) -> Result<AMQPClass, BenchError> {
    match parse_class(payload) {
        Ok((_, class)) => Ok(class),
        Err(_) => Err(BenchError::Unexpected(format!("a method that cannot be read: {payload:02x?}"))),
    }
}

/// Reads a method that nobody has asked for: a close or a cancellation is an error, notices are none.
///
/// # Errors
/// When it cannot be read.
pub fn refusal(what: &str, payload: &[u8]) -> Result<Option<BenchError>, BenchError> {
    // Only those three are looked at; answers come here too and must stay cheap.
    if !matches!(payload.get(..4), Some([0, 10, 0, 50] | [0, 20, 0, 40] | [0, 60, 0, 30])) {
        return Ok(None);
    }
    let (code, text) = match parsed(payload)? {
        AMQPClass::Connection(connection::AMQPMethod::Close(close)) => (close.reply_code, close.reply_text),
        AMQPClass::Channel(channel::AMQPMethod::Close(close)) => (close.reply_code, close.reply_text),
        _ => return Ok(Some(BenchError::Unexpected("a consumer was cancelled".to_owned()))),
    };
    let text = text.as_str();
    // The text starts with the code's name in most brokers; the code itself stands before it.
    Ok(Some(BenchError::Refused { what: what.to_owned(), code, text: text.to_owned() }))
}

fn is_notice(class: &AMQPClass) -> bool {
    matches!(
        class,
        AMQPClass::Connection(connection::AMQPMethod::Blocked(_) | connection::AMQPMethod::Unblocked(_))
    )
}

fn unexpected(class: &AMQPClass) -> BenchError {
    BenchError::Unexpected(format!("{class:?}"))
}
