//! Changes to well-formed properties, on their bytes: what the broker must not pass on, or must say
//! itself. Everything else stays as the client sent it.

#![forbid(unsafe_code)]

use std::ops::Range;

use lepus_shards::Value;
use lepus_shards::shard::MessageProperty;

use super::properties::{
    APP_ID, CLUSTER_ID, CONTENT_ENCODING, CONTENT_TYPE, CORRELATION_ID, DELIVERY_MODE, EXPIRATION, HEADERS,
    MESSAGE_ID, PRIORITY, REPLY_TO, TIMESTAMP, TYPE, USER_ID,
};
use super::table::{entries, table_size};

/// How long a property is.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// A byte for its length, and the text.
    Short,
    Table,
    Fixed(usize),
}

/// All properties, in the order of the wire.
const FORMS: [(u16, Form); 14] = [
    (CONTENT_TYPE, Form::Short),
    (CONTENT_ENCODING, Form::Short),
    (HEADERS, Form::Table),
    (DELIVERY_MODE, Form::Fixed(1)),
    (PRIORITY, Form::Fixed(1)),
    (CORRELATION_ID, Form::Short),
    (REPLY_TO, Form::Short),
    (EXPIRATION, Form::Short),
    (MESSAGE_ID, Form::Short),
    (TIMESTAMP, Form::Fixed(8)),
    (TYPE, Form::Short),
    (USER_ID, Form::Short),
    (APP_ID, Form::Short),
    (CLUSTER_ID, Form::Short),
];

/// The properties that are in well-formed ones, in their order: flag, form and bytes, its length included.
pub(super) fn properties(bytes: &[u8]) -> impl Iterator<Item = (u16, Form, &[u8])> {
    let flags = bytes.first_chunk().map_or(0, |flags| u16::from_be_bytes(*flags));
    let mut rest = bytes.get(2..).unwrap_or_default();
    let present = FORMS.into_iter().filter(move |(flag, _)| flags & flag != 0);
    present.map_while(move |(flag, form)| {
        let size = match form {
            Form::Short => 1 + usize::from(*rest.first()?),
            Form::Table => table_size(rest)?,
            Form::Fixed(size) => size,
        };
        let (property, behind) = rest.split_at_checked(size)?;
        rest = behind;
        Some((flag, form, property))
    })
}

/// Where a property lies in well-formed properties, its length included; none if it is not there.
pub(super) fn span(bytes: &[u8], wanted: u16) -> Option<Range<usize>> {
    let mut start = 2;
    for (flag, _, property) in properties(bytes) {
        let end = start + property.len();
        if flag == wanted {
            return Some(start..end);
        }
        start = end;
    }
    None
}

/// A property that an exchange may route by, out of well-formed properties.
pub(super) fn property(bytes: &[u8], property: MessageProperty) -> Option<Value> {
    let text =
        |flag| span(bytes, flag).map(|span| Value::LongString(bytes[span.start + 1..span.end].to_vec()));
    match property {
        MessageProperty::CorrelationId => text(CORRELATION_ID),
        MessageProperty::MessageId => text(MESSAGE_ID),
        MessageProperty::Timestamp => {
            let seconds = bytes.get(span(bytes, TIMESTAMP)?)?.first_chunk()?;
            Some(Value::Timestamp(u64::from_be_bytes(*seconds)))
        }
    }
}

/// The properties with another `reply-to`, which must be there and be of at most 255 bytes.
pub(super) fn with_reply_to(bytes: &[u8], name: &str) -> Vec<u8> {
    let span = span(bytes, REPLY_TO).expect("only a reply-to that is there is replaced");
    let size = u8::try_from(name.len()).expect("names for replies are short strings");
    [&bytes[..span.start], &[size], name.as_bytes(), &bytes[span.end..]].concat()
}

/// The properties with the integer in this header negated; as they are if there is none, or none that can be.
pub(super) fn with_minus(bytes: &[u8], name: &[u8]) -> Vec<u8> {
    let Some(span) = span(bytes, HEADERS) else { return bytes.to_vec() };
    let fields = entries(&bytes[span.clone()]).map(|entry| {
        let negated = (entry.name == name).then(|| negated(entry.kind, entry.value)).flatten();
        match negated {
            None => entry.bytes.to_vec(),
            // A type that holds the negative of any other one.
            Some(number) => {
                let value = [&b"l"[..], &number.to_be_bytes()].concat();
                let name = &entry.bytes[..1 + entry.name.len()];
                [name, &value].concat()
            }
        }
    });
    let fields: Vec<u8> = fields.flatten().collect();
    let size = (fields.len() as u32).to_be_bytes();
    [&bytes[..span.start], &size, &fields, &bytes[span.end..]].concat()
}

/// The negative of an integer field.
fn negated(kind: u8, value: &[u8]) -> Option<i64> {
    let number = match kind {
        b'b' => i64::from(i8::from_be_bytes(value.try_into().ok()?)),
        b'B' => i64::from(u8::from_be_bytes(value.try_into().ok()?)),
        b's' | b'U' => i64::from(i16::from_be_bytes(value.try_into().ok()?)),
        b'u' => i64::from(u16::from_be_bytes(value.try_into().ok()?)),
        b'I' => i64::from(i32::from_be_bytes(value.try_into().ok()?)),
        b'i' => i64::from(u32::from_be_bytes(value.try_into().ok()?)),
        b'l' | b'L' => i64::from_be_bytes(value.try_into().ok()?),
        _ => return None,
    };
    number.checked_neg()
}

/// The properties without this header. A table that is empty then stays.
pub(super) fn without_header(bytes: &[u8], name: &[u8]) -> Vec<u8> {
    let Some(span) = span(bytes, HEADERS) else { return bytes.to_vec() };
    let kept: Vec<&[u8]> =
        entries(&bytes[span.clone()]).filter(|entry| entry.name != name).map(|entry| entry.bytes).collect();
    let kept = kept.concat();
    let size = (kept.len() as u32).to_be_bytes();
    [&bytes[..span.start], &size, &kept, &bytes[span.end..]].concat()
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
