//! The properties of a content header: checked once, kept byte for byte, looked into where the
//! broker must.
//!
//! Wire form (specification 4.2.6.1): 16 flags, highest first, then the properties whose flag is set.

use amq_protocol::types::parsing::parse_field_table;
use lepus_shards::shard::{HeaderSource, MessageProperty};
use lepus_shards::{Arguments, Value};

use super::edit;
use super::table::{Malformed, check_table, short, skip, to_arguments};

pub(super) const CONTENT_TYPE: u16 = 1 << 15;
pub(super) const CONTENT_ENCODING: u16 = 1 << 14;
pub(super) const HEADERS: u16 = 1 << 13;
pub(super) const DELIVERY_MODE: u16 = 1 << 12;
pub(super) const PRIORITY: u16 = 1 << 11;
pub(super) const CORRELATION_ID: u16 = 1 << 10;
pub(super) const REPLY_TO: u16 = 1 << 9;
pub(super) const EXPIRATION: u16 = 1 << 8;
pub(super) const MESSAGE_ID: u16 = 1 << 7;
pub(super) const TIMESTAMP: u16 = 1 << 6;
pub(super) const TYPE: u16 = 1 << 5;
pub(super) const USER_ID: u16 = 1 << 4;
pub(super) const APP_ID: u16 = 1 << 3;
pub(super) const CLUSTER_ID: u16 = 1 << 2;
/// The lowest bit announces more flags, which AMQP 0-9-1 does not have; the next is not used.
const UNKNOWN: u16 = 0b11;

/// A view of well-formed properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties<'a> {
    /// Flags and list, as they were sent.
    pub bytes: &'a [u8],
    /// Delivery mode 2.
    pub persistent: bool,
    /// The text of `expiration`.
    pub expiration: Option<&'a [u8]>,
    /// The text of `user-id`.
    pub user_id: Option<&'a [u8]>,
    /// The text of `reply-to`.
    pub reply_to: Option<&'a [u8]>,
    /// The table of headers, its length in front.
    pub(super) headers: Option<&'a [u8]>,
}

impl<'a> Properties<'a> {
    /// Checks all of `bytes`, to the last one: what gets in here, consumers can read.
    ///
    /// # Errors
    /// When flags, lengths or tables are not well-formed, or bytes are left over.
    pub fn parse(bytes: &'a [u8]) -> Result<Properties<'a>, Malformed> {
        let (flags, mut rest) = bytes.split_first_chunk::<2>().ok_or(Malformed)?;
        let flags = u16::from_be_bytes(*flags);
        let mut properties = Properties {
            bytes,
            persistent: false,
            expiration: None,
            user_id: None,
            reply_to: None,
            headers: None,
        };
        if flags == 0 && rest.is_empty() {
            return Ok(properties);
        }
        if flags & UNKNOWN != 0 {
            return Err(Malformed);
        }
        let has = |flag| flags & flag != 0;
        for flag in [CONTENT_TYPE, CONTENT_ENCODING] {
            if has(flag) {
                rest = short(rest)?.1;
            }
        }
        if has(HEADERS) {
            let behind = check_table(rest)?;
            properties.headers = Some(&rest[..rest.len() - behind.len()]);
            rest = behind;
        }
        if has(DELIVERY_MODE) {
            properties.persistent = rest.first() == Some(&2);
            rest = skip(rest, 1)?;
        }
        if has(PRIORITY) {
            rest = skip(rest, 1)?;
        }
        if has(CORRELATION_ID) {
            rest = short(rest)?.1;
        }
        if has(REPLY_TO) {
            let (text, behind) = short(rest)?;
            (properties.reply_to, rest) = (Some(text), behind);
        }
        if has(EXPIRATION) {
            let (text, behind) = short(rest)?;
            (properties.expiration, rest) = (Some(text), behind);
        }
        if has(MESSAGE_ID) {
            rest = short(rest)?.1;
        }
        if has(TIMESTAMP) {
            rest = skip(rest, 8)?;
        }
        if has(TYPE) {
            rest = short(rest)?.1;
        }
        if has(USER_ID) {
            let (text, behind) = short(rest)?;
            (properties.user_id, rest) = (Some(text), behind);
        }
        for flag in [APP_ID, CLUSTER_ID] {
            if has(flag) {
                rest = short(rest)?.1;
            }
        }
        if rest.is_empty() { Ok(properties) } else { Err(Malformed) }
    }
}

impl HeaderSource for Properties<'_> {
    fn headers(&self) -> Arguments {
        match self.headers.map(parse_field_table) {
            Some(Ok((_, table))) => to_arguments(&table),
            // A name that is not UTF-8 is well-formed on the wire and matches nothing.
            Some(Err(_)) | None => Arguments::new(),
        }
    }
    fn property(&self, property: MessageProperty) -> Option<Value> {
        let text = |flag| edit::span(self.bytes, flag).map(|span| &self.bytes[span.start + 1..span.end]);
        match property {
            MessageProperty::CorrelationId => Some(Value::LongString(text(CORRELATION_ID)?.to_vec())),
            MessageProperty::MessageId => Some(Value::LongString(text(MESSAGE_ID)?.to_vec())),
            MessageProperty::Timestamp => {
                let seconds = self.bytes.get(edit::span(self.bytes, TIMESTAMP)?)?.first_chunk()?;
                Some(Value::Timestamp(u64::from_be_bytes(*seconds)))
            }
        }
    }
}
