//! The properties of a content header: checked once, kept byte for byte, looked into where the
//! broker must.
//!
//! Wire form (specification 4.2.6.1): 16 flags, highest first, then the properties whose flag is set.

use amq_protocol::types::parsing::parse_field_table;
use lepus_shards::shard::{HeaderSource, MessageProperty};
use lepus_shards::{Arguments, Value};

use super::edit;
use super::table::{Field, Malformed, check_table, find_text, put_table, short, skip, to_arguments};

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

/// The broker's own mark, in the flag that AMQP does not use: it wrote the history that is in the headers
/// (`dead_letter.rs`). Never set in what clients send, and taken off what they get.
pub(super) const HISTORY: u16 = 0b10;

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

    /// The text of a header; an empty one if it is something else.
    pub fn text_header(&self, name: &[u8]) -> Option<&'a [u8]> {
        find_text(self.headers?, name)
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
        edit::property(self.bytes, property)
    }
}

/// Well-formed properties, cut where the broker rewrites them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    flags: u16,
    /// What comes before the headers.
    before: &'a [u8],
    /// The table, its length in front.
    pub headers: Option<&'a [u8]>,
    /// Between headers and expiration.
    between: &'a [u8],
    pub expiration: Option<&'a [u8]>,
    after: &'a [u8],
    /// Delivery mode 2.
    pub persistent: bool,
    /// 0 if there is none.
    pub priority: u8,
    /// The broker wrote the history in the headers.
    pub has_history: bool,
}

impl<'a> Parts<'a> {
    /// The parts of stored properties.
    ///
    /// # Errors
    /// When they are not well-formed; what is stored is.
    pub fn of(bytes: &'a [u8]) -> Result<Parts<'a>, Malformed> {
        let (flags, list) = bytes.split_first_chunk::<2>().ok_or(Malformed)?;
        let flags = u16::from_be_bytes(*flags);
        let has = |flag| flags & flag != 0;
        let up_to = |start: &'a [u8], end: &'a [u8]| &start[..start.len() - end.len()];
        let mut rest = list;
        for flag in [CONTENT_TYPE, CONTENT_ENCODING] {
            if has(flag) {
                rest = short(rest)?.1;
            }
        }
        let before = up_to(list, rest);
        let mut headers = None;
        if has(HEADERS) {
            let behind = check_table(rest)?;
            headers = Some(up_to(rest, behind));
            rest = behind;
        }
        let (start, mut persistent, mut priority) = (rest, false, 0);
        if has(DELIVERY_MODE) {
            persistent = rest.first() == Some(&2);
            rest = skip(rest, 1)?;
        }
        if has(PRIORITY) {
            priority = *rest.first().ok_or(Malformed)?;
            rest = skip(rest, 1)?;
        }
        for flag in [CORRELATION_ID, REPLY_TO] {
            if has(flag) {
                rest = short(rest)?.1;
            }
        }
        let between = up_to(start, rest);
        let mut expiration = None;
        if has(EXPIRATION) {
            let (text, behind) = short(rest)?;
            (expiration, rest) = (Some(text), behind);
        }
        let has_history = has(HISTORY);
        Ok(Parts {
            flags,
            before,
            headers,
            between,
            expiration,
            after: rest,
            persistent,
            priority,
            has_history,
        })
    }

    /// The headers as the kernel has them.
    pub fn arguments(&self) -> Arguments {
        match self.headers.map(parse_field_table) {
            Some(Ok((_, table))) => to_arguments(&table),
            Some(Err(_)) | None => Arguments::new(),
        }
    }

    /// The properties with other headers. As those of a `dead` letter, they have no expiration and the
    /// broker's mark.
    pub fn with_headers(&self, headers: &[Field<'_>], dead: bool) -> Vec<u8> {
        let mut flags = self.flags | HEADERS;
        if dead {
            flags = (flags | HISTORY) & !EXPIRATION;
        }
        let mut out = flags.to_be_bytes().to_vec();
        out.extend_from_slice(self.before);
        put_table(&mut out, headers);
        out.extend_from_slice(self.between);
        if let Some(text) = self.expiration.filter(|_| !dead) {
            out.push(text.len() as u8);
            out.extend_from_slice(text);
        }
        out.extend_from_slice(self.after);
        out
    }
}
