//! The hot methods on the wire: publish, header, body, deliver, get-ok, return, ack, nack, reject.
//!
//! Read in place and written by copying, with no value in between; everything else goes through
//! `amq-protocol`, and property tests prove that the two agree.

use lepus_shards::message::MessageView;

use super::limits::FRAME_OVERHEAD_BYTES;
use super::properties::HISTORY;
use super::table::{Malformed, short};

/// The end of every frame (specification 4.2.3).
pub const FRAME_END: u8 = 0xCE;
/// Frame types.
pub const METHOD: u8 = 1;
/// See [`METHOD`].
pub const HEADER: u8 = 2;
/// See [`METHOD`].
pub const BODY: u8 = 3;
/// See [`METHOD`].
pub const HEARTBEAT: u8 = 8;
/// A heartbeat, whole.
pub const HEARTBEAT_FRAME: [u8; 8] = [HEARTBEAT, 0, 0, 0, 0, 0, 0, FRAME_END];

/// Type, channel and payload size of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// One of [`METHOD`], [`HEADER`], [`BODY`], [`HEARTBEAT`], or something else.
    pub kind: u8,
    /// 0 for the connection itself.
    pub channel: u16,
    /// Bytes of payload.
    pub size: usize,
}

impl FrameHead {
    /// Bytes in front of the payload.
    pub const BYTES: usize = 7;

    /// Reads the head at the start of `bytes`; none if it is not all there.
    pub fn read(bytes: &[u8]) -> Option<FrameHead> {
        let head = bytes.first_chunk::<7>()?;
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        Some(FrameHead { kind: head[0], channel: u16::from_be_bytes([head[1], head[2]]), size })
    }

    /// Bytes of the whole frame.
    pub fn frame_bytes(&self) -> usize {
        self.size + FRAME_OVERHEAD_BYTES
    }
}

/// The arguments of `basic.publish`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishMethod<'a> {
    /// Exchange name.
    pub exchange: &'a [u8],
    /// Routing key.
    pub routing_key: &'a [u8],
    /// Return the message if no queue takes it.
    pub mandatory: bool,
    /// Return the message if no consumer takes it at once (not supported).
    pub immediate: bool,
}

impl<'a> PublishMethod<'a> {
    /// Reads the arguments (behind class and method).
    ///
    /// # Errors
    /// When they are not well-formed.
    pub fn read(arguments: &'a [u8]) -> Result<PublishMethod<'a>, Malformed> {
        let (_ticket, rest) = arguments.split_first_chunk::<2>().ok_or(Malformed)?;
        let (exchange, rest) = short(rest)?;
        let (routing_key, rest) = short(rest)?;
        let [bits] = rest else { return Err(Malformed) };
        Ok(PublishMethod { exchange, routing_key, mandatory: bits & 1 != 0, immediate: bits & 2 != 0 })
    }
}

/// A content header: the body's size, and the properties in wire form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContentHeader<'a> {
    /// Bytes of the body that follows.
    pub body_size: u64,
    /// Property flags and list.
    pub properties: &'a [u8],
}

