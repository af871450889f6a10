//! The durable part of the topology as rows of a transactional store.
//!
//! Written by the writer's shard. Kept are durable exchanges, durable queues that are not exclusive,
//! and bindings between two of them; everything else ends with the process and never gets here.
//!
//! **Key**, version 1: a byte for the kind of row (`1` exchange, `2` queue, `3` binding, `4` policy,
//! `5` operator policy, `6` tracing), then the parts that tell rows of the kind apart, each closed by the bytes 0, 1 (a 0
//! inside a part is written 0, 255, so that keys sort as their parts do). Exchange, queue and policies:
//! vhost, name. Tracing: vhost. Binding: vhost, source, `q` or `e`, destination, routing key; then, if it has any, the
//! arguments as MessagePack.
//!
//! **Value**: the format's version in one byte ([`FORMAT`]), then a MessagePack map with named fields
//! that repeats what the key says. A queue's row also says by which name, and in which shard's log, its
//! messages are: that shard owns it, as long as there are so many.

#![forbid(unsafe_code)]

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{BindingSpec, DestinationKind, ExchangeInfo, ExchangeKind, Policy, PolicyOf, QueueInfo};
use crate::{Arguments, DurableId};

/// The version of the values' format, in their first byte.
pub const FORMAT: u8 = 1;

const EXCHANGE: u8 = b'1';
const QUEUE: u8 = b'2';
const BINDING: u8 = b'3';
const POLICY: u8 = b'4';
const OPERATOR_POLICY: u8 = b'5';
const TRACING: u8 = b'6';

/// One write to the store: a row put or, without a value, removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreWrite {
    pub key: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

/// The stored topology cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// None of those that this version writes.
    #[error(
        "stored topology: row '{key}' is of a kind that this version does not know; start the version that wrote it"
    )]
    UnknownKind { key: String },
    /// Written by a later version.
    #[error(
        "stored topology: row '{key}' has format {format}, this version reads {FORMAT}; start the version that wrote it"
    )]
    UnknownFormat { key: String, format: u8 },
    /// The bytes are not a row.
    #[error("stored topology: row '{key}' is damaged ({reason}); restore the topology store from a backup")]
    Damaged { key: String, reason: String },
    /// Shards numbered beyond what a queue's id can hold, or none.
    #[error("a broker has 1 to {max} shards, not {shards}", max = crate::limits::SHARDS_MAX)]
    Shards { shards: usize },
}

/// A stored exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ExchangeRow {
    pub vhost: String,
    pub name: String,
    pub kind: ExchangeKind,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: Arguments,
}

/// A stored queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct QueueRow {
    pub vhost: String,
    pub name: String,
    pub auto_delete: bool,
    pub arguments: Arguments,
    /// Its name in the log.
    pub durable_id: DurableId,
    /// The shard in whose log its messages are.
    pub log: u16,
}

/// A stored binding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BindingRow {
    pub vhost: String,
    pub binding: BindingSpec,
}

/// A stored policy, or operator policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PolicyRow {
    pub vhost: String,
    pub policy: Policy,
}

/// A vhost that is traced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TracingRow {
    pub vhost: String,
}

/// Any row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Row {
    Exchange(ExchangeRow),
    Queue(QueueRow),
    Binding(BindingRow),
    Policy(PolicyOf, PolicyRow),
    Tracing(TracingRow),
}

pub(super) fn exchange_key(vhost: &str, name: &str) -> Vec<u8> {
    key(EXCHANGE, &[vhost.as_bytes(), name.as_bytes()])
}

pub(super) fn queue_key(vhost: &str, name: &str) -> Vec<u8> {
    key(QUEUE, &[vhost.as_bytes(), name.as_bytes()])
}

pub(super) fn policy_key(vhost: &str, of: PolicyOf, name: &str) -> Vec<u8> {
    let kind = match of {
        PolicyOf::User => POLICY,
        PolicyOf::Operator => OPERATOR_POLICY,
    };
    key(kind, &[vhost.as_bytes(), name.as_bytes()])
}

