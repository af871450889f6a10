//! The properties of messages that queues gave up: the history in the headers, as RabbitMQ 4 writes it.
//!
//! `x-death` is an array of tables, the latest death first, one for each pair of queue and reason, with
//! `count`, `reason`, `queue`, `time` (of the first one), `exchange`, `routing-keys`, and
//! `original-expiration` in front if the message had a time to live; beside it stand
//! `x-first-death-*` and `x-last-death-*`. Headers are sorted by name. The time to live itself is taken out.
//!
//! A client may publish headers of these names. They are delivered as they are, and replaced when the
//! message dies; only what the broker wrote counts as history. To tell them apart, the broker sets
//! `HISTORY` in the flags, which no client can and no client sees.

use lepus_shards::ledger::Returns;
use lepus_shards::message::MessageView;
use lepus_shards::shard::{
    DeadLetterProperties, Death, MessageProperty, PropertyFormat, Reason, WaitedProperties,
};
use lepus_shards::{Arguments, Value};

use super::copies;
use super::edit;
use super::front::Front;
use super::properties::Parts;
use super::table::{Field, array, fields, long, long_string, put_table};

const DEATHS: &[u8] = b"x-death";

/// What the broker writes into the headers: replaced as a whole when a message dies.
const WRITTEN: [&[u8]; 7] = [
    DEATHS,
    b"x-first-death-exchange",
    b"x-first-death-queue",
    b"x-first-death-reason",
    b"x-last-death-exchange",
    b"x-last-death-queue",
    b"x-last-death-reason",
];

/// One entry of the history: the fields of its table.
struct Entry<'a>(Vec<Field<'a>>);

impl<'a> Entry<'a> {
    fn value(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|field| field.name == name).map(|field| &*field.value)
    }

    /// The bytes of a field that is a long string.
    fn text(&self, name: &[u8]) -> &[u8] {
        self.value(name).and_then(|value| value.get(5..)).unwrap_or_default()
    }

    fn count(&self) -> i64 {
        let count = self.value(b"count").and_then(|value| value.get(1..)?.try_into().ok());
        count.map_or(0, i64::from_be_bytes)
    }

    fn is_of(&self, death: &Death<'_>) -> bool {
        self.text(b"queue") == death.queue.as_bytes()
            && self.text(b"reason") == death.reason.name().as_bytes()
    }

    fn count_one_more(&mut self) {
        let count = long(self.count() + 1);
        if let Some(field) = self.0.iter_mut().find(|field| field.name == b"count") {
            field.value = count.into();
        }
    }
}

fn new_entry<'a>(
    message: &MessageView<'_>,
    death: &Death<'_>,
    headers: Option<&[u8]>,
    expiration: Option<&[u8]>,
    unix_s: u64,
) -> Entry<'a> {
    let mut time = vec![b'T'];
    time.extend_from_slice(&unix_s.to_be_bytes());
    let mut fields = Vec::with_capacity(7);
    let mut add = |name: &'static [u8], value: Vec<u8>| fields.push(Field { name, value: value.into() });
    if let Some(expiration) = expiration {
        add(b"original-expiration", long_string(expiration));
    }
    add(b"count", long(1));
    add(b"reason", long_string(death.reason.name().as_bytes()));
    add(b"queue", long_string(death.queue.as_bytes()));
    add(b"time", time);
    add(b"exchange", long_string(message.exchange));
    let further_keys = headers.map_or(Vec::new(), copies::further_keys);
    let keys = std::iter::once(message.routing_key).chain(further_keys.iter().map(Vec::as_slice));
    add(b"routing-keys", array(keys.map(long_string)));
    Entry(fields)
}

/// The entries of a history that the broker wrote.
fn read_history(value: &[u8]) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    let Some((b'A', mut items)) = value.split_first().and_then(|(kind, rest)| Some((kind, rest.get(4..)?)))
    else {
        return entries;
    };
    while let Some((b'F', table)) = items.split_first() {
        let Some(len) = table.first_chunk::<4>() else { break };
        let Some((table, rest)) = table.split_at_checked(4 + u32::from_be_bytes(*len) as usize) else {
            break;
        };
        entries.push(Entry(fields(table).collect()));
        items = rest;
    }
    entries
}

