//! The properties of a content header: checked once, kept byte for byte, looked into where the
//! broker must.
//!
//! Wire form (specification 4.2.6.1): 16 flags, highest first, then the properties whose flag is set.

use amq_protocol::types::parsing::parse_field_table;
use lepus_shards::Arguments;
use lepus_shards::shard::HeaderSource;

use super::table::{Malformed, check_table, find_text, has_name, short, skip, to_arguments};

const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const TYPE: u16 = 1 << 5;
const USER_ID: u16 = 1 << 4;
const APP_ID: u16 = 1 << 3;
const CLUSTER_ID: u16 = 1 << 2;
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
    headers: Option<&'a [u8]>,
}

impl<'a> Properties<'a> {
    /// Checks all of `bytes`, to the last one: what gets in here, consumers can read.
    ///
    /// # Errors
    /// When flags, lengths or tables are not well-formed, or bytes are left over.
    pub fn parse(bytes: &'a [u8]) -> Result<Properties<'a>, Malformed> {
        let (flags, mut rest) = bytes.split_first_chunk::<2>().ok_or(Malformed)?;
        let flags = u16::from_be_bytes(*flags);
        let mut properties =
            Properties { bytes, persistent: false, expiration: None, user_id: None, headers: None };
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
        for flag in [CORRELATION_ID, REPLY_TO] {
            if has(flag) {
                rest = short(rest)?.1;
            }
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

    /// The text of a header; an empty one if it is something else.
    pub fn text_header(&self, name: &[u8]) -> Option<&'a [u8]> {
        find_text(self.headers?, name)
    }

    /// A header that would change routing and that the broker does not act on.
    pub fn unsupported_header(&self) -> Option<&'static str> {
        // Most messages have no headers at all.
        let table = self.headers?;
        ["CC", "BCC"].into_iter().find(|name| has_name(table, name.as_bytes()))
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
}
