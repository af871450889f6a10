//! Frames and the methods that tests send most, as bytes.
#![forbid(unsafe_code)]

use crate::method::{Arguments, Method, Properties};

pub const FRAME_METHOD: u8 = 1;
pub const FRAME_HEADER: u8 = 2;
pub const FRAME_BODY: u8 = 3;
pub const FRAME_HEARTBEAT: u8 = 8;
pub const FRAME_END: u8 = 0xCE;
pub const PROTOCOL_HEADER: &[u8] = b"AMQP\x00\x00\x09\x01";

/// A whole frame.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(channel.to_be_bytes());
    bytes.extend(u32::try_from(payload.len()).expect("a frame is small").to_be_bytes());
    bytes.extend(payload);
    bytes.push(FRAME_END);
    bytes
}

/// A method's frame.
pub fn method_frame(channel: u16, method: &Method) -> Vec<u8> {
    frame(FRAME_METHOD, channel, method.payload())
}

/// A content header's frame.
pub fn header_frame(channel: u16, size: u64, properties: &Properties) -> Vec<u8> {
    let mut payload = vec![0, 60, 0, 0];
    payload.extend(size.to_be_bytes());
    payload.extend(&properties.0);
    frame(FRAME_HEADER, channel, &payload)
}

/// All frames of a publish.
pub fn publish_frames(
    frame_max: u32,
    channel: u16,
    exchange: &str,
    key: &str,
    mandatory: bool,
    properties: &Properties,
    body: &[u8],
) -> Vec<u8> {
    let mut bytes = method_frame(channel, &basic_publish(exchange, key, mandatory));
    bytes.extend(header_frame(channel, body.len() as u64, properties));
    for part in body.chunks(frame_max as usize - 8) {
        bytes.extend(frame(FRAME_BODY, channel, part));
    }
    bytes
}

pub fn basic_publish(exchange: &str, key: &str, mandatory: bool) -> Method {
    Method::new(60, 40).short(0).shortstr(exchange).shortstr(key).bits(&[mandatory, false])
}

pub fn basic_consume(queue: &str, tag: &str, no_ack: bool, exclusive: bool, arguments: &Arguments) -> Method {
    let flags = [false, no_ack, exclusive, false];
    Method::new(60, 20).short(0).shortstr(queue).shortstr(tag).bits(&flags).table(arguments)
}

/// Flags: passive, durable, exclusive, auto-delete, nowait.
pub fn queue_declare(queue: &str, flags: [bool; 5], arguments: &Arguments) -> Method {
    Method::new(50, 10).short(0).shortstr(queue).bits(&flags).table(arguments)
}

/// Flags: passive, durable, auto-delete, internal, nowait.
pub fn exchange_declare(exchange: &str, kind: &str, flags: [bool; 5], arguments: &Arguments) -> Method {
    Method::new(40, 10).short(0).shortstr(exchange).shortstr(kind).bits(&flags).table(arguments)
}

pub fn queue_bind(queue: &str, exchange: &str, key: &str, arguments: &Arguments) -> Method {
    Method::new(50, 20)
        .short(0)
        .shortstr(queue)
        .shortstr(exchange)
        .shortstr(key)
        .bits(&[false])
        .table(arguments)
}
