//! What x-recent-history exchanges remember, and how a new binding gets it.
//!
//! An exchange's history is kept on one shard, its keeper. Whoever publishes through the exchange sends
//! the keeper a copy; the keeper is the one to hand the history out when it learns of a new binding. Each
//! message carries the version of the topology by which it was routed, and a binding has the version that
//! made it: an older message comes to the binding's destination out of the history, also one that reaches
//! the keeper late; one of that version or a later one was routed there. So each comes once, in whatever
//! order keeper and publishers hear of the binding.
//!
//! A history is in memory and ends with the process; what it hands out is kept by the queues as any
//! message is, and is not remembered again by another history on its way; nor are dead letters. All
//! histories of a shard together take a bounded share of its memory: past it, the oldest messages of the
//! exchange at hand go first.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::batch::{PeerMessage, RecordRef};
use super::effects::Effects;
use super::properties::StoredHeaders;
use super::{Publish, Shard};
use crate::mesh::Lane;
use crate::queue::Record;
use crate::topology::{
    BindingSpec, Change, DestinationKind, ExchangeIndex, ExchangeInfo, ExchangeKind, RoutingData, Topology,
};
use crate::{Durability, QueueId, ShardId, Value, VhostId};

/// Header of a message that must not be remembered, if true.
const NO_STORE: &str = "x-recent-history-no-store";

/// A message on its way to a history.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub exchange: ExchangeIndex,
    /// Of the topology by which it was routed.
    pub version: u64,
    pub durability: Durability,
    pub ttl_ms: Option<u64>,
    /// Routing keys beside its own.
    pub further_keys: Box<[Box<[u8]>]>,
}

/// A message in a history.
#[derive(Clone)]
struct Kept {
    remembered: Remembered,
    record: Record,
}

struct History {
    /// The version that made the exchange: its place may have been another's before.
    since: u64,
    length: usize,
    messages: VecDeque<Kept>,
    /// Bindings and the versions that made them, the newest last.
    bindings: Vec<(u64, VhostId, Arc<BindingSpec>)>,
}

/// The histories that a shard keeps. See the module.
pub(super) struct Histories {
    by_exchange: FxHashMap<ExchangeIndex, History>,
    bytes: u64,
    bytes_max: u64,
}

impl Histories {
    pub fn new(bytes_max: u64) -> Histories {
        Histories { by_exchange: FxHashMap::default(), bytes: 0, bytes_max }
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn create(&mut self, exchange: ExchangeIndex, info: &ExchangeInfo, version: u64) {
        let (length, messages) = (info.history_length(), VecDeque::new());
        let history = History { since: version, length, messages, bindings: Vec::new() };
        self.by_exchange.insert(exchange, history);
    }

    pub fn remove(&mut self, exchange: ExchangeIndex) {
        if let Some(history) = self.by_exchange.remove(&exchange) {
            self.bytes -= history.messages.iter().map(|kept| kept.record.bytes().len() as u64).sum::<u64>();
        }
    }

    /// Notes a binding, and gives the messages that were routed without it.
    fn bind(
        &mut self,
        exchange: ExchangeIndex,
        version: u64,
        vhost: VhostId,
        binding: &Arc<BindingSpec>,
    ) -> Vec<Kept> {
        let Some(history) = self.by_exchange.get_mut(&exchange) else { return Vec::new() };
        history.bindings.push((version, vhost, Arc::clone(binding)));
        history.messages.iter().filter(|kept| kept.remembered.version < version).cloned().collect()
    }

    pub fn unbind(&mut self, exchange: ExchangeIndex, binding: &BindingSpec) {
        if let Some(history) = self.by_exchange.get_mut(&exchange) {
            history.bindings.retain(|(_, _, other)| **other != *binding);
        }
    }

    /// Lets go of bindings that went with their destinations, if there may be many of those.
    fn prune(&mut self, exchange: ExchangeIndex, topology: &Topology) {
        let Some(history) = self.by_exchange.get_mut(&exchange) else { return };
        if history.bindings.len() > 8 + 2 * topology.bindings_from_count(exchange) {
            history.bindings.retain(|(_, vhost, binding)| topology.has_binding(*vhost, binding));
        }
    }

    /// Keeps a message, and gives the bindings that it was routed without.
    fn keep(
        &mut self,
        remembered: &Remembered,
        record: RecordRef<'_>,
    ) -> SmallVec<[(VhostId, Arc<BindingSpec>); 1]> {
        let Remembered { exchange, version, .. } = *remembered;
        let history = self.by_exchange.get_mut(&exchange).filter(|history| history.since <= version);
        // Its exchange is gone.
        let Some(history) = history else { return SmallVec::new() };
        let record = record.to_record();
        self.bytes += record.bytes().len() as u64;
        history.messages.push_back(Kept { remembered: remembered.clone(), record });
        while history.messages.len() > history.length || self.bytes > self.bytes_max {
            let Some(oldest) = history.messages.pop_front() else { break };
            self.bytes -= oldest.record.bytes().len() as u64;
        }
        let late = history.bindings.iter().rev().take_while(|(made, ..)| *made > version);
        late.map(|(_, vhost, binding)| (*vhost, Arc::clone(binding))).collect()
    }
}

/// The shard that keeps an exchange's history. Any will do, as long as all name the same.
fn keeper(exchange: ExchangeIndex, shards: usize) -> ShardId {
    ShardId((exchange.position() % shards) as u16)
}

impl Shard {
    /// What the histories of the exchanges are to remember that a message's route has met.
    pub(super) fn take_remembered(&mut self, publish: &Publish<'_>) -> Vec<Remembered> {
        let histories = std::mem::take(&mut self.route.histories);
        if histories.is_empty() || publish.headers.headers().get(NO_STORE) == Some(&Value::Bool(true)) {
            return Vec::new();
        }
        let remembered = histories.into_iter().map(|exchange| Remembered {
            exchange,
            version: self.topology.version(),
            durability: publish.durability,
            ttl_ms: publish.ttl_ms,
            further_keys: publish.further_keys.iter().map(|key| Box::from(*key)).collect(),
        });
        remembered.collect()
    }

