//! One shard's copy of the topology.
//!
//! Owned by the shard's thread and changed in place, by [`Topology::apply`] only. It is told nothing
//! that the writer has not checked: a change that does not fit is a broken invariant and panics.
//! Two replicas that applied the same changes are equal, down to the order of everything.
//!
//! Each binding is known to its source, to its destination and to the source's routing table, and
//! knows its position in the table: removing a queue or an exchange costs its own bindings.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use slab::Slab;

use super::bucket::{BindingIndex, Destination, Entry, ExchangeIndex};
use super::routing::RoutingTable;
use super::rows;
use super::{BindingSpec, Change, DestinationKind, ExchangeInfo, QueueInfo, exchange_of_delay_queue};
use crate::{QueueId, VhostId};

/// Vhosts, exchanges, queues, bindings. Starts empty, at version 0.
#[derive(Debug, Default)]
pub struct Topology {
    version: u64,
    /// By [`VhostId`].
    vhosts: Vec<Vhost>,
    exchanges: Slab<Exchange>,
    queues: FxHashMap<QueueId, Queue>,
    bindings: Slab<Binding>,
    /// By what tells bindings apart: see [`rows::binding_key`].
    bindings_by_identity: HashMap<Box<[u8]>, BindingIndex>,
}

/// Clients choose names: hence maps with a keyed hash, which are never iterated.
#[derive(Debug)]
struct Vhost {
    name: Arc<str>,
    /// What happens in it is traced.
    traced: bool,
    exchanges: HashMap<Arc<str>, ExchangeIndex>,
    queues: HashMap<Arc<str>, Arc<QueueInfo>>,
}

#[derive(Debug)]
pub(super) struct Exchange {
    pub info: Arc<ExchangeInfo>,
    pub table: RoutingTable,
    /// Where its messages wait, if it is a delayed exchange.
    pub delay_queue: Option<QueueId>,
    /// Bindings that it is the source of.
    outgoing: FxHashSet<BindingIndex>,
    /// Bindings that lead to it.
    incoming: FxHashSet<BindingIndex>,
}

#[derive(Debug)]
struct Queue {
    info: Arc<QueueInfo>,
    /// Bindings that lead to it.
    incoming: FxHashSet<BindingIndex>,
}

#[derive(Debug)]
struct Binding {
    vhost: VhostId,
    spec: Arc<BindingSpec>,
    source: ExchangeIndex,
    destination: Destination,
    /// In the source's routing table, among the bindings that match alike.
    position: u32,
}

impl Topology {
    /// An empty topology, at version 0.
    pub fn new() -> Topology {
        Topology::default()
    }

    /// How many sets of changes were applied.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Applies the changes that lead to `version`.
    ///
    /// # Panics
    /// When `version` does not follow the one the replica has.
    pub fn apply_all(&mut self, version: u64, changes: &[Change]) {
        assert_eq!(version, self.version + 1, "versions of the topology arrive in order and without gaps");
        for change in changes {
            self.apply(change);
        }
        self.version = version;
    }

