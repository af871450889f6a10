//! The hot codec against `amq-protocol`, both ways, and against everything that is not well-formed.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame, parse_frame};
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic};
use amq_protocol::types::{AMQPValue, FieldArray, FieldTable};
use lepus_shards::shard::HeaderSource;
use proptest::prelude::*;

use super::super::method;
use super::super::properties::Properties;
use super::super::table::to_arguments;
use super::super::trial::check_codec;
use super::*;

fn generate(frame: &AMQPFrame) -> Vec<u8> {
    gen_frame(frame)(WriteContext::from(Vec::new())).unwrap().into_inner().0
}

/// All frames in `bytes`, as the other codec reads them.
fn parse_all(mut bytes: &[u8]) -> Vec<AMQPFrame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (rest, frame) = parse_frame(bytes).expect("what is written can be read");
        frames.push(frame);
        bytes = rest;
    }
    frames
}

fn method_frame(channel: u16, method: basic::AMQPMethod) -> AMQPFrame {
    AMQPFrame::Method(channel, AMQPClass::Basic(method))
}

fn payload(frame: &[u8]) -> &[u8] {
    &frame[FrameHead::BYTES..frame.len() - 1]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-zäß.#*-]{1,60}", "[ -~]{0,255}"]
}

fn value() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<f32>().prop_filter("a number", |v| !v.is_nan()).prop_map(AMQPValue::Float),
        any::<f64>().prop_filter("a number", |v| !v.is_nan()).prop_map(AMQPValue::Double),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|v| AMQPValue::LongString(v.into())),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|v| AMQPValue::ByteArray(v.into())),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(|values| {
                let mut array = FieldArray::default();
                values.into_iter().for_each(|value| array.push(value));
                AMQPValue::FieldArray(array)
            }),
            prop::collection::vec(("[a-z]{1,8}", inner), 0..5)
                .prop_map(|entries| AMQPValue::FieldTable(into_table(entries))),
        ]
    })
}

