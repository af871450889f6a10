//! Field tables: checked before anything recursive reads them, and converted to the kernel's values.

use std::borrow::Cow;

use amq_protocol::types::{AMQPValue, FieldTable};
use lepus_shards::{Arguments, Value};

use super::limits::TABLE_DEPTH_MAX;

/// A table, or what claims to be one, that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Checks the table at the start of `bytes` (its length in front) and gives the bytes behind it.
///
/// # Errors
/// When a length leads outside, a type is unknown, or the nesting is deeper than [`TABLE_DEPTH_MAX`].
pub fn check_table(bytes: &[u8]) -> Result<&[u8], Malformed> {
    check_nested(bytes, 0, true)
}

fn check_nested(bytes: &[u8], depth: usize, table: bool) -> Result<&[u8], Malformed> {
    if depth > TABLE_DEPTH_MAX {
        return Err(Malformed);
    }
    let (mut inside, rest) = prefixed(bytes)?;
    while !inside.is_empty() {
        if table {
            inside = short(inside)?.1;
        }
        inside = check_value(inside, depth)?;
    }
    Ok(rest)
}

/// Passes over one value, its type in front.
fn check_value(bytes: &[u8], depth: usize) -> Result<&[u8], Malformed> {
    let (kind, value) = bytes.split_first().ok_or(Malformed)?;
    match kind {
        b'V' => Ok(value),
        b't' | b'b' | b'B' => skip(value, 1),
        b's' | b'u' | b'U' => skip(value, 2),
        b'I' | b'i' | b'f' => skip(value, 4),
        b'D' => skip(value, 5),
        b'l' | b'L' | b'd' | b'T' => skip(value, 8),
        b'S' | b'x' => Ok(prefixed(value)?.1),
        b'A' => check_nested(value, depth + 1, false),
        b'F' => check_nested(value, depth + 1, true),
        _ => Err(Malformed),
    }
}

/// One field of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    pub name: &'a [u8],
    /// The type's letter.
    pub kind: u8,
    /// What follows the type.
    pub value: &'a [u8],
    /// All of it, as it stands in the table.
    pub bytes: &'a [u8],
}

/// The fields on the outermost level of a well-formed table, its length in front.
pub(super) fn entries(table: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    let mut inside = prefixed(table).map_or(&[][..], |(inside, _)| inside);
    std::iter::from_fn(move || {
        let (name, value) = short(inside).ok()?;
        let rest = check_value(value, 0).ok()?;
        let bytes = &inside[..inside.len() - rest.len()];
        let value = &value[..value.len() - rest.len()];
        inside = rest;
        Some(Entry { name, kind: value[0], value: &value[1..], bytes })
    })
}

/// The long strings of a well-formed array, its length in front; what else is in it is passed over.
pub(super) fn long_strings(array: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut inside = prefixed(array).map_or(&[][..], |(inside, _)| inside);
    std::iter::from_fn(move || {
        while !inside.is_empty() {
            let value = inside;
            inside = check_value(value, 0).ok()?;
            if value[0] == b'S' {
                return prefixed(&value[1..]).ok().map(|(text, _)| text);
            }
        }
        None
    })
}

/// Bytes of the table at the start of `bytes`, its length included.
pub(super) fn table_size(bytes: &[u8]) -> Option<usize> {
    prefixed(bytes).ok().map(|(inside, _)| 4 + inside.len())
}

/// RabbitMQ's name of a field's type.
pub(super) fn kind_name(kind: u8) -> &'static str {
    match kind {
        b'V' => "void",
        b't' => "bool",
        b'b' => "byte",
        b'B' => "unsignedbyte",
        b's' | b'U' => "short",
        b'u' => "unsignedshort",
        b'I' => "signedint",
        b'i' => "unsignedint",
        b'l' | b'L' => "long",
        b'f' => "float",
        b'd' => "double",
        b'D' => "decimal",
        b'S' => "longstr",
        b'x' => "binary",
        b'T' => "timestamp",
        b'A' => "array",
        _ => "table",
    }
}

/// The long string under this name on the outermost level of a well-formed table; also an empty one for a
/// value of another type, so that it is noticed.
pub fn find_text<'a>(table: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let (kind, value) = find_value(table, wanted)?.split_first()?;
    match kind {
        b'S' => prefixed(value).ok().map(|(text, _)| text),
        _ => Some(&[]),
    }
}