impl<'a> ContentHeader<'a> {
    /// Reads a header frame's payload.
    ///
    /// # Errors
    /// When it is too short or not of class `basic`.
    pub fn read(payload: &'a [u8]) -> Result<ContentHeader<'a>, Malformed> {
        let (head, properties) = payload.split_first_chunk::<12>().ok_or(Malformed)?;
        if head[..2] != [0, 60] {
            return Err(Malformed);
        }
        let mut size = [0; 8];
        size.copy_from_slice(&head[4..]);
        Ok(ContentHeader { body_size: u64::from_be_bytes(size), properties })
    }
}

/// Arguments of ack, nack and reject: the delivery tag and a byte of bits.
///
/// # Errors
/// When they are not nine bytes.
pub fn read_settlement(arguments: &[u8]) -> Result<(u64, u8), Malformed> {
    let (tag, rest) = arguments.split_first_chunk::<8>().ok_or(Malformed)?;
    let [bits] = rest else { return Err(Malformed) };
    Ok((u64::from_be_bytes(*tag), *bits))
}

fn put_short(out: &mut Vec<u8>, text: &[u8]) {
    debug_assert!(text.len() <= 255);
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

fn put_head(out: &mut Vec<u8>, kind: u8, channel: u16, size: usize) {
    let (channel, size) = (channel.to_be_bytes(), (size as u32).to_be_bytes());
    out.extend_from_slice(&[kind, channel[0], channel[1], size[0], size[1], size[2], size[3]]);
}

/// Bytes that a content of this size takes in frames of at most `frame_max` bytes.
fn content_bytes(message: &MessageView<'_>, frame_max: usize) -> usize {
    let frames = message.body.len().div_ceil(frame_max - FRAME_OVERHEAD_BYTES);
    22 + message.properties.len() + frames * FRAME_OVERHEAD_BYTES + message.body.len()
}

/// Header and body frames of a message.
fn put_content(out: &mut Vec<u8>, channel: u16, message: &MessageView<'_>, frame_max: usize) {
    put_head(out, HEADER, channel, 12 + message.properties.len());
    out.extend_from_slice(&[0, 60, 0, 0]);
    out.extend_from_slice(&(message.body.len() as u64).to_be_bytes());
    out.extend_from_slice(message.properties);
    if message.properties.get(1).is_some_and(|low| low & HISTORY as u8 != 0) {
        // The broker's own mark is not for clients.
        let flags = out.len() - message.properties.len();
        out[flags + 1] &= !(HISTORY as u8);
    }
    out.push(FRAME_END);
    for part in message.body.chunks(frame_max - FRAME_OVERHEAD_BYTES) {
        put_head(out, BODY, channel, part.len());
        out.extend_from_slice(part);
        out.push(FRAME_END);
    }
}

/// `basic.deliver` with its content.
pub fn put_deliver(
    out: &mut Vec<u8>,
    channel: u16,
    consumer_tag: &[u8],
    delivery_tag: u64,
    redelivered: bool,
    message: &MessageView<'_>,
    frame_max: usize,
) {
    let size = 4 + 1 + consumer_tag.len() + 9 + 1 + message.exchange.len() + 1 + message.routing_key.len();
    out.reserve(size + FRAME_OVERHEAD_BYTES + content_bytes(message, frame_max));
    put_head(out, METHOD, channel, size);
    out.extend_from_slice(&[0, 60, 0, 60]);
    put_short(out, consumer_tag);
    out.extend_from_slice(&delivery_tag.to_be_bytes());
    out.push(u8::from(redelivered));
    put_short(out, message.exchange);
    put_short(out, message.routing_key);
    out.push(FRAME_END);
    put_content(out, channel, message, frame_max);
}

/// `basic.get-ok` with its content.
pub fn put_get_ok(
    out: &mut Vec<u8>,
    channel: u16,
    delivery_tag: u64,
    redelivered: bool,
    remaining: u32,
    message: &MessageView<'_>,
    frame_max: usize,
) {
    let size = 4 + 9 + 1 + message.exchange.len() + 1 + message.routing_key.len() + 4;
    out.reserve(size + FRAME_OVERHEAD_BYTES + content_bytes(message, frame_max));
    put_head(out, METHOD, channel, size);
    out.extend_from_slice(&[0, 60, 0, 71]);
    out.extend_from_slice(&delivery_tag.to_be_bytes());
    out.push(u8::from(redelivered));
    put_short(out, message.exchange);
    put_short(out, message.routing_key);
    out.extend_from_slice(&remaining.to_be_bytes());
    out.push(FRAME_END);
    put_content(out, channel, message, frame_max);
}

/// `basic.return` 312 `NO_ROUTE` with its content.
pub fn put_return(out: &mut Vec<u8>, channel: u16, message: &MessageView<'_>, frame_max: usize) {
    const TEXT: &[u8] = b"NO_ROUTE";
    let size = 4 + 2 + 1 + TEXT.len() + 1 + message.exchange.len() + 1 + message.routing_key.len();
    out.reserve(size + FRAME_OVERHEAD_BYTES + content_bytes(message, frame_max));
    put_head(out, METHOD, channel, size);
    out.extend_from_slice(&[0, 60, 0, 50]);
    out.extend_from_slice(&312u16.to_be_bytes());
    put_short(out, TEXT);
    put_short(out, message.exchange);
    put_short(out, message.routing_key);
    out.push(FRAME_END);
    put_content(out, channel, message, frame_max);
}

/// `basic.ack` or `basic.nack` of publishes up to and including `tag`.
pub fn put_confirm(out: &mut Vec<u8>, channel: u16, tag: u64, multiple: bool, accepted: bool) {
    put_head(out, METHOD, channel, 13);
    out.extend_from_slice(&[0, 60, 0, if accepted { 80 } else { 120 }]);
    out.extend_from_slice(&tag.to_be_bytes());
    // A nack has `requeue` beside `multiple`; it means nothing to a publisher.
    out.push(u8::from(multiple));
    out.push(FRAME_END);
}

/// A method frame whose payload `write` appends.
pub fn put_method(out: &mut Vec<u8>, channel: u16, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_head(out, METHOD, channel, 0);
    write(out);
    let size = (out.len() - start - FrameHead::BYTES) as u32;
    out[start + 3..start + 7].copy_from_slice(&size.to_be_bytes());
    out.push(FRAME_END);
}

#[cfg(test)]
#[path = "codec_tests.rs"]
pub(super) mod tests;
