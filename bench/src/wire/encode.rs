//! Frames of publishes, deliveries and settlements, appended to a buffer.

use amq_protocol::frame::WriteContext;
use amq_protocol::protocol::AMQPClass;
use amq_protocol::protocol::basic::{AMQPProperties, gen_properties};

use crate::limits::FRAME_OVERHEAD_BYTES;

/// The channel that all load uses.
pub const CHANNEL: u16 = 1;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const END: u8 = 0xCE;

/// A heartbeat.
pub const HEARTBEAT_FRAME: [u8; FRAME_OVERHEAD_BYTES] = [HEARTBEAT, 0, 0, 0, 0, 0, 0, END];

/// What every message of one kind has in common.
#[derive(Clone, Debug)]
pub struct Envelope {
    exchange: String,
    mandatory: bool,
    /// Flags and values as they stand in a content header.
    properties: Vec<u8>,
    channel: u16,
}

impl Envelope {
    /// Encodes the properties.
    pub fn new(exchange: &str, mandatory: bool, properties: &AMQPProperties) -> Envelope {
        let written = gen_properties(properties)(WriteContext::from(Vec::new()));
        let properties = written.expect("a vector takes everything").into_inner().0;
        Envelope { exchange: exchange.to_owned(), mandatory, properties, channel: CHANNEL }
    }

    /// On another channel.
    pub fn on(self, channel: u16) -> Envelope {
        Envelope { channel, ..self }
    }

    /// Appends method, header and body frames. Gives the place of the body's first byte.
    pub fn put(&self, out: &mut Vec<u8>, routing_key: &str, body: &[u8], frame_max: usize) -> usize {
        put_frame(out, METHOD, self.channel, |out| {
            out.extend_from_slice(&[0, 60, 0, 40, 0, 0]);
            put_short(out, &self.exchange);
            put_short(out, routing_key);
            out.push(u8::from(self.mandatory));
        });
        self.put_content(out, body, frame_max)
    }

    fn put_content(&self, out: &mut Vec<u8>, body: &[u8], frame_max: usize) -> usize {
        put_frame(out, HEADER, self.channel, |out| {
            out.extend_from_slice(&[0, 60, 0, 0]);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
            out.extend_from_slice(&self.properties);
        });
        let first = out.len() + FRAME_OVERHEAD_BYTES - 1;
        for part in body.chunks(frame_max - FRAME_OVERHEAD_BYTES) {
            put_frame(out, BODY, self.channel, |out| out.extend_from_slice(part));
        }
        first
    }
}

/// Appends a delivery: what a broker makes of a publish. Gives the place of the body's first byte.
pub fn put_delivery(
    out: &mut Vec<u8>,
    consumer: &[u8],
    tag: u64,
    exchange: &[u8],
    routing_key: &[u8],
    header: &[u8],
    body: &[u8],
) {
    put_frame(out, METHOD, CHANNEL, |out| {
        out.extend_from_slice(&[0, 60, 0, 60]);
        put_short_bytes(out, consumer);
        out.extend_from_slice(&tag.to_be_bytes());
        out.push(0);
        put_short_bytes(out, exchange);
        put_short_bytes(out, routing_key);
    });
    put_frame(out, HEADER, CHANNEL, |out| out.extend_from_slice(header));
    put_frame(out, BODY, CHANNEL, |out| out.extend_from_slice(body));
}

/// Appends an ack.
pub fn put_ack(out: &mut Vec<u8>, tag: u64, multiple: bool) {
    put_frame(out, METHOD, CHANNEL, |out| {
        out.extend_from_slice(&[0, 60, 0, 80]);
        out.extend_from_slice(&tag.to_be_bytes());
        out.push(u8::from(multiple));
    });
}

