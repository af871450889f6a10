//! As much of an AMQP client as a load generator needs: a handshake, a queue, and raw frames.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Why a load run cannot go on.
#[derive(Debug)]
pub enum ClientError {
    /// The socket failed.
    Io(io::Error),
    /// The broker said something unexpected: class, method and payload of the frame.
    Unexpected(u16, u16, Vec<u8>),
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> ClientError {
        ClientError::Io(error)
    }
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClientError::Io(error) => write!(f, "the connection failed: {error}"),
            ClientError::Unexpected(class, method, payload) => {
                let text: String =
                    String::from_utf8_lossy(payload).chars().filter(|c| !c.is_control()).collect();
                write!(f, "unexpected method {class},{method}: {text}")
            }
        }
    }
}

impl std::error::Error for ClientError {}

/// A connection with channel 1 open.
pub struct Client {
    /// The socket, for raw frames.
    pub socket: TcpStream,
    buffer: Vec<u8>,
}

fn short(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).expect("a short string"));
    out.extend_from_slice(text.as_bytes());
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
    out.push(0xCE);
    out
}

/// A method frame: class, method, arguments.
pub fn method(channel: u16, class: u16, method: u16, arguments: &[u8]) -> Vec<u8> {
    let mut payload = class.to_be_bytes().to_vec();
    payload.extend_from_slice(&method.to_be_bytes());
    payload.extend_from_slice(arguments);
    frame(1, channel, &payload)
}

/// Method, header and body frame of a publish to the default exchange.
pub fn publish(queue: &str, body: &[u8], persistent: bool) -> Vec<u8> {
    let mut arguments = vec![0, 0];
    short(&mut arguments, "");
    short(&mut arguments, queue);
    arguments.push(0);
    let mut out = method(1, 60, 40, &arguments);
    let mut header = vec![0, 60, 0, 0];
    header.extend_from_slice(&(body.len() as u64).to_be_bytes());
    if persistent {
        header.extend_from_slice(&[0x10, 0x00, 2]);
    } else {
        header.extend_from_slice(&[0, 0]);
    }
    out.extend_from_slice(&frame(2, 1, &header));
    for chunk in body.chunks(131_064) {
        out.extend_from_slice(&frame(3, 1, chunk));
    }
    out
}

impl Client {
    /// Connects as guest to `/` and opens channel 1.
    ///
    /// # Errors
    /// When the broker is not there or does not let guest in.
    pub fn connect(address: &str) -> Result<Client, ClientError> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let mut client = Client { socket, buffer: Vec::new() };
        client.socket.write_all(b"AMQP\x00\x00\x09\x01")?;
        client.expect(10, 10)?;
        let mut start_ok = vec![0, 0, 0, 0];
        short(&mut start_ok, "PLAIN");
        start_ok.extend_from_slice(&12u32.to_be_bytes());
        start_ok.extend_from_slice(b"\0guest\0guest");
        short(&mut start_ok, "en_US");
        client.socket.write_all(&method(0, 10, 11, &start_ok))?;
        client.expect(10, 30)?;
        client.socket.write_all(&method(0, 10, 31, &[7, 255, 0, 2, 0, 0, 0, 0]))?;
        client.socket.write_all(&method(0, 10, 40, &[1, b'/', 0, 0]))?;
        client.expect(10, 41)?;
        client.call(20, 10, &[0], 20, 11)?;
        Ok(client)
    }

    /// Calls a method on channel 1 and waits for its answer.
    ///
    /// # Errors
    /// When another method comes, or the socket fails.
    pub fn call(
        &mut self,
        class: u16,
        id: u16,
        arguments: &[u8],
        ok_class: u16,
        ok: u16,
    ) -> Result<(), ClientError> {
        self.socket.write_all(&method(1, class, id, arguments))?;
        self.expect(ok_class, ok)
    }

    /// Declares a queue that is not durable.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn declare(&mut self, queue: &str, durable: bool) -> Result<(), ClientError> {
        let mut arguments = vec![0, 0];
        short(&mut arguments, queue);
        arguments.push(if durable { 2 } else { 0 });
        arguments.extend_from_slice(&[0, 0, 0, 0]);
        self.call(50, 10, &arguments, 50, 11)
    }

    /// Empties a queue.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn purge(&mut self, queue: &str) -> Result<(), ClientError> {
        let mut arguments = vec![0, 0];
        short(&mut arguments, queue);
        arguments.push(0);
        self.call(50, 30, &arguments, 50, 31)
    }

    /// Starts a consumer.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn consume(&mut self, queue: &str, no_ack: bool, prefetch: u16) -> Result<(), ClientError> {
        let mut qos = vec![0, 0, 0, 0];
        qos.extend_from_slice(&prefetch.to_be_bytes());
        qos.push(0);
        self.call(60, 10, &qos, 60, 11)?;
        let mut arguments = vec![0, 0];
        short(&mut arguments, queue);
        short(&mut arguments, "c");
        arguments.push(if no_ack { 2 } else { 0 });
        arguments.extend_from_slice(&[0, 0, 0, 0]);
        self.call(60, 20, &arguments, 60, 21)
    }

    /// Reads frames until a method comes, and checks which.
    fn expect(&mut self, class: u16, id: u16) -> Result<(), ClientError> {
        loop {
            if let Some((kind, payload)) = self.next_frame() {
                if kind != 1 {
                    continue;
                }
                let got = (
                    u16::from_be_bytes([payload[0], payload[1]]),
                    u16::from_be_bytes([payload[2], payload[3]]),
                );
                if got == (class, id) {
                    return Ok(());
                }
                return Err(ClientError::Unexpected(got.0, got.1, payload));
            }
            let mut chunk = [0; 4096];
            let read = self.socket.read(&mut chunk)?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.buffer.extend_from_slice(&chunk[..read]);
        }
    }

    fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        if self.buffer.len() < 8 {
            return None;
        }
        let size =
            u32::from_be_bytes([self.buffer[3], self.buffer[4], self.buffer[5], self.buffer[6]]) as usize;
        if self.buffer.len() < size + 8 {
            return None;
        }
        let kind = self.buffer[0];
        let payload = self.buffer[7..7 + size].to_vec();
        self.buffer.drain(..size + 8);
        Some((kind, payload))
    }

    /// What was read behind the last answer.
    pub fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }
}
