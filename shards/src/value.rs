//! Typed values of arguments and headers, as the wire had them: the width of an integer and the
//! difference between text and bytes survive a round trip, because clients compare them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One value of an argument table. The set is AMQP 0-9-1's as RabbitMQ speaks it
/// (<https://www.rabbitmq.com/amqp-0-9-1-errata>, section 3).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Value {
    /// `V`
    Void,
    /// `t`
    Bool(bool),
    /// `b`
    I8(i8),
    /// `B`
    U8(u8),
    /// `s`
    I16(i16),
    /// `u`
    U16(u16),
    /// `I`
    I32(i32),
    /// `i`
    U32(u32),
    /// `l`
    I64(i64),
    /// `f`
    F32(f32),
    /// `d`
    F64(f64),
    /// `D`: scale and unscaled value
    Decimal(u8, u32),
    /// `S`: text by convention, bytes in truth
    LongString(Vec<u8>),
    /// `x`
    Bytes(Vec<u8>),
    /// `T`: seconds since 1970
    Timestamp(u64),
    /// `A`
    Array(Vec<Value>),
    /// `F`
    Table(Arguments),
}

impl Value {
    /// The value as an integer, whatever its width; none for anything else.
    pub fn as_integer(&self) -> Option<i64> {
        Some(match *self {
            Value::I8(v) => v.into(),
            Value::U8(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I64(v) => v,
            _ => return None,
        })
    }

    /// The value as text; none for anything that is not a UTF-8 long string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Value::LongString(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

/// An argument table. Ordered by name, so that equal tables are equal bytes when stored.
pub type Arguments = BTreeMap<String, Value>;
