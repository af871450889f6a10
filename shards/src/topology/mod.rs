//! Vhosts, exchanges, queues and bindings: who gets a message.
//!
//! One shard holds the [`Writer`]: it alone decides about changes, one after another, each with a
//! version. Every shard holds a [`Topology`], a replica that applies those changes in the order of
//! their versions and routes on them without looking anywhere else. A request is answered when every
//! replica has its version, so what was declared on one connection is there for all.
//!
//! A replica is changed in place and not replaced by a new snapshot: a change costs what it changes,
//! on each shard, and no count of references is shared between cores.

mod bucket;
mod checks;
mod delayed;
mod exchange_checks;
mod headers_match;
mod operation;
mod placement;
mod policies;
mod policy_changes;
mod queue_arguments;
mod queue_types;
mod replica;
mod reply_address;
mod restore;
mod routing;
mod rows;
mod spread;
mod stable_hash;
mod topic_trie;
mod tracing;
mod writer;

pub use bucket::ExchangeIndex;
pub use delayed::exchange_of_delay_queue;
pub use operation::{
    BindingSpec, Change, DestinationKind, ExchangeInfo, ExchangeKind, Operation, Outcome, QueueInfo,
    QueueKind, Requester,
};
pub use policies::{ApplyTo, EffectivePolicy, Policy, PolicyOf};
pub use replica::Topology;
pub use reply_address::{REPLY_QUEUE, ReplyAddress, is_reply_name};
pub use routing::{Cacheable, RouteScratch, RoutingData};
pub use rows::{StoreWrite, TopologyError};
pub use tracing::TRACE_EXCHANGE;
pub use writer::{Evaluation, Writer};

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod writer_tests;