fn into_table(entries: Vec<(String, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

fn table() -> impl Strategy<Value = FieldTable> {
    prop::collection::vec(("[a-zA-Z-]{1,12}", value()), 0..6).prop_map(into_table)
}

/// Every combination of properties, each there or not.
fn properties() -> impl Strategy<Value = BasicProperties> {
    let text = || prop::option::of(name());
    let first = (text(), text(), prop::option::of(table()), prop::option::of(any::<u8>()));
    let second = (prop::option::of(any::<u8>()), text(), text(), text(), text());
    let third = (prop::option::of(any::<u64>()), text(), text(), text(), text());
    (first, second, third).prop_map(|(first, second, third)| {
        let mut properties = BasicProperties::default();
        macro_rules! set {
            ($value:expr, $with:ident) => {
                if let Some(value) = $value {
                    properties = properties.$with(value.into());
                }
            };
        }
        set!(first.0, with_content_type);
        set!(first.1, with_content_encoding);
        set!(first.2, with_headers);
        set!(first.3, with_delivery_mode);
        set!(second.0, with_priority);
        set!(second.1, with_correlation_id);
        set!(second.2, with_reply_to);
        set!(second.3, with_expiration);
        set!(second.4, with_message_id);
        set!(third.0, with_timestamp);
        set!(third.1, with_type);
        set!(third.2, with_user_id);
        set!(third.3, with_app_id);
        set!(third.4, with_cluster_id);
        properties
    })
}

pub(in crate::amqp) fn header_payload(properties: &BasicProperties, body_size: u64) -> Vec<u8> {
    let header = AMQPContentHeader { class_id: 60, body_size, properties: properties.clone() };
    let frame = generate(&AMQPFrame::Header(1, header));
    payload(&frame).to_vec()
}

proptest! {
    #[test]
    fn publish_is_read_as_the_other_codec_writes_it(
        channel in 1u16.., exchange in name(), key in name(), mandatory: bool, immediate: bool,
    ) {
        let publish = basic::Publish {
            exchange: exchange.as_str().into(), routing_key: key.as_str().into(), mandatory, immediate,
        };
        let frame = generate(&method_frame(channel, basic::AMQPMethod::Publish(publish)));
        let head = FrameHead::read(&frame).unwrap();
        prop_assert_eq!((head.kind, head.channel, head.frame_bytes()), (METHOD, channel, frame.len()));
        let arguments = payload(&frame).strip_prefix(&[0, 60, 0, 40]).unwrap();
        let read = PublishMethod::read(arguments).unwrap();
        let (exchange, routing_key) = (exchange.as_bytes(), key.as_bytes());
        prop_assert_eq!(read, PublishMethod { exchange, routing_key, mandatory, immediate });
        for cut in 0..arguments.len() {
            prop_assert!(PublishMethod::read(&arguments[..cut]).is_err(), "cut to {} bytes", cut);
        }
    }

    #[test]
    fn settlements_are_read_as_the_other_codec_writes_them(tag: u64, multiple: bool, requeue: bool) {
        let ack = basic::Ack { delivery_tag: tag, multiple };
        let nack = basic::Nack { delivery_tag: tag, multiple, requeue };
        let reject = basic::Reject { delivery_tag: tag, requeue };
        for (method, bits) in [
            (basic::AMQPMethod::Ack(ack), u8::from(multiple)),
            (basic::AMQPMethod::Nack(nack), u8::from(multiple) | u8::from(requeue) << 1),
            (basic::AMQPMethod::Reject(reject), u8::from(requeue)),
        ] {
            let frame = generate(&method_frame(1, method));
            prop_assert_eq!(read_settlement(&payload(&frame)[4..]), Ok((tag, bits)));
        }
    }

    #[test]
    fn properties_are_understood_and_kept_to_the_byte(properties in properties(), body_size: u64) {
        let payload = header_payload(&properties, body_size);
        let header = ContentHeader::read(&payload).unwrap();
        prop_assert_eq!(header.body_size, body_size);
        let read = Properties::parse(header.properties).unwrap();
        prop_assert_eq!(read.bytes, &payload[12..]);
        prop_assert_eq!(read.persistent, *properties.delivery_mode() == Some(2));
        let text = |value: &Option<amq_protocol::types::ShortString>| value.as_ref().map(|v| v.as_str().as_bytes().to_vec());
        prop_assert_eq!(read.expiration.map(<[u8]>::to_vec), text(properties.expiration()));
        prop_assert_eq!(read.user_id.map(<[u8]>::to_vec), text(properties.user_id()));
        let headers = properties.headers().as_ref().map(to_arguments).unwrap_or_default();
        prop_assert_eq!(read.headers(), headers);
    }

    #[test]
    fn cut_properties_are_refused(properties in properties(), cut: prop::sample::Index) {
        let payload = header_payload(&properties, 0);
        let bytes = &payload[12..];
        let cut = cut.index(bytes.len());
        // Nothing but the flags is well-formed when no flag is set.
        prop_assert!(Properties::parse(&bytes[..cut]).is_err());
        let mut longer = bytes.to_vec();
        longer.push(0);
        prop_assert!(Properties::parse(&longer).is_err(), "bytes are left over");
    }

    #[test]
    fn random_bytes_are_read_as_the_other_codec_reads_them(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_codec(&bytes);
    }

    /// Mostly well-formed, but not quite: this gets further than noise.
    #[test]
    fn damaged_properties_and_tables_are_read_as_the_other_codec_reads_them(
        properties in properties(), table in table(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let header = header_payload(&properties, 0);
        let mut payload = header_payload(&BasicProperties::default().with_headers(table), 0);
        for bytes in [&mut header.clone()[12..], &mut payload[14..]] {
            check_codec(bytes);
            for (at, byte) in damage.iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
                bytes[at.index(bytes.len())] = *byte;
            }
            check_codec(bytes);
        }
    }

    #[test]
    fn deliveries_are_written_as_the_other_codec_reads_them(
        channel in 1u16.., tag: u64, redelivered: bool, remaining: u32,
        consumer_tag in name(), exchange in name(), key in name(), properties in properties(),
        body in prop::collection::vec(any::<u8>(), 0..3_000), frame_max in 64usize..1_500,
    ) {
        let payload = header_payload(&properties, body.len() as u64);
        let message = MessageView {
            exchange: exchange.as_bytes(), routing_key: key.as_bytes(), properties: &payload[12..], body: &body,
        };
        let deliver = basic::Deliver {
            consumer_tag: consumer_tag.as_str().into(), delivery_tag: tag, redelivered,
            exchange: exchange.as_str().into(), routing_key: key.as_str().into(),
        };
        let got = basic::GetOk {
            delivery_tag: tag, redelivered, exchange: exchange.as_str().into(),
            routing_key: key.as_str().into(), message_count: remaining,
        };
        let returned = basic::Return {
            reply_code: 312, reply_text: "NO_ROUTE".into(), exchange: exchange.as_str().into(),
            routing_key: key.as_str().into(),
        };
        let mut outs = [Vec::new(), Vec::new(), Vec::new()];
        put_deliver(&mut outs[0], channel, consumer_tag.as_bytes(), tag, redelivered, &message, frame_max);
        put_get_ok(&mut outs[1], channel, tag, redelivered, remaining, &message, frame_max);
        put_return(&mut outs[2], channel, &message, frame_max);
        let methods = [
            basic::AMQPMethod::Deliver(deliver), basic::AMQPMethod::GetOk(got), basic::AMQPMethod::Return(returned),
        ];
        for (out, method) in outs.iter().zip(methods) {
            let frames = parse_all(out);
            prop_assert_eq!(&frames[0], &method_frame(channel, method));
            let header = AMQPContentHeader { class_id: 60, body_size: body.len() as u64, properties: properties.clone() };
            prop_assert_eq!(&frames[1], &AMQPFrame::Header(channel, header));
            let mut joined = Vec::new();
            for frame in &frames[2..] {
                let AMQPFrame::Body(on, part) = frame else { panic!("only body frames follow") };
                prop_assert!(*on == channel && part.len() + 8 <= frame_max && !part.is_empty());
                joined.extend_from_slice(part);
            }
            prop_assert_eq!(&joined, &body);
        }
    }

    #[test]
    fn confirms_are_written_as_the_other_codec_reads_them(channel in 1u16.., tag: u64, multiple: bool) {
        let (mut ack, mut nack) = (Vec::new(), Vec::new());
        put_confirm(&mut ack, channel, tag, multiple, true);
        put_confirm(&mut nack, channel, tag, multiple, false);
        let expected = basic::AMQPMethod::Ack(basic::Ack { delivery_tag: tag, multiple });
        prop_assert_eq!(parse_all(&ack), vec![method_frame(channel, expected)]);
        let expected = basic::AMQPMethod::Nack(basic::Nack { delivery_tag: tag, multiple, requeue: false });
        prop_assert_eq!(parse_all(&nack), vec![method_frame(channel, expected)]);
    }
}

/// A table that holds a table that holds a table ...
fn nested(depth: usize) -> Vec<u8> {
    let mut inside = Vec::new();
    for _ in 0..depth {
        let mut outer = vec![1, b'x', b'F'];
        outer.extend_from_slice(&(inside.len() as u32).to_be_bytes());
        outer.append(&mut inside);
        inside = outer;
    }
    let mut table = (inside.len() as u32).to_be_bytes().to_vec();
    table.append(&mut inside);
    table
}

#[test]
fn nesting_is_bounded_in_every_method_that_has_a_table() {
    let methods: [(u16, u16, &[u8], &[u8]); 8] = [
        (10, 11, b"", b"\x05PLAIN\0\0\0\0\x05en_US"),
        (40, 10, b"\0\0\x01x\x06direct\0", b""),
        (40, 30, b"\0\0\x01d\x01s\x01k\0", b""),
        (40, 40, b"\0\0\x01d\x01s\x01k\0", b""),
        (50, 10, b"\0\0\x01q\0", b""),
        (50, 20, b"\0\0\x01q\x01e\x01k\0", b""),
        (50, 50, b"\0\0\x01q\x01e\x01k", b""),
        (60, 20, b"\0\0\x01q\x01c\0", b""),
    ];
    for (class, id, before, behind) in methods {
        for (depth, well_formed) in [(0, true), (10, true), (100, false), (18_000, false)] {
            let mut payload = class.to_be_bytes().to_vec();
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(before);
            payload.extend_from_slice(&nested(depth));
            payload.extend_from_slice(behind);
            assert_eq!(method::read(&payload).is_ok(), well_formed, "{class},{id} nested {depth} deep");
        }
    }
    let mut properties = (1u16 << 13).to_be_bytes().to_vec();
    properties.extend_from_slice(&nested(18_000));
    assert!(Properties::parse(&properties).is_err());
}

#[test]
fn unknown_methods_are_told_from_malformed_ones() {
    assert_eq!(method::read(&[0, 60, 0, 41]), Err(method::Unreadable::Unknown));
    assert_eq!(method::read(&[0, 99, 0, 10]), Err(method::Unreadable::Unknown));
    assert_eq!(method::read(&[0, 50, 0, 10, 0]), Err(method::Unreadable::Malformed));
    assert_eq!(method::read(&[0, 60, 0]), Err(method::Unreadable::Malformed));
    assert_eq!(method::read(&[0, 20, 0, 41, 0]), Err(method::Unreadable::Malformed), "a byte is left over");
}
