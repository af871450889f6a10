//! The Lepus kernel: everything that happens to a message between two sockets.
//!
//! One [`shard::Shard`] runs on each core and owns a share of the queues. It is sans-IO: commands
//! and the time go in, effects come out, and nothing in it awaits, so that the same code runs under
//! the real runtime and under the seeded simulator. It knows no protocol: AMQP lives in the package
//! `lepus`, on top of [`shard::FrontEnd`].
//!
//! | module | what it owns |
//! |---|---|
//! | [`topology`] | vhosts, exchanges, bindings, routing, and the one writer of their changes |
//! | [`queue`] | a queue's messages in publication order, its consumers and their turns |
//! | [`ledger`] | cursor, conditional claims, delivery tags, settlement |
//! | [`shard`] | commands in, effects out: the home of connections and the owner of queues |
//! | [`mesh`] | batches between cores |
//! | [`histogram`] | how long things take |
//! | [`runtime`] | executors, sockets, timers; the only place that names the executor library |

pub mod histogram;
pub mod ids;
pub mod ledger;
pub mod limits;
pub mod mesh;
pub mod message;
pub mod queue;
pub mod refusal;
pub mod runtime;
pub mod shard;
pub mod topology;
pub mod value;

pub use ids::{
    ChannelId, ConnectionId, ConsumerId, DeliveryTag, DurableId, QueueId, ShardId, TxName, VhostId,
};
pub use message::Durability;
pub use refusal::{Refusal, RefusalKind};
pub use value::{Arguments, Value};