    /// Sends a message to the histories that are to remember it.
    pub(super) fn send_to_keepers<E: Effects>(
        &mut self,
        fx: &mut E,
        remembered: Vec<Remembered>,
        record: RecordRef<'_>,
    ) {
        for remembered in remembered {
            let keeper = keeper(remembered.exchange, self.shards);
            if keeper == self.id {
                self.keep_in_history(fx, &remembered, record);
            } else {
                let batch = fx.outgoing(keeper, Lane::Forward);
                let payload = batch.add_record(record);
                batch.push(PeerMessage::Remember { payload, remembered: Box::new(remembered) });
            }
        }
    }

    /// A message for a history that this shard keeps.
    pub(super) fn keep_in_history<E: Effects>(
        &mut self,
        fx: &mut E,
        remembered: &Remembered,
        record: RecordRef<'_>,
    ) {
        let late = self.histories.keep(remembered, record);
        for (vhost, binding) in late {
            if self.topology.has_binding(vhost, &binding) {
                self.send_remembered(fx, vhost, &binding, remembered, record);
            }
        }
    }

    /// The topology is about to change: histories go with their exchanges and bindings.
    pub(super) fn forget_histories(&mut self, change: &Change) {
        let (vhost, name) = match change {
            Change::RemoveExchange { vhost, name } => (*vhost, &**name),
            Change::RemoveBinding { vhost, binding } => (*vhost, &*binding.source),
            _ => return,
        };
        let Some(exchange) = self.kept_exchange(vhost, name) else { return };
        match change {
            Change::RemoveBinding { binding, .. } => self.histories.unbind(exchange, binding),
            _ => self.histories.remove(exchange),
        }
    }

    /// The topology has changed: new exchanges get a history, new bindings what there is of it.
    pub(super) fn apply_to_histories<E: Effects>(&mut self, fx: &mut E, version: u64, change: &Change) {
        match change {
            Change::CreateExchange(info) => {
                if let Some(exchange) = self.kept_exchange(info.vhost, &info.name) {
                    self.histories.create(exchange, info, version);
                }
            }
            Change::AddBinding { vhost, binding } => {
                let Some(exchange) = self.kept_exchange(*vhost, &binding.source) else { return };
                self.histories.prune(exchange, &self.topology);
                for Kept { remembered, record } in self.histories.bind(exchange, version, *vhost, binding) {
                    self.send_remembered(fx, *vhost, binding, &remembered, RecordRef::Stored(&record));
                }
            }
            _ => {}
        }
    }

    /// Histories of the exchanges that are there from the start.
    pub(super) fn create_histories(&mut self) {
        let exchanges: Vec<Arc<ExchangeInfo>> = self.topology.exchanges().cloned().collect();
        for info in exchanges {
            if let Some(exchange) = self.kept_exchange(info.vhost, &info.name) {
                self.histories.create(exchange, &info, self.topology.version());
            }
        }
    }

    /// The exchange, if it has a history and this shard keeps it.
    fn kept_exchange(&self, vhost: VhostId, name: &str) -> Option<ExchangeIndex> {
        let info = self.topology.exchange(vhost, name)?;
        let index = self.topology.exchange_index(vhost, name)?;
        let kept = info.kind == ExchangeKind::RecentHistory && keeper(index, self.shards) == self.id;
        kept.then_some(index)
    }

    /// Hands a remembered message to a binding's destination: a queue, or whatever an exchange routes to.
    fn send_remembered<E: Effects>(
        &mut self,
        fx: &mut E,
        vhost: VhostId,
        binding: &BindingSpec,
        remembered: &Remembered,
        record: RecordRef<'_>,
    ) {
        let mut queues: Vec<QueueId> = Vec::new();
        match binding.kind {
            DestinationKind::Queue => {
                queues.extend(self.topology.queue(vhost, &binding.destination).map(|queue| queue.id));
            }
            DestinationKind::Exchange => {
                let view = record.view();
                let further_keys: Vec<&[u8]> = remembered.further_keys.iter().map(|key| &**key).collect();
                let headers = StoredHeaders { format: fx, properties: view.properties };
                let message = RoutingData {
                    routing_key: view.routing_key,
                    further_keys: &further_keys,
                    headers: &headers,
                };
                self.topology.route_inside(vhost, &binding.destination, &message, &mut self.route);
                queues.extend_from_slice(&self.route.queues);
            }
        }
        self.dispatch(fx, record, &queues, remembered.durability, remembered.ttl_ms, None);
        if binding.kind == DestinationKind::Exchange {
            self.dispatch_delayed(fx, record, remembered.durability, None);
        }
    }
}