pub(super) fn tracing_key(vhost: &str) -> Vec<u8> {
    key(TRACING, &[vhost.as_bytes()])
}

/// Two bindings are the same exactly if their keys are.
pub(super) fn binding_key(vhost: &str, binding: &BindingSpec) -> Vec<u8> {
    let kind = match binding.kind {
        DestinationKind::Queue => b"q",
        DestinationKind::Exchange => b"e",
    };
    let mut key = key(
        BINDING,
        &[
            vhost.as_bytes(),
            binding.source.as_bytes(),
            kind,
            binding.destination.as_bytes(),
            binding.routing_key.as_bytes(),
        ],
    );
    if !binding.arguments.is_empty() {
        rmp_serde::encode::write_named(&mut key, &binding.arguments).expect("arguments are plain values");
    }
    key
}

pub(super) fn put_exchange(vhost: &str, info: &ExchangeInfo) -> StoreWrite {
    let row = ExchangeRow {
        vhost: vhost.to_owned(),
        name: info.name.to_string(),
        kind: info.kind,
        auto_delete: info.auto_delete,
        internal: info.internal,
        arguments: info.arguments.clone(),
    };
    StoreWrite { key: exchange_key(vhost, &info.name), value: Some(encode(&row)) }
}

pub(super) fn put_queue(vhost: &str, info: &QueueInfo) -> StoreWrite {
    let row = QueueRow {
        vhost: vhost.to_owned(),
        name: info.name.to_string(),
        auto_delete: info.auto_delete,
        arguments: info.arguments.clone(),
        durable_id: info.durable_id.expect("a stored queue is durable"),
        log: info.id.owner().0,
    };
    StoreWrite { key: queue_key(vhost, &info.name), value: Some(encode(&row)) }
}

pub(super) fn put_binding(vhost: &str, binding: &Arc<BindingSpec>) -> StoreWrite {
    let row = BindingRow { vhost: vhost.to_owned(), binding: BindingSpec::clone(binding) };
    StoreWrite { key: binding_key(vhost, binding), value: Some(encode(&row)) }
}

/// Whether a row is a policy, of whomever.
pub(super) fn is_policy(key: &[u8]) -> bool {
    matches!(key.first(), Some(&(POLICY | OPERATOR_POLICY)))
}

pub(super) fn put_policy(vhost: &str, of: PolicyOf, policy: &Policy) -> StoreWrite {
    let row = PolicyRow { vhost: vhost.to_owned(), policy: policy.clone() };
    StoreWrite { key: policy_key(vhost, of, &policy.name), value: Some(encode(&row)) }
}

pub(super) fn put_tracing(vhost: &str) -> StoreWrite {
    let row = TracingRow { vhost: vhost.to_owned() };
    StoreWrite { key: tracing_key(vhost), value: Some(encode(&row)) }
}

pub(super) fn remove(key: Vec<u8>) -> StoreWrite {
    StoreWrite { key, value: None }
}

/// Reads a row back.
///
/// # Errors
/// The key's kind or the value's format is unknown, or the value does not read as what the key says.
pub(super) fn decode(key: &[u8], value: &[u8]) -> Result<Row, TopologyError> {
    let (row, key_of_row) = match key.first() {
        Some(&EXCHANGE) => {
            let row: ExchangeRow = decode_value(key, value)?;
            let key = exchange_key(&row.vhost, &row.name);
            (Row::Exchange(row), key)
        }
        Some(&QUEUE) => {
            let row: QueueRow = decode_value(key, value)?;
            let key = queue_key(&row.vhost, &row.name);
            (Row::Queue(row), key)
        }
        Some(&BINDING) => {
            let row: BindingRow = decode_value(key, value)?;
            let key = binding_key(&row.vhost, &row.binding);
            (Row::Binding(row), key)
        }
        Some(&kind @ (POLICY | OPERATOR_POLICY)) => {
            let of = if kind == POLICY { PolicyOf::User } else { PolicyOf::Operator };
            let row: PolicyRow = decode_value(key, value)?;
            let key = policy_key(&row.vhost, of, &row.policy.name);
            (Row::Policy(of, row), key)
        }
        Some(&TRACING) => {
            let row: TracingRow = decode_value(key, value)?;
            let key = tracing_key(&row.vhost);
            (Row::Tracing(row), key)
        }
        _ => return Err(TopologyError::UnknownKind { key: printable(key) }),
    };
    match key_of_row == key {
        true => Ok(row),
        false => Err(damaged(key, "the value belongs to another key")),
    }
}