/// What follows this name: the value's type, the value, and all that is behind it.
fn find_value<'a>(table: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let (mut inside, _) = prefixed(table).ok()?;
    while !inside.is_empty() {
        let (name, value) = short(inside).ok()?;
        if name == wanted {
            return Some(value);
        }
        inside = check_value(value, 0).ok()?;
    }
    None
}

/// A field of a table: its name, and its value with the type in front, as on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field<'a> {
    pub name: &'a [u8],
    pub value: Cow<'a, [u8]>,
}

/// The fields of a well-formed table (its length in front), on its outermost level.
pub fn fields(table: &[u8]) -> impl Iterator<Item = Field<'_>> {
    let mut inside = prefixed(table).map_or(&[][..], |(inside, _)| inside);
    std::iter::from_fn(move || {
        let (name, value) = short(inside).ok()?;
        let rest = check_value(value, 0).ok()?;
        inside = rest;
        Some(Field { name, value: Cow::Borrowed(&value[..value.len() - rest.len()]) })
    })
}

/// Appends a table of these fields, its length in front.
pub fn put_table(out: &mut Vec<u8>, fields: &[Field<'_>]) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for field in fields {
        out.push(u8::try_from(field.name.len()).expect("a field's name is a short string"));
        out.extend_from_slice(field.name);
        out.extend_from_slice(&field.value);
    }
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}

/// A text as a field's value, its type in front.
pub(super) fn long_string(text: &[u8]) -> Vec<u8> {
    let mut value = vec![b'S'];
    value.extend_from_slice(&(text.len() as u32).to_be_bytes());
    value.extend_from_slice(text);
    value
}

/// A number of 64 bits as a field's value.
pub(super) fn long(number: i64) -> Vec<u8> {
    let mut value = vec![b'l'];
    value.extend_from_slice(&number.to_be_bytes());
    value
}

/// Values as the value of one field.
pub(super) fn array(values: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let items: Vec<u8> = values.into_iter().flatten().collect();
    let mut value = vec![b'A'];
    value.extend_from_slice(&(items.len() as u32).to_be_bytes());
    value.extend_from_slice(&items);
    value
}

/// Passes over `count` bytes.
pub fn skip(bytes: &[u8], count: usize) -> Result<&[u8], Malformed> {
    bytes.get(count..).ok_or(Malformed)
}

/// A short string at the start of `bytes`, and what follows it.
pub fn short(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (&len, rest) = bytes.split_first().ok_or(Malformed)?;
    rest.split_at_checked(usize::from(len)).ok_or(Malformed)
}

/// What has its length in front, and what follows it.
fn prefixed(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (len, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed)?;
    rest.split_at_checked(u32::from_be_bytes(*len) as usize).ok_or(Malformed)
}

/// A table as the kernel has it: every type and width kept.
pub fn to_arguments(table: &FieldTable) -> Arguments {
    table.inner().iter().map(|(name, value)| (name.as_str().to_owned(), to_value(value))).collect()
}

fn to_value(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(v) => Value::Bool(*v),
        AMQPValue::ShortShortInt(v) => Value::I8(*v),
        AMQPValue::ShortShortUInt(v) => Value::U8(*v),
        AMQPValue::ShortInt(v) => Value::I16(*v),
        AMQPValue::ShortUInt(v) => Value::U16(*v),
        AMQPValue::LongInt(v) => Value::I32(*v),
        AMQPValue::LongUInt(v) => Value::U32(*v),
        AMQPValue::LongLongInt(v) => Value::I64(*v),
        AMQPValue::Float(v) => Value::F32(*v),
        AMQPValue::Double(v) => Value::F64(*v),
        AMQPValue::DecimalValue(v) => Value::Decimal(v.scale, v.value),
        AMQPValue::ShortString(v) => Value::LongString(v.as_str().as_bytes().to_vec()),
        AMQPValue::LongString(v) => Value::LongString(v.as_bytes().to_vec()),
        AMQPValue::FieldArray(v) => Value::Array(v.as_slice().iter().map(to_value).collect()),
        AMQPValue::Timestamp(v) => Value::Timestamp(*v),
        AMQPValue::FieldTable(v) => Value::Table(to_arguments(v)),
        AMQPValue::ByteArray(v) => Value::Bytes(v.as_slice().to_vec()),
        AMQPValue::Void => Value::Void,
    }
}
