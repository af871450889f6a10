//! Connections to a broker: a blocking client for everything that nobody times by the message, which becomes a
//! [`Link`] for load; and the objects of a run, which are removed when it ends.

mod blocking;
mod messages;
mod objects;
mod verbs;

pub use blocking::{Broker, Client, Confirm, Link, refusal};
pub use objects::{Objects, unique_prefix};
pub use verbs::{QueueKind, parse_argument};
