//! From the rows of the store back to a topology, at start.
//!
//! Every vhost gets the predeclared exchanges; they are not stored. Stored exchanges and queues follow
//! in the order of their names and then the bindings, so that the same rows give the same topology.
//! A queue is owned by the shard in whose log its messages are. If there is no such shard any more, it
//! gets another one, and its row is written anew: then its messages have to follow.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::rows::{self, BindingRow, ExchangeRow, QueueRow, Row, StoreWrite, TopologyError};
use super::writer::{Evaluation, Writer};
use super::{
    Change, DestinationKind, ExchangeInfo, ExchangeKind, Outcome, QueueInfo, TRACE_EXCHANGE,
    exchange_of_delay_queue,
};
use crate::{Arguments, ShardId, VhostId, limits};

/// The exchanges of every vhost. RabbitMQ's `amq.match` is a second headers exchange. The last one is internal:
/// what is traced comes from it.
const PREDECLARED: [(&str, ExchangeKind); 7] = [
    ("", ExchangeKind::Direct),
    ("amq.direct", ExchangeKind::Direct),
    ("amq.fanout", ExchangeKind::Fanout),
    ("amq.topic", ExchangeKind::Topic),
    ("amq.headers", ExchangeKind::Headers),
    ("amq.match", ExchangeKind::Headers),
    (TRACE_EXCHANGE, ExchangeKind::Topic),
];

impl Writer {
    /// The writer over what the store holds, and the changes that every replica applies as version 1.
    ///
    /// [`Writer::take_store_writes`] has what must be written before anything else: rows of queues that
    /// live in another shard's log than before, since there are fewer shards.
    ///
    /// `default_vhost` exists in any case and is vhost 0. `random` makes the names of server-named
    /// queues. Rows may come in any order.
    ///
    /// # Errors
    /// A row cannot be read, or leads to something that is not stored; or there are no shards, or more
    /// than [`limits::SHARDS_MAX`].
    pub fn restore(
        shards: usize,
        rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        default_vhost: &str,
        random: fastrand::Rng,
    ) -> Result<(Writer, Vec<Change>), TopologyError> {
        if !(1..=limits::SHARDS_MAX).contains(&shards) {
            return Err(TopologyError::Shards { shards });
        }
        let mut rows: Vec<(Vec<u8>, Vec<u8>)> = rows.into_iter().collect();
        // By kind, then by name: what a binding needs is there before it.
        rows.sort_unstable();
        let mut writer = Writer::empty(shards, random);
        // Policies first: whatever comes is told what they ask of it.
        rows.sort_by_key(|(key, _)| !rows::is_policy(key));
        let policies = rows.partition_point(|(key, _)| rows::is_policy(key));
        for (key, value) in &rows[..policies] {
            let Row::Policy(of, row) = rows::decode(key, value)? else { unreachable!("its key says so") };
            let set = writer.policies.set(&row.vhost, of, row.policy);
            set.map_err(|refusal| rows::damaged(key, &refusal.text))?;
        }
        writer.restore_vhost(default_vhost);
        let mut moved = Vec::new();
        for (key, value) in &rows[policies..] {
            match rows::decode(key, value)? {
                Row::Exchange(row) => writer.restore_exchange(key, row)?,
                Row::Queue(row) => moved.extend(writer.restore_queue(key, row)?),
                Row::Binding(row) => writer.restore_binding(key, row)?,
                Row::Tracing(row) => {
                    let vhost = writer.restore_vhost(&row.vhost);
                    writer.change(Change::TraceVhost { vhost, on: true });
                }
                Row::Policy(..) => unreachable!("policies were taken first"),
            }
        }
        // What would be written is there already, but for the homes of queues that have moved.
        writer.take_store_writes();
        writer.store_writes = moved;
        match writer.finish(Outcome::Done) {
            Evaluation::Changed { changes, .. } => Ok((writer, changes)),
            other => unreachable!("the default vhost at least is new: {other:?}"),
        }
    }

    fn restore_vhost(&mut self, name: &str) -> VhostId {
        if let Some(vhost) = self.topology().vhost(name) {
            return vhost;
        }
        let vhost = VhostId(self.topology().vhosts().count() as u32);
        self.change(Change::CreateVhost { id: vhost, name: name.into() });
        for (name, kind) in PREDECLARED {
            self.create_exchange(ExchangeInfo {
                vhost,
                name: name.into(),
                kind,
                durable: true,
                auto_delete: false,
                internal: name == TRACE_EXCHANGE,
                arguments: Arguments::new(),
                policy: None,
            });
        }
        vhost
    }

    fn restore_exchange(&mut self, key: &[u8], row: ExchangeRow) -> Result<(), TopologyError> {
        let vhost = self.restore_vhost(&row.vhost);
        if self.topology().exchange(vhost, &row.name).is_some() {
            return Err(rows::damaged(key, "a predeclared exchange cannot be stored"));
        }
        self.create_exchange(ExchangeInfo {
            vhost,
            name: row.name.into(),
            kind: row.kind,
            durable: true,
            auto_delete: row.auto_delete,
            internal: row.internal,
            arguments: row.arguments,
            policy: None,
        });
        Ok(())
    }

    /// Gives the write that the row needs, if the queue has moved.
    fn restore_queue(&mut self, key: &[u8], row: QueueRow) -> Result<Option<StoreWrite>, TopologyError> {
        let vhost = self.restore_vhost(&row.vhost);
        if let Some(exchange) = exchange_of_delay_queue(&row.name)
            && self
                .topology()
                .exchange(vhost, exchange)
                .is_none_or(|found| found.kind != ExchangeKind::Delayed)
        {
            return Err(rows::damaged(key, "the exchange that it belongs to is not stored"));
        }
        let shard = ShardId((usize::from(row.log) % self.placement.shards()) as u16);
        let id = self
            .placement
            .take(shard)
            .ok_or_else(|| rows::damaged(key, "more queues than the shards hold"))?;
        let info = QueueInfo {
            id,
            vhost,
            name: row.name.into(),
            durable: true,
            durable_id: Some(row.durable_id),
            auto_delete: row.auto_delete,
            exclusive: None,
            arguments: row.arguments,
            policy: None,
        };
        let moved = (shard.0 != row.log).then(|| rows::put_queue(&row.vhost, &info));
        self.create_queue(info);
        Ok(moved)
    }

    fn restore_binding(&mut self, key: &[u8], row: BindingRow) -> Result<(), TopologyError> {
        let vhost = self.restore_vhost(&row.vhost);
        let spec = Arc::new(row.binding);
        let topology = self.topology();
        let destination_exists = match spec.kind {
            DestinationKind::Queue => topology.queue(vhost, &spec.destination).is_some(),
            DestinationKind::Exchange => topology.exchange(vhost, &spec.destination).is_some(),
        };
        if topology.exchange(vhost, &spec.source).is_none() || !destination_exists {
            return Err(rows::damaged(key, "it binds what is not stored"));
        }
        self.add_binding(vhost, spec);
        Ok(())
    }
}
