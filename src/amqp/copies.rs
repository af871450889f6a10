//! Sender-selected distribution: routing keys in the headers `CC` and `BCC`, beside the message's own
//! (<https://www.rabbitmq.com/docs/sender-selected>). Only the broker reads `BCC`: it is taken out.

#![forbid(unsafe_code)]

use smallvec::SmallVec;

use super::failure::{Failure, Ids, PRECONDITION_FAILED};
use super::properties::Properties;
use super::table::{entries, kind_name, long_strings};

/// The header that consumers must not see.
pub(super) const BLIND: &[u8] = b"BCC";

/// The further routing keys of a message.
#[derive(Default, Debug)]
pub(super) struct Copies<'a> {
    pub keys: SmallVec<[&'a [u8]; 4]>,
    /// There is a `BCC` to be taken out.
    pub blind: bool,
}

impl<'a> Copies<'a> {
    /// Reads them from a message's headers. What is no text in an array of keys is passed over, as
    /// RabbitMQ does; so is text that is too long to be a routing key, which no binding can have.
    pub fn of(properties: &Properties<'a>, ids: Ids) -> Result<Copies<'a>, Failure> {
        let mut copies = Copies::default();
        // Most messages have no headers at all.
        let Some(table) = properties.headers else { return Ok(copies) };
        for entry in entries(table) {
            let name = match entry.name {
                b"CC" => "CC",
                BLIND => "BCC",
                _ => continue,
            };
            if entry.kind != b'A' {
                let kind = kind_name(entry.kind);
                let text = format!("invalid message: {{unacceptable_type_in_header,\"{name}\",{kind}}}");
                return Err(Failure::new(PRECONDITION_FAILED, text, ids));
            }
            copies.blind |= entry.name == BLIND;
            copies.keys.extend(long_strings(entry.value));
        }
        Ok(copies)
    }
}

/// The further routing keys that a stored message shows in its headers, a table with its length in front.
pub(super) fn further_keys(headers: &[u8]) -> Vec<Vec<u8>> {
    let shown = entries(headers).filter(|entry| entry.name == b"CC" && entry.kind == b'A');
    shown.flat_map(|entry| long_strings(entry.value)).map(<[u8]>::to_vec).collect()
}
