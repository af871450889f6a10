//! The properties of traced messages: what the message was, in headers, as RabbitMQ's firehose writes them.
//!
//! `exchange_name`, `routing_keys` (those that were kept), `properties`, `node`, `vhost`, `connection`, `channel`,
//! `user`, and then `routed_queues` of a message that was published and `redelivered`, as a number, of one that
//! was delivered. Headers are sorted by name.

#![forbid(unsafe_code)]

use lepus_shards::message::MessageView;
use lepus_shards::shard::{TraceEvent, Traced};

use super::edit::{Form, properties};
use super::properties::{
    APP_ID, CLUSTER_ID, CONTENT_ENCODING, CONTENT_TYPE, CORRELATION_ID, DELIVERY_MODE, EXPIRATION, HEADERS,
    MESSAGE_ID, PRIORITY, REPLY_TO, TIMESTAMP, TYPE,
};
use super::table::{Field, array, long, long_string, put_table};

/// Who published or got the message.
pub(super) struct Party<'a> {
    pub node: &'a str,
    /// `127.0.0.1:50000 -> 127.0.0.1:5672`
    pub connection: &'a str,
    pub user: &'a str,
}

/// The properties of the message that tells of `message`.
pub(super) fn traced(message: &MessageView<'_>, traced: &Traced<'_>, party: &Party<'_>) -> Vec<u8> {
    let keys = std::iter::once(message.routing_key).chain(traced.further_keys.iter().copied());
    let mut fields: Vec<(&[u8], Vec<u8>)> = vec![
        (b"channel", integer(traced.channel.channel.into())),
        (b"connection", long_string(party.connection.as_bytes())),
        (b"exchange_name", long_string(message.exchange)),
        (b"node", long_string(party.node.as_bytes())),
        (b"properties", table_of(message.properties)),
        (b"routing_keys", array(keys.map(long_string))),
        (b"user", long_string(party.user.as_bytes())),
        (b"vhost", long_string(traced.vhost.as_bytes())),
    ];
    fields.push(match traced.event {
        TraceEvent::Published { queues } => {
            (b"routed_queues", array(queues.iter().map(|queue| long_string(queue.as_bytes()))))
        }
        TraceEvent::Delivered { redelivered } => (b"redelivered", integer(redelivered.into())),
    });
    let mut out = HEADERS.to_be_bytes().to_vec();
    put_table(&mut out, &sorted(fields));
    out
}

fn sorted(fields: Vec<(&[u8], Vec<u8>)>) -> Vec<Field<'_>> {
    let mut fields: Vec<Field<'_>> =
        fields.into_iter().map(|(name, value)| Field { name, value: value.into() }).collect();
    fields.sort_unstable_by_key(|field| field.name);
    fields
}

/// Properties as the value of a field.
fn table_of(bytes: &[u8]) -> Vec<u8> {
    let fields = properties(bytes).map(|(flag, form, value)| {
        let value = match form {
            Form::Short => long_string(&value[1..]),
            Form::Table => [b"F", value].concat(),
            Form::Fixed(_) => integer(value.iter().fold(0, |number, byte| number << 8 | i64::from(*byte))),
        };
        (name_of(flag), value)
    });
    let mut table = vec![b'F'];
    put_table(&mut table, &sorted(fields.collect()));
    table
}

/// RabbitMQ writes every number as one of 32 bits; what needs more gets it.
fn integer(number: i64) -> Vec<u8> {
    match i32::try_from(number) {
        Ok(number) => [&b"I"[..], &number.to_be_bytes()].concat(),
        Err(_) => long(number),
    }
}

fn name_of(flag: u16) -> &'static [u8] {
    match flag {
        CONTENT_TYPE => b"content_type",
        CONTENT_ENCODING => b"content_encoding",
        HEADERS => b"headers",
        DELIVERY_MODE => b"delivery_mode",
        PRIORITY => b"priority",
        CORRELATION_ID => b"correlation_id",
        REPLY_TO => b"reply_to",
        EXPIRATION => b"expiration",
        MESSAGE_ID => b"message_id",
        TIMESTAMP => b"timestamp",
        TYPE => b"type",
        APP_ID => b"app_id",
        CLUSTER_ID => b"cluster_id",
        _ => b"user_id",
    }
}
