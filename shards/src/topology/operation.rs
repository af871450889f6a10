//! Requests to change the topology, their outcomes, and the changes that replicas apply.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{EffectivePolicy, Policy, PolicyOf, exchange_of_delay_queue};
use crate::limits::{HISTORY_LENGTH, QUORUM_DELIVERY_LIMIT};
use crate::queue::QueueSettings;
use crate::{Arguments, ConnectionId, Durability, DurableId, QueueId, Value, VhostId};

/// What can be asked of the topology's writer. Names are as the client sent them.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Make an exchange, or find that an equal one exists; `passive` only looks.
    DeclareExchange {
        vhost: VhostId,
        name: String,
        /// By its name on the wire: see [`ExchangeKind::from_name`].
        kind: String,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Arguments,
    },
    /// Remove an exchange and its bindings; ok when there is none.
    DeleteExchange { vhost: VhostId, name: String, if_unused: bool },
    /// Make a queue, or find that an equal one exists; an empty name asks for a generated one.
    DeclareQueue {
        vhost: VhostId,
        name: String,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Arguments,
    },
    /// Remove a queue by name; ok when there is none.
    DeleteQueue { vhost: VhostId, name: String, if_unused: bool, if_empty: bool },
    /// Remove a queue that has lost its reason to exist (auto-delete, expiry), if it still has.
    ExpireQueue { queue: QueueId, if_unused: bool },
    /// Bind a queue or an exchange to an exchange.
    Bind { vhost: VhostId, binding: BindingSpec },
    /// Remove a binding; ok when there is none.
    Unbind { vhost: VhostId, binding: BindingSpec },
    /// A connection has ended: remove its exclusive queues.
    ReleaseConnection { connection: ConnectionId },
    /// Set a policy, in place of the one of this name if there is one. It holds at once for all that is there.
    SetPolicy { vhost: VhostId, of: PolicyOf, policy: Policy },
    /// Remove a policy.
    ClearPolicy { vhost: VhostId, of: PolicyOf, name: String },
    /// Trace what is published in a vhost and delivered from it, or no longer.
    TraceVhost { vhost: VhostId, on: bool },
}

/// A binding by names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BindingSpec {
    /// The exchange that messages come from.
    pub source: String,
    /// Queue or exchange that they go to.
    pub destination: String,
    /// Which of the two.
    pub kind: DestinationKind,
    /// At most 255 bytes.
    pub routing_key: String,
    /// For headers exchanges, the match.
    pub arguments: Arguments,
}

/// What a binding leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DestinationKind {
    /// A queue.
    Queue,
    /// Another exchange.
    Exchange,
}

/// The good answer to an [`Operation`].
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Exchange declared, deleted, bound, unbound: nothing to add.
    Done,
    /// A queue exists now. `created` tells whether it did not before.
    QueueDeclared { queue: QueueId, name: Arc<str>, created: bool },
    /// A queue is gone (or never was: 0), with this many ready messages.
    QueueDeleted { messages: u64 },
}

/// An exchange as every replica knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeInfo {
    pub vhost: VhostId,
    pub name: Arc<str>,
    pub kind: ExchangeKind,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: Arguments,
    /// What policies ask of it; worked out by the writer.
    pub policy: Option<Arc<EffectivePolicy>>,
}

/// How an exchange chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExchangeKind {
    Direct,
    Fanout,
    Topic,
    Headers,
    /// To one binding, by a hash and the bindings' weights.
    ConsistentHash,
    /// To one binding, by a hash and their number.
    ModulusHash,
    /// To one binding, by lot.
    Random,
    /// To one queue of this node, by lot.
    LocalRandom,
    /// To all; a binding to come gets the last messages, too.
    RecentHistory,
    /// As another kind does, when the message has waited.
    Delayed,
}

/// What a queue promises (`x-queue-type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// `classic`
    Classic,
    /// `quorum`: on one node a durable queue, with the rules and defaults of a quorum queue.
    Quorum,
}

/// A queue as every replica knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueInfo {
    pub id: QueueId,
    pub vhost: VhostId,
    pub name: Arc<str>,
    pub durable: bool,
    /// Its name in its owner's log, if it is durable.
    pub durable_id: Option<DurableId>,
    pub auto_delete: bool,
    /// The connection that alone may use it, for an exclusive queue.
    pub exclusive: Option<ConnectionId>,
    pub arguments: Arguments,
    /// What policies ask of it; worked out by the writer.
    pub policy: Option<Arc<EffectivePolicy>>,
}

