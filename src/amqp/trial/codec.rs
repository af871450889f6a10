//! Any bytes as the arguments of every hot method, as properties, as a table and as a stream: what the hot
//! codec reads, `amq-protocol` reads, and the other way round.
//!
//! Two differences are meant. `amq-protocol` wants UTF-8 where AMQP has bytes; and it goes down into tables of
//! any depth, by recursion, so that it is only given what cannot be too deep.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, parse_frame};
use amq_protocol::protocol::{AMQPClass, basic, parse_class};
use amq_protocol::types::parsing::parse_field_table;
use amq_protocol::types::{AMQPValue, FieldTable};
use lepus_shards::shard::HeaderSource;

use crate::amqp::codec::{
    BODY, ContentHeader, FRAME_END, FrameHead, HEADER, HEARTBEAT, METHOD, PublishMethod, read_settlement,
};
use crate::amqp::copies::Copies;
use crate::amqp::edit;
use crate::amqp::limits::TABLE_DEPTH_MAX;
use crate::amqp::method;
use crate::amqp::properties::Properties;
use crate::amqp::table::{check_table, entries, to_arguments};

/// A level of nesting takes a type and a length at least: what is shorter than this is not nested too deep.
const SHALLOW_BYTES: usize = TABLE_DEPTH_MAX * 5;

/// The lowest two property flags, which AMQP 0-9-1 does not have: refused here, passed over by the other codec.
const UNKNOWN_FLAGS: u8 = 0b11;

/// Reads bytes in every way that the codec has, and compares with the other codec.
pub fn check_codec(bytes: &[u8]) {
    check_publish(bytes);
    check_settlements(bytes);
    check_properties(bytes);
    check_tables(bytes);
    check_method(bytes);
    check_frames(bytes);
    let _ = ContentHeader::read(bytes);
}

/// A method of class `basic` with these arguments, as the other codec reads it.
fn read_basic(id: u8, arguments: &[u8]) -> Option<basic::AMQPMethod> {
    let payload = [&[0, 60, 0, id], arguments].concat();
    match parse_class(payload.as_slice()) {
        Ok(([], AMQPClass::Basic(method))) => Some(method),
        _ => None,
    }
}

fn check_publish(arguments: &[u8]) {
    match (PublishMethod::read(arguments), read_basic(40, arguments)) {
        (Ok(ours), Some(basic::AMQPMethod::Publish(other))) => {
            assert_eq!(ours.exchange, other.exchange.as_str().as_bytes());
            assert_eq!(ours.routing_key, other.routing_key.as_str().as_bytes());
            assert_eq!((ours.mandatory, ours.immediate), (other.mandatory, other.immediate));
        }
        (Ok(ours), None) => {
            let text = [ours.exchange, ours.routing_key].iter().all(|name| str::from_utf8(name).is_ok());
            assert!(!text, "a publish that only we read");
        }
        (Err(_), None) => {}
        (ours, other) => panic!("a publish is {ours:?} or {other:?}"),
    }
}

fn check_settlements(arguments: &[u8]) {
    let ours = read_settlement(arguments).ok();
    for id in [80, 90, 120] {
        let (tag, bits, mask) = match read_basic(id, arguments) {
            Some(basic::AMQPMethod::Ack(ack)) => (ack.delivery_tag, u8::from(ack.multiple), 1),
            Some(basic::AMQPMethod::Reject(reject)) => (reject.delivery_tag, u8::from(reject.requeue), 1),
            Some(basic::AMQPMethod::Nack(nack)) => {
                (nack.delivery_tag, u8::from(nack.multiple) | u8::from(nack.requeue) << 1, 3)
            }
            None if ours.is_none() => continue,
            other => panic!("settlement {id} is {ours:?} or {other:?}"),
        };
        assert_eq!(ours.map(|(tag, bits)| (tag, bits & mask)), Some((tag, bits)), "settlement {id}");
    }
}

fn check_properties(bytes: &[u8]) {
    let ours = Properties::parse(bytes);
    if ours.is_err() && bytes.len() >= SHALLOW_BYTES {
        return;
    }
    let payload = [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2], bytes].concat();
    let header = ContentHeader::read(&payload).expect("all of its head is there");
    assert_eq!((header.body_size, header.properties), (0x102, bytes));
    let Some(other) = read_header(&payload) else {
        assert!(ours.is_err() || !bytes.is_ascii(), "properties that only we read");
        return;
    };
    assert_eq!((other.class_id, other.body_size), (60, 0x102));
    let Ok(ours) = ours else {
        assert!(bytes[1] & UNKNOWN_FLAGS != 0, "properties that only the other codec reads");
        return;
    };
    let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
    let (expiration, user_id) = (other.properties.expiration(), other.properties.user_id());
    assert_eq!(ours.persistent, *other.properties.delivery_mode() == Some(2));
    assert_eq!(text(ours.expiration), expiration.as_ref().map(|value| value.as_str().to_owned()));
    assert_eq!(text(ours.user_id), user_id.as_ref().map(|value| value.as_str().to_owned()));
    let headers = other.properties.headers().as_ref();
    // As text: a number that is none is not equal to itself.
    let theirs = headers.map(to_arguments).unwrap_or_default();
    assert_eq!(format!("{:?}", ours.headers()), format!("{theirs:?}"));
    check_copies(&ours, headers);
    check_edits(&ours);
}

