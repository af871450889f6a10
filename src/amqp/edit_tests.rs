//! Edited properties are read back with the codec of others.

use amq_protocol::protocol::BasicProperties;
use amq_protocol::types::{AMQPValue, FieldArray, FieldTable};
use lepus_shards::shard::{HeaderSource as _, MessageProperty};
use lepus_shards::{Arguments, Value};

use super::super::codec::tests::header_payload;
use super::super::copies::Copies;
use super::super::failure::PRECONDITION_FAILED;
use super::super::properties::Properties;
use super::*;

fn encoded(properties: &BasicProperties) -> Vec<u8> {
    header_payload(properties, 0)[12..].to_vec()
}

fn keys(keys: &[&str]) -> AMQPValue {
    let keys = keys.iter().map(|key| AMQPValue::LongString((*key).into()));
    AMQPValue::FieldArray(keys.collect::<Vec<_>>().into())
}

fn table(fields: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in fields {
        table.insert((*name).into(), value.clone());
    }
    table
}

/// Every property there is.
fn full() -> BasicProperties {
    BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_content_encoding("utf-8".into())
        .with_headers(table(&[
            ("BCC", keys(&["b"])),
            ("CC", keys(&["c", "d"])),
            ("x", AMQPValue::LongInt(1)),
        ]))
        .with_delivery_mode(2)
        .with_priority(9)
        .with_correlation_id("17".into())
        .with_reply_to("there".into())
        .with_expiration("100".into())
        .with_message_id("m-1".into())
        .with_timestamp(1_700_000_000)
        .with_type("t".into())
        .with_user_id("guest".into())
        .with_app_id("app".into())
        .with_cluster_id("cluster".into())
}

#[test]
fn reply_to_is_replaced_and_nothing_else() {
    let edited = with_reply_to(&encoded(&full()), "a much longer name than before");
    assert_eq!(edited, encoded(&full().with_reply_to("a much longer name than before".into())));
}

#[test]
fn a_header_is_taken_out_and_nothing_else() {
    let without = table(&[("CC", keys(&["c", "d"])), ("x", AMQPValue::LongInt(1))]);
    assert_eq!(without_header(&encoded(&full()), b"BCC"), encoded(&full().with_headers(without)));
    let only = BasicProperties::default().with_headers(table(&[("BCC", keys(&[]))]));
    let empty = BasicProperties::default().with_headers(FieldTable::default());
    assert_eq!(without_header(&encoded(&only), b"BCC"), encoded(&empty), "the empty table stays");
    let none = encoded(&BasicProperties::default());
    assert_eq!(without_header(&none, b"BCC"), none);
}

#[test]
fn an_integer_in_a_header_gets_a_minus_and_nothing_else_changes() {
    let with = |value: AMQPValue| full().with_headers(table(&[("a", keys(&["k"])), ("x-delay", value)]));
    for (value, negated) in [
        (AMQPValue::LongInt(100), -100),
        (AMQPValue::LongInt(-5), 5),
        (AMQPValue::LongLongInt(i64::MAX), -i64::MAX),
        (AMQPValue::LongUInt(u32::MAX), -i64::from(u32::MAX)),
        (AMQPValue::ShortInt(7), -7),
        (AMQPValue::ShortShortUInt(255), -255),
    ] {
        let expected = encoded(&with(AMQPValue::LongLongInt(negated)));
        assert_eq!(with_minus(&encoded(&with(value)), b"x-delay"), expected);
    }
    for value in [AMQPValue::LongString("5".into()), AMQPValue::Double(5.0), AMQPValue::LongLongInt(i64::MIN)]
    {
        let same = encoded(&with(value));
        assert_eq!(with_minus(&same, b"x-delay"), same);
    }
    let none = encoded(&BasicProperties::default());
    assert_eq!(with_minus(&none, b"x-delay"), none);
}

#[test]
fn properties_are_found_behind_all_others() {
    let bytes = encoded(&full());
    let properties = Properties::parse(&bytes).unwrap();
    let text = |text: &str| Some(Value::LongString(text.into()));
    assert_eq!(properties.property(MessageProperty::CorrelationId), text("17"));
    assert_eq!(properties.property(MessageProperty::MessageId), text("m-1"));
    assert_eq!(properties.property(MessageProperty::Timestamp), Some(Value::Timestamp(1_700_000_000)));
    assert_eq!(properties.reply_to, Some(&b"there"[..]));
    let bytes = encoded(&BasicProperties::default());
    assert_eq!(Properties::parse(&bytes).unwrap().property(MessageProperty::Timestamp), None);
    assert_eq!(Properties::parse(&bytes).unwrap().headers(), Arguments::new());
}

#[test]
fn further_keys_come_from_arrays_on_the_outermost_level() {
    let copies = |fields: &[(&str, AMQPValue)]| {
        let bytes = encoded(&BasicProperties::default().with_headers(table(fields)));
        let properties = Properties::parse(&bytes).unwrap();
        Copies::of(&properties, (60, 40))
            .map(|copies| (copies.keys.iter().map(|key| key.to_vec()).collect::<Vec<_>>(), copies.blind))
    };
    let found = |names: &[&[u8]], blind| Ok((names.iter().map(|name| name.to_vec()).collect(), blind));
    assert_eq!(copies(&[("CC", keys(&["a", "b"]))]), found(&[b"a", b"b"], false));
    assert_eq!(copies(&[("BCC", keys(&["a"]))]), found(&[b"a"], true));
    assert_eq!(copies(&[("cc", keys(&["a"]))]), found(&[], false));
    let nested = AMQPValue::FieldTable(table(&[("CC", keys(&["a"]))]));
    assert_eq!(copies(&[("z", nested)]), found(&[], false));
    let mixed = vec![AMQPValue::LongInt(5), AMQPValue::LongString("a".into()), AMQPValue::Void];
    assert_eq!(copies(&[("CC", AMQPValue::FieldArray(FieldArray::from(mixed)))]), found(&[b"a"], false));
    for (value, kind) in [
        (AMQPValue::LongString("a".into()), "longstr"),
        (AMQPValue::LongInt(5), "signedint"),
        (AMQPValue::Void, "void"),
        (AMQPValue::FieldTable(FieldTable::default()), "table"),
        (AMQPValue::Boolean(true), "bool"),
    ] {
        let failure = copies(&[("BCC", value)]).unwrap_err();
        assert_eq!(failure.code, PRECONDITION_FAILED);
        assert!(
            failure
                .reply_text()
                .ends_with(&format!("invalid message: {{unacceptable_type_in_header,\"BCC\",{kind}}}"))
        );
    }
}
