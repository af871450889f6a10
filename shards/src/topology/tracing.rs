//! Vhosts that are traced: what is published in them and what is delivered from them is published once more, to
//! the exchange [`TRACE_EXCHANGE`], as RabbitMQ's firehose does it.
//!
//! Which vhosts are traced is stored. With RabbitMQ it ends with the node; here somebody who stops a broker, turns
//! tracing on and starts it again would find it off.

#![forbid(unsafe_code)]

use super::rows;
use super::writer::{Evaluation, Writer};
use super::{Change, Outcome};
use crate::VhostId;

/// Each vhost has this topic exchange. It is internal: clients bind to it, and only the broker publishes.
pub const TRACE_EXCHANGE: &str = "amq.rabbitmq.trace";

impl Writer {
    pub(super) fn set_tracing(&mut self, vhost: VhostId, on: bool) -> Evaluation {
        if self.topology().is_traced(vhost) == on {
            return Evaluation::Unchanged(Outcome::Done);
        }
        let name = self.topology().vhost_name(vhost);
        let write = if on { rows::put_tracing(name) } else { rows::remove(rows::tracing_key(name)) };
        self.store_writes.push(write);
        self.change(Change::TraceVhost { vhost, on });
        self.finish(Outcome::Done)
    }
}