pub(super) fn damaged(key: &[u8], reason: &str) -> TopologyError {
    TopologyError::Damaged { key: printable(key), reason: reason.to_owned() }
}

fn key(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![kind];
    for part in parts {
        for &byte in *part {
            key.push(byte);
            if byte == 0 {
                key.push(255);
            }
        }
        key.extend([0, 1]);
    }
    key
}

fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    let mut value = vec![FORMAT];
    rmp_serde::encode::write_named(&mut value, row).expect("rows are plain values");
    value
}

fn decode_value<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, TopologyError> {
    let (&format, body) = value.split_first().ok_or_else(|| damaged(key, "empty value"))?;
    if format != FORMAT {
        return Err(TopologyError::UnknownFormat { key: printable(key), format });
    }
    rmp_serde::from_slice(body).map_err(|error| damaged(key, &error.to_string()))
}

fn printable(key: &[u8]) -> String {
    key.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::super::Writer;
    use super::*;
    use crate::Value;

    fn restore(rows: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Writer, TopologyError> {
        Writer::restore(1, rows, "/", fastrand::Rng::with_seed(1)).map(|(writer, _)| writer)
    }

    fn queue_row() -> (Vec<u8>, Vec<u8>) {
        let row = QueueRow {
            vhost: "/".into(),
            name: "q".into(),
            auto_delete: false,
            arguments: [("x-expires".to_owned(), Value::I32(5))].into(),
            durable_id: DurableId(7),
            log: 0,
        };
        (queue_key("/", "q"), encode(&row))
    }

    #[test]
    fn version_1_of_the_format_stays_as_it_is() {
        // Frozen: rows that were written once must be read for ever.
        let (key, value) = queue_row();
        assert_eq!(key.escape_ascii().to_string(), "2/\\x00\\x01q\\x00\\x01");
        assert_eq!(
            value.escape_ascii().to_string(),
            "\\x01\\x86\\xa5vhost\\xa1/\\xa4name\\xa1q\\xabauto_delete\\xc2\\xa9arguments\\x81\\xa9x-expires\\x81\\xa3I32\\x05\\xaadurable_id\\x07\\xa3log\\x00"
        );
        assert!(restore(vec![(key, value)]).is_ok());
    }

    #[test]
    fn version_1_of_policies_stays_as_it_is() {
        // Frozen, as above.
        let policy = Policy {
            name: "p".into(),
            pattern: "^q".into(),
            apply_to: super::super::ApplyTo::ClassicQueues,
            priority: -1,
            definition: [("max-length".to_owned(), Value::I64(5))].into(),
        };
        for (of, kind) in [(PolicyOf::User, '4'), (PolicyOf::Operator, '5')] {
            let StoreWrite { key, value } = put_policy("/", of, &policy);
            let value = value.unwrap();
            assert_eq!(key.escape_ascii().to_string(), format!("{kind}/\\x00\\x01p\\x00\\x01"));
            assert_eq!(
                value.escape_ascii().to_string(),
                "\\x01\\x82\\xa5vhost\\xa1/\\xa6policy\\x85\\xa4name\\xa1p\\xa7pattern\\xa2^q\\xa8apply_to\\xadClassicQueues\\xa8priority\\xff\\xaadefinition\\x81\\xaamax-length\\x81\\xa3I64\\x05"
            );
            let writer = restore(vec![(key, value)]).unwrap();
            assert_eq!(writer.policies().collect::<Vec<_>>(), [("/", of, &policy)]);
        }
    }

    #[test]
    fn version_1_of_tracing_stays_as_it_is() {
        // Frozen, as above.
        let StoreWrite { key, value } = put_tracing("other");
        let value = value.unwrap();
        assert_eq!(key.escape_ascii().to_string(), "6other\\x00\\x01");
        assert_eq!(value.escape_ascii().to_string(), "\\x01\\x81\\xa5vhost\\xa5other");
        let writer = restore(vec![(key, value)]).unwrap();
        let traced = |name| writer.topology().is_traced(writer.topology().vhost(name).unwrap());
        assert!(traced("other") && !traced("/"));
    }

    #[test]
    fn a_stored_policy_with_a_broken_pattern_is_damage() {
        let (name, pattern, apply_to) = ("p".into(), "(".into(), super::super::ApplyTo::All);
        let policy = Policy { name, pattern, apply_to, priority: 0, definition: Arguments::new() };
        let StoreWrite { key, value } = put_policy("/", PolicyOf::User, &policy);
        let text = restore(vec![(key, value.unwrap())]).unwrap_err().to_string();
        assert!(text.contains("damaged (pattern should be regular expression"), "{text}");
    }

    #[test]
    fn keys_sort_as_their_parts_do_and_never_coincide() {
        let names = ["", "\0", "\0\x01", "\0a", "\x01", "a", "a\0", "ab"];
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for vhost in names {
            keys.extend(names.iter().map(|name| queue_key(vhost, name)));
        }
        assert!(keys.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_damaged_row_is_named() {
        let (key, value) = queue_row();
        let text = |row| restore(vec![row]).unwrap_err().to_string();
        let name = "'2/\\x00\\x01q\\x00\\x01'";
        for damaged in [value[..value.len() - 1].to_vec(), Vec::new()] {
            let text = text((key.clone(), damaged));
            assert!(text.contains(name) && text.contains("damaged"), "{text}");
        }
        let mut later = value.clone();
        later[0] = 9;
        let later = text((key.clone(), later));
        assert!(later.contains(name) && later.contains("format 9"), "{later}");
        let moved = text((queue_key("/", "r"), value));
        assert!(moved.contains("another key"), "{moved}");
        assert!(text((b"?x".to_vec(), Vec::new())).contains("'?x'"));
    }

    #[test]
    fn a_binding_to_nothing_is_damage() {
        let binding = Arc::new(BindingSpec {
            source: "amq.direct".into(),
            destination: "q".into(),
            kind: DestinationKind::Queue,
            routing_key: String::new(),
            arguments: Arguments::new(),
        });
        let StoreWrite { key, value } = put_binding("/", &binding);
        let row = (key, value.unwrap());
        assert!(matches!(restore(vec![row.clone()]), Err(TopologyError::Damaged { .. })));
        let writer = restore(vec![row, queue_row()]).unwrap();
        assert_eq!(writer.topology().bindings().count(), 1, "rows come in any order");
    }

    #[test]
    fn a_delayed_exchanges_queue_without_it_is_damage() {
        let row = QueueRow {
            vhost: "/".into(),
            name: "amq.delayed.x".into(),
            auto_delete: false,
            arguments: Arguments::new(),
            durable_id: DurableId(7),
            log: 0,
        };
        let row = (queue_key("/", "amq.delayed.x"), encode(&row));
        assert!(matches!(restore(vec![row]), Err(TopologyError::Damaged { .. })));
    }

    #[test]
    fn rows_of_another_vhost_bring_it_along() {
        let row = QueueRow {
            vhost: "other".into(),
            name: "q".into(),
            auto_delete: false,
            arguments: Arguments::new(),
            durable_id: DurableId(7),
            log: 0,
        };
        let writer = restore(vec![(queue_key("other", "q"), encode(&row))]).unwrap();
        let topology = writer.topology();
        assert_eq!(topology.vhost("/"), Some(crate::VhostId(0)));
        let other = topology.vhost("other").unwrap();
        assert!(topology.queue(other, "q").is_some() && topology.exchange(other, "amq.topic").is_some());
    }

    #[test]
    fn a_broker_has_shards() {
        for shards in [0, crate::limits::SHARDS_MAX + 1] {
            let refused = Writer::restore(shards, [], "/", fastrand::Rng::with_seed(1));
            assert!(matches!(refused, Err(TopologyError::Shards { .. })));
        }
    }
}