/// The properties of `message` after one more death.
pub(super) fn rewrite(message: &MessageView<'_>, death: &Death<'_>, unix_s: u64) -> DeadLetterProperties {
    let parts = Parts::of(message.properties).expect("only well-formed properties are taken in");
    let mut headers: Vec<Field<'_>> = parts.headers.map_or_else(Vec::new, |table| fields(table).collect());
    let mut kept: Vec<Field<'_>> = Vec::new();
    let mut entries = Vec::new();
    if parts.has_history {
        kept = headers.iter().filter(|field| field.name.starts_with(b"x-first-death-")).cloned().collect();
        if let Some(position) = headers.iter().position(|field| field.name == DEATHS) {
            let written = headers.swap_remove(position);
            // It is read from the stored bytes, which outlive the list of headers.
            if let std::borrow::Cow::Borrowed(value) = written.value {
                entries = read_history(value);
            }
        }
    }
    headers.retain(|field| !WRITTEN.contains(&field.name));
    let entry = match entries.iter().position(|entry| entry.is_of(death)) {
        Some(position) => {
            let mut entry = entries.remove(position);
            entry.count_one_more();
            entry
        }
        None => new_entry(message, death, parts.headers, parts.expiration, unix_s),
    };
    entries.insert(0, entry);

    let last: [(&'static [u8], &'static [u8], Vec<u8>); 3] = [
        (b"x-last-death-exchange", b"x-first-death-exchange", long_string(entries[0].text(b"exchange"))),
        (b"x-last-death-queue", b"x-first-death-queue", long_string(death.queue.as_bytes())),
        (b"x-last-death-reason", b"x-first-death-reason", long_string(death.reason.name().as_bytes())),
    ];
    let is_first = kept.is_empty();
    headers.extend(kept);
    for (name, first, value) in last {
        if is_first {
            headers.push(Field { name: first, value: value.clone().into() });
        }
        headers.push(Field { name, value: value.into() });
    }
    let deaths = entries.iter().map(|entry| {
        let mut table = vec![b'F'];
        put_table(&mut table, &entry.0);
        table
    });
    headers.push(Field { name: DEATHS, value: array(deaths).into() });
    headers.sort_by_key(|field| field.name);

    let circled =
        entries.iter().take_while(|entry| entry.text(b"reason") != Reason::Rejected.name().as_bytes());
    let circled = circled.map(|entry| String::from_utf8_lossy(entry.text(b"queue")).into_owned()).collect();
    let properties = parts.with_headers(&headers, true);
    DeadLetterProperties { properties, persistent: parts.persistent, circled }
}

/// The properties with a note of how often the message came back, as quorum queues of RabbitMQ 4.3 add it.
fn note_returns(properties: &[u8], returns: Returns) -> Vec<u8> {
    let parts = Parts::of(properties).expect("only well-formed properties are taken in");
    let mut headers: Vec<Field<'_>> = parts.headers.map_or_else(Vec::new, |table| fields(table).collect());
    let names: [&[u8]; 2] = [b"x-acquired-count", b"x-delivery-count"];
    headers.retain(|field| !names.contains(&field.name));
    headers.push(Field { name: names[0], value: long(returns.all.into()).into() });
    if returns.failures > 0 {
        headers.push(Field { name: names[1], value: long(returns.failures.into()).into() });
    }
    headers.sort_by_key(|field| field.name);
    parts.with_headers(&headers, false)
}

impl PropertyFormat for Front {
    fn headers(&self, properties: &[u8]) -> Arguments {
        Parts::of(properties).map_or_else(|_| Arguments::new(), |parts| parts.arguments())
    }

    fn property(&self, properties: &[u8], property: MessageProperty) -> Option<Value> {
        edit::property(properties, property)
    }

    fn further_keys(&self, properties: &[u8]) -> Vec<Vec<u8>> {
        Parts::of(properties).ok().and_then(|parts| parts.headers).map_or(Vec::new(), copies::further_keys)
    }

    fn priority(&self, properties: &[u8]) -> u8 {
        Parts::of(properties).map_or(0, |parts| parts.priority)
    }

    fn dead_letter(&self, message: &MessageView<'_>, death: &Death<'_>) -> DeadLetterProperties {
        rewrite(message, death, self.unix_s)
    }

    fn waited(&self, properties: &[u8]) -> WaitedProperties {
        let parts = Parts::of(properties).expect("only well-formed properties are taken in");
        let ttl_ms = parts.expiration.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let persistent = parts.persistent;
        WaitedProperties { properties: edit::with_minus(properties, b"x-delay"), persistent, ttl_ms }
    }

    fn with_returns(&self, properties: &[u8], returns: Returns) -> Vec<u8> {
        note_returns(properties, returns)
    }
}

#[cfg(test)]
#[path = "dead_letter_tests.rs"]
mod tests;