/// One step of the topology's history; replicas apply them in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    CreateVhost {
        id: VhostId,
        name: Arc<str>,
    },
    TraceVhost {
        vhost: VhostId,
        on: bool,
    },
    CreateExchange(Arc<ExchangeInfo>),
    /// Policies ask something else of it.
    UpdateExchange(Arc<ExchangeInfo>),
    /// Its bindings, as source and as destination, go with it.
    RemoveExchange {
        vhost: VhostId,
        name: Arc<str>,
    },
    CreateQueue(Arc<QueueInfo>),
    /// Policies ask something else of it.
    UpdateQueue(Arc<QueueInfo>),
    /// Its bindings go with it.
    RemoveQueue(QueueId),
    AddBinding {
        vhost: VhostId,
        binding: Arc<BindingSpec>,
    },
    RemoveBinding {
        vhost: VhostId,
        binding: Arc<BindingSpec>,
    },
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requester {
    /// The asking connection; also names the shard where an exclusive queue is put.
    pub connection: ConnectionId,
}

impl QueueInfo {
    /// What it was declared as.
    pub fn kind(&self) -> QueueKind {
        match self.arguments.get("x-queue-type").and_then(Value::as_text) {
            Some("quorum") => QueueKind::Quorum,
            _ => QueueKind::Classic,
        }
    }

    /// What its arguments and its policies ask for, and its type where they say nothing.
    pub fn settings(&self) -> QueueSettings {
        if let Some(exchange) = exchange_of_delay_queue(&self.name) {
            return QueueInfo::delay_settings(exchange);
        }
        let arguments = match &self.policy {
            None => Cow::Borrowed(&self.arguments),
            Some(policy) => Cow::Owned(policy.with_arguments(self.kind(), &self.arguments)),
        };
        let mut settings = QueueSettings::from_arguments(&arguments);
        if self.kind() == QueueKind::Quorum && !arguments.contains_key("x-delivery-limit") {
            settings.delivery_limit = Some(QUORUM_DELIVERY_LIMIT);
        }
        settings
    }

    /// One consumer at a time gets messages (`x-single-active-consumer`).
    pub fn has_single_active_consumer(&self) -> bool {
        self.arguments.get("x-single-active-consumer") == Some(&Value::Bool(true))
    }

    /// What its persistent messages are to outlive, if it says so (`x-durability`).
    pub fn durability(&self) -> Option<Durability> {
        Durability::from_name(self.arguments.get("x-durability")?.as_text()?)
    }

    /// How long a delivery may stay unacked, in milliseconds (`x-consumer-timeout`); 0 is for ever, none
    /// is as configured.
    pub fn consumer_timeout_ms(&self) -> Option<u64> {
        let given = self.arguments.get("x-consumer-timeout");
        match &self.policy {
            None => given?.as_integer(),
            Some(policy) => policy.with_argument(self.kind(), "consumer-timeout", given)?.as_integer(),
        }?
        .try_into()
        .ok()
    }
}

impl ExchangeInfo {
    /// The exchange that gets what this one cannot route (`alternate-exchange`, as argument or by policy).
    pub fn alternate(&self) -> Option<&str> {
        let given = self.arguments.get("alternate-exchange");
        let by_policy = || self.policy.as_ref()?.definition.get("alternate-exchange");
        given.or_else(by_policy)?.as_text()
    }

    /// How many messages an x-recent-history exchange remembers (`x-recent-history-length`).
    pub fn history_length(&self) -> usize {
        let length = self.arguments.get("x-recent-history-length").and_then(Value::as_integer);
        length.and_then(|length| usize::try_from(length).ok()).unwrap_or(HISTORY_LENGTH)
    }
}

impl ExchangeKind {
    /// The type's name on the wire; none for a type that Lepus does not have.
    pub fn from_name(name: &str) -> Option<ExchangeKind> {
        Some(match name {
            "direct" => ExchangeKind::Direct,
            "fanout" => ExchangeKind::Fanout,
            "topic" => ExchangeKind::Topic,
            "headers" => ExchangeKind::Headers,
            "x-consistent-hash" => ExchangeKind::ConsistentHash,
            "x-modulus-hash" => ExchangeKind::ModulusHash,
            "x-random" => ExchangeKind::Random,
            "x-local-random" => ExchangeKind::LocalRandom,
            "x-recent-history" => ExchangeKind::RecentHistory,
            "x-delayed-message" => ExchangeKind::Delayed,
            _ => return None,
        })
    }

    /// The type's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            ExchangeKind::Direct => "direct",
            ExchangeKind::Fanout => "fanout",
            ExchangeKind::Topic => "topic",
            ExchangeKind::Headers => "headers",
            ExchangeKind::ConsistentHash => "x-consistent-hash",
            ExchangeKind::ModulusHash => "x-modulus-hash",
            ExchangeKind::Random => "x-random",
            ExchangeKind::LocalRandom => "x-local-random",
            ExchangeKind::RecentHistory => "x-recent-history",
            ExchangeKind::Delayed => "x-delayed-message",
        }
    }
}