/// Further routing keys are what the other codec finds in arrays under these names.
fn check_copies(ours: &Properties<'_>, headers: Option<&FieldTable>) {
    let Ok(copies) = Copies::of(ours, (60, 40)) else { return };
    let mut expected = Vec::new();
    for (name, value) in headers.into_iter().flat_map(|all| all.inner()) {
        if let ("CC" | "BCC", AMQPValue::FieldArray(keys)) = (name.as_str(), value) {
            expected.extend(keys.as_slice().iter().filter_map(|key| match key {
                AMQPValue::LongString(key) => Some(key.as_bytes().to_vec()),
                _ => None,
            }));
        }
    }
    let mut found: Vec<Vec<u8>> = copies.keys.iter().map(|key| key.to_vec()).collect();
    found.sort_unstable();
    expected.sort_unstable();
    // A table may name a header twice; the other codec keeps one of them.
    assert!(expected.iter().all(|key| found.contains(key)), "every key is found");
}

/// What is edited can be read again, and differs where it should.
fn check_edits(ours: &Properties<'_>) {
    let edited = edit::without_header(ours.bytes, b"BCC");
    let read = Properties::parse(&edited).expect("edited properties are well-formed");
    assert!(!read.headers().contains_key("BCC"));
    assert_eq!((read.expiration, read.user_id), (ours.expiration, ours.user_id));
    let edited = edit::with_minus(ours.bytes, b"x-delay");
    let read = Properties::parse(&edited).expect("edited properties are well-formed");
    assert_eq!((read.expiration, read.user_id), (ours.expiration, ours.user_id));
    if ours.reply_to.is_some() {
        let edited = edit::with_reply_to(ours.bytes, "elsewhere");
        let read = Properties::parse(&edited).expect("edited properties are well-formed");
        assert_eq!(read.reply_to, Some(&b"elsewhere"[..]));
        assert_eq!((read.expiration, read.user_id), (ours.expiration, ours.user_id));
    }
}

fn read_header(payload: &[u8]) -> Option<AMQPContentHeader> {
    let mut frame = vec![HEADER, 0, 1];
    frame.extend_from_slice(&u32::try_from(payload.len()).expect("an input is small").to_be_bytes());
    frame.extend_from_slice(payload);
    frame.push(FRAME_END);
    match parse_frame(frame.as_slice()) {
        Ok(([], AMQPFrame::Header(1, header))) => Some(header),
        _ => None,
    }
}

fn check_tables(bytes: &[u8]) {
    let ours = check_table(bytes);
    if ours.is_err() && bytes.len() >= SHALLOW_BYTES {
        return;
    }
    match (ours, parse_field_table(bytes)) {
        (Ok(ours), Ok((other, table))) => {
            assert_eq!(ours, other, "what follows the table");
            assert!(
                table
                    .inner()
                    .keys()
                    .all(|name| entries(bytes).any(|entry| entry.name == name.as_str().as_bytes()))
            );
        }
        (Ok(_), Err(_)) => assert!(!bytes.is_ascii(), "a table that only we read"),
        (Err(_), Ok(_)) => panic!("a table that only the other codec reads"),
        (Err(_), Err(_)) => {}
    }
}

/// What is read as a method is the same after it has been written.
fn check_method(payload: &[u8]) {
    let Ok(class) = method::read(payload) else { return };
    let (mut once, mut again) = (Vec::new(), Vec::new());
    method::write(&mut once, 1, &class);
    let (start, end) = (FrameHead::BYTES, once.len() - 1);
    let class = method::read(&once[start..end]).expect("what is written can be read");
    method::write(&mut again, 1, &class);
    assert_eq!(once, again);
}

/// The whole frames at the start of a stream.
fn check_frames(mut bytes: &[u8]) {
    while let Some(head) = FrameHead::read(bytes) {
        let Some(frame) = bytes.get(..head.frame_bytes()) else {
            // Of a frame that is not all there, the other codec must not make anything either.
            assert!(head.kind == b'A' || parse_frame(bytes).is_err());
            return;
        };
        let (end, payload) = (frame[frame.len() - 1], &frame[FrameHead::BYTES..frame.len() - 1]);
        if end != FRAME_END {
            return;
        }
        let deep = match head.kind {
            METHOD => method::read(payload).is_err(),
            HEADER => {
                let header = ContentHeader::read(payload).map(|header| header.properties);
                header.and_then(Properties::parse).is_err()
            }
            _ => false,
        };
        if !deep {
            compare_frame(head, frame, payload);
        }
        check_method(payload);
        bytes = &bytes[head.frame_bytes()..];
    }
}

fn compare_frame(head: FrameHead, frame: &[u8], payload: &[u8]) {
    let channel = match parse_frame(frame) {
        Ok(([], AMQPFrame::Method(channel, _))) if head.kind == METHOD => channel,
        Ok(([], AMQPFrame::Header(channel, _))) if head.kind == HEADER => channel,
        Ok(([], AMQPFrame::Body(channel, part))) if head.kind == BODY => {
            assert_eq!(part, payload);
            channel
        }
        Ok(([], AMQPFrame::Heartbeat)) if head.kind == HEARTBEAT => 0,
        Ok(([], AMQPFrame::InvalidHeartbeat(channel))) if head.kind == HEARTBEAT => channel,
        Err(_) if head.kind == HEADER && !payload.is_ascii() => return,
        Err(_) if !matches!(head.kind, METHOD | HEADER | BODY | HEARTBEAT) => return,
        Ok(_) if head.kind == b'A' => return,
        other => panic!("a frame of type {} is {other:?}", head.kind),
    };
    assert_eq!(channel, head.channel);
}