/// Appends a method frame of any other kind.
pub fn put_method(out: &mut Vec<u8>, channel: u16, class: &AMQPClass) {
    put_frame(out, METHOD, channel, |out| {
        let buffer = std::mem::take(out);
        let written = amq_protocol::protocol::gen_class(class)(WriteContext::from(buffer));
        *out = written.expect("a vector takes everything").into_inner().0;
    });
}

fn put_frame(out: &mut Vec<u8>, kind: u8, channel: u16, payload: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    let size_at = out.len();
    out.extend_from_slice(&[0; 4]);
    payload(out);
    let size = u32::try_from(out.len() - size_at - 4).expect("frames are at most frame_max long");
    out[size_at..size_at + 4].copy_from_slice(&size.to_be_bytes());
    out.push(END);
}

fn put_short(out: &mut Vec<u8>, text: &str) {
    put_short_bytes(out, text.as_bytes());
}

fn put_short_bytes(out: &mut Vec<u8>, text: &[u8]) {
    out.push(u8::try_from(text.len()).expect("names are at most 255 bytes long"));
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPFrame, parse_frame};
    use amq_protocol::protocol::basic;

    use super::*;

    fn frames(mut bytes: &[u8]) -> Vec<AMQPFrame> {
        let mut frames = Vec::new();
        while !bytes.is_empty() {
            let (rest, frame) = parse_frame(bytes).unwrap();
            frames.push(frame);
            bytes = rest;
        }
        frames
    }

    #[test]
    fn amq_protocol_reads_a_publish_as_it_was_meant() {
        let properties = AMQPProperties::default()
            .with_delivery_mode(2)
            .with_reply_to("r".into())
            .with_expiration("9".into());
        let body: Vec<u8> = (0..100).collect();
        let mut bytes = Vec::new();
        let first = Envelope::new("ex", true, &properties).put(&mut bytes, "key", &body, 48);
        assert_eq!(bytes[first..first + 40], body[..40]);

        let frames = frames(&bytes);
        let AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Publish(publish))) = &frames[0] else {
            panic!("{:?}", frames[0])
        };
        assert_eq!((publish.exchange.as_str(), publish.routing_key.as_str()), ("ex", "key"));
        assert!(publish.mandatory && !publish.immediate);
        let AMQPFrame::Header(1, header) = &frames[1] else { panic!("{:?}", frames[1]) };
        assert_eq!((header.class_id, header.body_size, &header.properties), (60, 100, &properties));
        let parts: Vec<&[u8]> = frames[2..]
            .iter()
            .map(|frame| match frame {
                AMQPFrame::Body(1, part) => part.as_slice(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(parts, [&body[..40], &body[40..80], &body[80..]]);
    }

    #[test]
    fn an_empty_body_has_no_frame() {
        let mut bytes = Vec::new();
        Envelope::new("", false, &AMQPProperties::default()).put(&mut bytes, "q", b"", 4096);
        assert_eq!(frames(&bytes).len(), 2);
    }

    #[test]
    fn amq_protocol_reads_an_ack_and_a_delivery_as_they_were_meant() {
        let mut bytes = Vec::new();
        put_ack(&mut bytes, 7, true);
        let header = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        put_delivery(&mut bytes, b"c", 9, b"e", b"k", &header, b"x");
        let frames = frames(&bytes);
        assert_eq!(frames.len(), 4);
        let ack = basic::AMQPMethod::Ack(basic::Ack { delivery_tag: 7, multiple: true });
        assert_eq!(frames[0], AMQPFrame::Method(1, AMQPClass::Basic(ack)));
        let deliver = basic::Deliver {
            consumer_tag: "c".into(),
            delivery_tag: 9,
            redelivered: false,
            exchange: "e".into(),
            routing_key: "k".into(),
        };
        assert_eq!(frames[1], AMQPFrame::Method(1, AMQPClass::Basic(basic::AMQPMethod::Deliver(deliver))));
    }

    #[test]
    fn the_heartbeat_is_one() {
        assert_eq!(frames(&HEARTBEAT_FRAME), [AMQPFrame::Heartbeat]);
    }
}