    /// Applies one change, without counting a version.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::CreateVhost { id, name } => self.create_vhost(*id, name),
            Change::TraceVhost { vhost, on } => self.vhost_mut(*vhost).traced = *on,
            Change::CreateExchange(info) => self.create_exchange(info),
            Change::UpdateExchange(info) => self.update_exchange(info),
            Change::RemoveExchange { vhost, name } => self.remove_exchange(*vhost, name),
            Change::CreateQueue(info) => self.create_queue(info),
            Change::UpdateQueue(info) => self.update_queue(info),
            Change::RemoveQueue(queue) => self.remove_queue(*queue),
            Change::AddBinding { vhost, binding } => self.add_binding(*vhost, binding),
            Change::RemoveBinding { vhost, binding } => {
                let index =
                    self.binding_index(*vhost, binding).expect("the writer removes bindings that exist");
                self.remove_binding(index);
            }
        }
    }

    /// The changes applied one by one since the last version are the next one.
    pub(super) fn count_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// A vhost by name.
    pub fn vhost(&self, name: &str) -> Option<VhostId> {
        // A linear look is enough: it happens once per connection, and vhosts are few.
        self.vhosts.iter().position(|vhost| &*vhost.name == name).map(|id| VhostId(id as u32))
    }

    /// The name of a vhost.
    ///
    /// # Panics
    /// When there is no such vhost: ids come from [`Topology::vhost`] only.
    pub fn vhost_name(&self, vhost: VhostId) -> &str {
        &self.vhost_at(vhost).name
    }

    /// All vhosts, in the order of their ids.
    pub fn vhosts(&self) -> impl Iterator<Item = (VhostId, &Arc<str>)> {
        (0..).map(VhostId).zip(self.vhosts.iter().map(|vhost| &vhost.name))
    }

    /// Whether what happens in a vhost is traced.
    ///
    /// # Panics
    /// As [`Topology::vhost_name`].
    pub fn is_traced(&self, vhost: VhostId) -> bool {
        self.vhost_at(vhost).traced
    }

    /// An exchange by name.
    pub fn exchange(&self, vhost: VhostId, name: &str) -> Option<&Arc<ExchangeInfo>> {
        self.exchange_index(vhost, name).map(|index| &self.exchange_at(index).info)
    }

    /// All exchanges of all vhosts, in no particular order.
    pub fn exchanges(&self) -> impl Iterator<Item = &Arc<ExchangeInfo>> {
        self.exchanges.iter().map(|(_, exchange)| &exchange.info)
    }

    /// A queue by name.
    pub fn queue(&self, vhost: VhostId, name: &str) -> Option<&Arc<QueueInfo>> {
        self.vhost_at(vhost).queues.get(name)
    }

    /// A queue by id.
    pub fn queue_by_id(&self, queue: QueueId) -> Option<&Arc<QueueInfo>> {
        self.queues.get(&queue).map(|queue| &queue.info)
    }

    /// All queues of all vhosts, in no particular order.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<QueueInfo>> {
        self.queues.values().map(|queue| &queue.info)
    }

    /// All bindings of all vhosts, in no particular order. Those by which the default exchange leads
    /// to each queue go without saying and are not among them.
    pub fn bindings(&self) -> impl Iterator<Item = (VhostId, &Arc<BindingSpec>)> {
        self.bindings.iter().map(|(_, binding)| (binding.vhost, &binding.spec))
    }

    /// Whether this very binding exists.
    pub fn has_binding(&self, vhost: VhostId, binding: &BindingSpec) -> bool {
        self.binding_index(vhost, binding).is_some()
    }

    /// The bindings that lead away from an exchange.
    pub(super) fn bindings_from(&self, exchange: ExchangeIndex) -> impl Iterator<Item = &Arc<BindingSpec>> {
        self.specs(&self.exchange_at(exchange).outgoing)
    }

    /// The bindings that lead to an exchange.
    pub(super) fn bindings_to(&self, exchange: ExchangeIndex) -> impl Iterator<Item = &Arc<BindingSpec>> {
        self.specs(&self.exchange_at(exchange).incoming)
    }

    /// The bindings that lead to a queue; none if there is no such queue.
    pub(super) fn bindings_to_queue(&self, queue: QueueId) -> impl Iterator<Item = &Arc<BindingSpec>> {
        self.queues.get(&queue).into_iter().flat_map(|queue| self.specs(&queue.incoming))
    }

    /// How many bindings lead away from an exchange.
    pub(crate) fn bindings_from_count(&self, exchange: ExchangeIndex) -> usize {
        self.exchange_at(exchange).outgoing.len()
    }

    pub(crate) fn exchange_index(&self, vhost: VhostId, name: &str) -> Option<ExchangeIndex> {
        self.vhost_at(vhost).exchanges.get(name).copied()
    }

    pub(super) fn exchange_at(&self, index: ExchangeIndex) -> &Exchange {
        &self.exchanges[index.0 as usize]
    }

    fn specs<'a>(
        &'a self,
        bindings: &'a FxHashSet<BindingIndex>,
    ) -> impl Iterator<Item = &'a Arc<BindingSpec>> {
        bindings.iter().map(|index| &self.bindings[index.0 as usize].spec)
    }

    fn vhost_at(&self, vhost: VhostId) -> &Vhost {
        self.vhosts.get(vhost.0 as usize).expect("vhost ids come from this topology and vhosts stay")
    }

    fn vhost_mut(&mut self, vhost: VhostId) -> &mut Vhost {
        self.vhosts.get_mut(vhost.0 as usize).expect("vhost ids come from this topology and vhosts stay")
    }

    fn binding_index(&self, vhost: VhostId, binding: &BindingSpec) -> Option<BindingIndex> {
        self.bindings_by_identity.get(&*rows::binding_key(self.vhost_name(vhost), binding)).copied()
    }

    fn create_vhost(&mut self, id: VhostId, name: &Arc<str>) {
        assert_eq!(id.0 as usize, self.vhosts.len(), "vhosts are numbered densely");
        let name = Arc::clone(name);
        self.vhosts.push(Vhost { name, traced: false, exchanges: HashMap::new(), queues: HashMap::new() });
    }

    fn create_exchange(&mut self, info: &Arc<ExchangeInfo>) {
        let index = self.exchanges.insert(Exchange {
            info: Arc::clone(info),
            table: RoutingTable::new(info),
            delay_queue: None,
            outgoing: FxHashSet::default(),
            incoming: FxHashSet::default(),
        });
        let index = ExchangeIndex(u32::try_from(index).expect("fewer than 2^32 exchanges fit in memory"));
        let earlier = self.vhost_mut(info.vhost).exchanges.insert(Arc::clone(&info.name), index);
        assert!(earlier.is_none(), "the writer creates each exchange once");
    }

    fn update_exchange(&mut self, info: &Arc<ExchangeInfo>) {
        let index = self.exchange_index(info.vhost, &info.name).expect("the writer updates what exists");
        self.exchanges[index.0 as usize].info = Arc::clone(info);
    }

    fn update_queue(&mut self, info: &Arc<QueueInfo>) {
        self.queues.get_mut(&info.id).expect("the writer updates what exists").info = Arc::clone(info);
        let by_name = self.vhost_mut(info.vhost).queues.get_mut(&info.name);
        *by_name.expect("a queue has its name") = Arc::clone(info);
    }

    fn remove_exchange(&mut self, vhost: VhostId, name: &str) {
        let index =
            self.vhost_mut(vhost).exchanges.remove(name).expect("the writer removes exchanges that exist");
        let exchange = self.exchange_at(index);
        let bindings: Vec<BindingIndex> =
            exchange.outgoing.iter().chain(&exchange.incoming).copied().collect();
        for binding in bindings {
            // One that leads from the exchange to itself was listed twice.
            if self.bindings.contains(binding.0 as usize) {
                self.remove_binding(binding);
            }
        }
        self.exchanges.remove(index.0 as usize);
    }

    fn create_queue(&mut self, info: &Arc<QueueInfo>) {
        let queue = Queue { info: Arc::clone(info), incoming: FxHashSet::default() };
        if let Some(exchange) = exchange_of_delay_queue(&info.name) {
            let index =
                self.exchange_index(info.vhost, exchange).expect("the writer creates the exchange first");
            self.exchanges[index.0 as usize].delay_queue = Some(info.id);
        }
        let earlier = self.queues.insert(info.id, queue);
        assert!(earlier.is_none(), "a queue id never repeats");
        let earlier = self.vhost_mut(info.vhost).queues.insert(Arc::clone(&info.name), Arc::clone(info));
        assert!(earlier.is_none(), "the writer creates each queue once");
    }

    fn remove_queue(&mut self, queue: QueueId) {
        let entry = self.queues.get_mut(&queue).expect("the writer removes queues that exist");
        let incoming = std::mem::take(&mut entry.incoming);
        for binding in incoming {
            self.remove_binding(binding);
        }
        let queue = self.queues.remove(&queue).expect("it was there above");
        self.vhost_mut(queue.info.vhost).queues.remove(&queue.info.name);
        if let Some(exchange) = exchange_of_delay_queue(&queue.info.name)
            && let Some(index) = self.exchange_index(queue.info.vhost, exchange)
        {
            self.exchanges[index.0 as usize].delay_queue = None;
        }
    }

    fn add_binding(&mut self, vhost: VhostId, spec: &Arc<BindingSpec>) {
        let source = self.exchange_index(vhost, &spec.source).expect("the writer binds exchanges that exist");
        let destination = match spec.kind {
            DestinationKind::Queue => {
                self.queue(vhost, &spec.destination).map(|queue| Destination::Queue(queue.id))
            }
            DestinationKind::Exchange => {
                self.exchange_index(vhost, &spec.destination).map(Destination::Exchange)
            }
        }
        .expect("the writer binds to what exists");
        let key = rows::binding_key(self.vhost_name(vhost), spec).into_boxed_slice();

        let slot = self.bindings.vacant_entry();
        let index = BindingIndex(u32::try_from(slot.key()).expect("fewer than 2^32 bindings fit in memory"));
        let exchange = &mut self.exchanges[source.0 as usize];
        let position = exchange.table.add(spec, Entry { destination, binding: index });
        exchange.outgoing.insert(index);
        slot.insert(Binding { vhost, spec: Arc::clone(spec), source, destination, position });
        match destination {
            Destination::Queue(queue) => {
                self.queues.get_mut(&queue).expect("looked up above").incoming.insert(index);
            }
            Destination::Exchange(exchange) => {
                self.exchanges[exchange.0 as usize].incoming.insert(index);
            }
        }
        let earlier = self.bindings_by_identity.insert(key, index);
        assert!(earlier.is_none(), "the writer makes each binding once");
    }

    fn remove_binding(&mut self, index: BindingIndex) {
        let binding = self.bindings.remove(index.0 as usize);
        let source = &mut self.exchanges[binding.source.0 as usize];
        source.outgoing.remove(&index);
        if let Some(moved) = source.table.remove(&binding.spec, binding.position) {
            self.bindings[moved.0 as usize].position = binding.position;
        }
        match binding.destination {
            Destination::Queue(queue) => {
                self.queues.get_mut(&queue).expect("a queue outlives its bindings").incoming.remove(&index);
            }
            Destination::Exchange(exchange) => {
                self.exchanges[exchange.0 as usize].incoming.remove(&index);
            }
        }
        let key = rows::binding_key(self.vhost_name(binding.vhost), &binding.spec);
        self.bindings_by_identity.remove(&*key);
    }
}
