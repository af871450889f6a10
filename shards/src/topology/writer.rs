//! The one place where changes of the topology are decided.
//!
//! Lives on one shard. Its own [`Topology`] is the authority: an operation is checked against it and,
//! if it changes anything, applied to it at once under the next version. The caller sends the changes
//! to the other shards' replicas, writes [`Writer::take_store_writes`] to the store, and answers when
//! both are done.
//!
//! A queue's messages and consumers are with its owner, so the owner has the last word on dropping it:
//! [`Evaluation::DropQueues`] is the first half of a deletion and [`Writer::queues_dropped`] the
//! second. Between the two the caller evaluates nothing else, or a declare could find a queue that
//! its owner has dropped already.

#![forbid(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::checks::{self, Named, WantedExchange};
use super::placement::Placement;
use super::policies::Policies;
use super::queue_types::Properties;
use super::rows::{self, StoreWrite};
use super::{
    BindingSpec, Change, DestinationKind, ExchangeInfo, ExchangeKind, Operation, Outcome, QueueInfo,
    Requester, Topology, delayed, exchange_checks, queue_types,
};
use crate::{Arguments, ConnectionId, DurableId, QueueId, Refusal, RefusalKind, ShardId, VhostId};

/// What the writer makes of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Evaluation {
    /// No.
    Refused(Refusal),
    /// Yes, and nothing changes: every replica with the writer's version can answer for it.
    Unchanged(Outcome),
    /// Yes, once every replica has applied `changes` as `version`.
    Changed { version: u64, changes: Vec<Change>, outcome: Outcome },
    /// The owners drop these queues first, if the conditions hold there; then
    /// [`Writer::queues_dropped`]. Either refusal comes from the owner: [`Refusal::queue_in_use`],
    /// [`Refusal::queue_not_empty`].
    DropQueues { queues: Vec<QueueId>, if_unused: bool, if_empty: bool },
}

/// The authority over the topology.
#[derive(Debug)]
pub struct Writer {
    pub(super) topology: Topology,
    pub(super) placement: Placement,
    pub(super) policies: Policies,
    /// Each connection's exclusive queues. Ordered, so that a seeded run repeats.
    exclusive: HashMap<ConnectionId, BTreeSet<QueueId>>,
    random: fastrand::Rng,
    /// Changes of the evaluation under way.
    changes: Vec<Change>,
    /// Writes to the store that nobody has taken yet.
    pub(super) store_writes: Vec<StoreWrite>,
}

/// A queue that somebody wants declared.
struct WantedQueue {
    vhost: VhostId,
    name: String,
    passive: bool,
    durable: bool,
    exclusive: bool,
    auto_delete: bool,
    arguments: Arguments,
}

impl Writer {
    pub(super) fn empty(shards: usize, random: fastrand::Rng) -> Writer {
        Writer {
            topology: Topology::new(),
            placement: Placement::new(shards),
            policies: Policies::default(),
            exclusive: HashMap::new(),
            random,
            changes: Vec::new(),
            store_writes: Vec::new(),
        }
    }

    /// The topology with everything decided so far.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The version of the last change decided.
    pub fn version(&self) -> u64 {
        self.topology.version()
    }

    /// What the store must hold after the evaluations since the last call: one transaction, in this
    /// order. Empty when only transient things changed.
    pub fn take_store_writes(&mut self) -> Vec<StoreWrite> {
        std::mem::take(&mut self.store_writes)
    }

    /// Decides one operation.
    pub fn evaluate(&mut self, operation: &Operation, requester: Requester) -> Evaluation {
        self.decide(operation, requester).unwrap_or_else(Evaluation::Refused)
    }

    /// The second half of a deletion: the owners have dropped these queues, with so many ready
    /// messages together. Queues that the topology does not know are passed over.
    pub fn queues_dropped(&mut self, dropped: &[QueueId], messages: u64) -> Evaluation {
        for &queue in dropped {
            self.remove_queue(queue);
        }
        self.finish(Outcome::QueueDeleted { messages })
    }

    fn decide(&mut self, operation: &Operation, requester: Requester) -> Result<Evaluation, Refusal> {
        match operation {
            Operation::DeclareExchange { .. } => self.declare_exchange(operation),
            Operation::DeleteExchange { vhost, name, if_unused } => {
                self.delete_exchange(*vhost, &checks::stripped(name), *if_unused)
            }
            Operation::DeclareQueue { vhost, name, passive, durable, exclusive, auto_delete, arguments } => {
                let wanted = WantedQueue {
                    vhost: *vhost,
                    name: checks::stripped(name),
                    passive: *passive,
                    durable: *durable,
                    exclusive: *exclusive,
                    auto_delete: *auto_delete,
                    arguments: arguments.clone(),
                };
                self.declare_queue(wanted, requester)
            }
            Operation::DeleteQueue { vhost, name, if_unused, if_empty } => {
                let name = checks::stripped(name);
                let Some(queue) = self.topology.queue(*vhost, &name) else {
                    return Ok(Evaluation::Unchanged(Outcome::QueueDeleted { messages: 0 }));
                };
                self.usable(queue, requester)?;
                Ok(Evaluation::DropQueues {
                    queues: vec![queue.id],
                    if_unused: *if_unused,
                    if_empty: *if_empty,
                })
            }
            Operation::ExpireQueue { queue, if_unused } => Ok(match self.topology.queue_by_id(*queue) {
                None => Evaluation::Unchanged(Outcome::QueueDeleted { messages: 0 }),
                Some(_) => {
                    Evaluation::DropQueues { queues: vec![*queue], if_unused: *if_unused, if_empty: false }
                }
            }),
            Operation::Bind { vhost, binding } => self.bind(*vhost, binding, requester),
            Operation::Unbind { vhost, binding } => self.unbind(*vhost, binding, requester),
            Operation::SetPolicy { vhost, of, policy } => self.set_policy(*vhost, *of, policy),
            Operation::ClearPolicy { vhost, of, name } => self.clear_policy(*vhost, *of, name),
            Operation::TraceVhost { vhost, on } => Ok(self.set_tracing(*vhost, *on)),
            Operation::ReleaseConnection { connection } => Ok(match self.exclusive.get(connection) {
                None => Evaluation::Unchanged(Outcome::QueueDeleted { messages: 0 }),
                Some(queues) => Evaluation::DropQueues {
                    queues: queues.iter().copied().collect(),
                    if_unused: false,
                    if_empty: false,
                },
            }),
        }
    }

    fn declare_exchange(&mut self, operation: &Operation) -> Result<Evaluation, Refusal> {
        let Operation::DeclareExchange {
            vhost,
            name,
            kind,
            passive,
            durable,
            auto_delete,
            internal,
            arguments,
        } = operation
        else {
            unreachable!("called for this operation only");
        };
        let name = checks::stripped(name);
        if *passive {
            checks::not_default_exchange(&name)?;
            return match self.topology.exchange(*vhost, &name) {
                Some(_) => Ok(Evaluation::Unchanged(Outcome::Done)),
                None => Err(Refusal::no_exchange(&name, self.topology.vhost_name(*vhost))),
            };
        }
        let kind = checks::exchange_kind(kind)?;
        checks::not_default_exchange(&name)?;
        let named = Named { what: "exchange", name: &name, vhost: self.topology.vhost_name(*vhost) };
        if let Some(current) = self.topology.exchange(*vhost, &name) {
            let (durable, auto_delete, internal) = (*durable, *auto_delete, *internal);
            checks::same_exchange(
                named,
                current,
                &WantedExchange { kind, durable, auto_delete, internal, arguments },
            )?;
            return Ok(Evaluation::Unchanged(Outcome::Done));
        }
        checks::not_reserved("exchange", &name)?;
        exchange_checks::exchange_arguments(named, kind, arguments)?;
        let delay_queue = match kind {
            ExchangeKind::Delayed => Some(self.delay_queue(*vhost, &name, *durable)?),
            _ => None,
        };
        self.create_exchange(ExchangeInfo {
            vhost: *vhost,
            name: name.into(),
            kind,
            durable: *durable,
            auto_delete: *auto_delete,
            internal: *internal,
            arguments: arguments.clone(),
            policy: None,
        });
        if let Some(queue) = delay_queue {
            self.create_queue(queue);
        }
        Ok(self.finish(Outcome::Done))
    }

    /// The queue where the messages of a new delayed exchange are to wait.
    fn delay_queue(&mut self, vhost: VhostId, exchange: &str, durable: bool) -> Result<QueueInfo, Refusal> {
        Ok(QueueInfo {
            id: self.place(self.placement.emptiest())?,
            vhost,
            name: delayed::queue_of(exchange).into(),
            durable,
            durable_id: durable.then(|| DurableId(self.random.u64(1..))),
            auto_delete: false,
            exclusive: None,
            arguments: Arguments::new(),
            policy: None,
        })
    }

    fn place(&mut self, shard: ShardId) -> Result<QueueId, Refusal> {
        self.placement.take(shard).ok_or_else(|| {
            Refusal::new(RefusalKind::ResourceError, format!("too many queues on shard {shard}; delete some"))
        })
    }

    fn delete_exchange(
        &mut self,
        vhost: VhostId,
        name: &str,
        if_unused: bool,
    ) -> Result<Evaluation, Refusal> {
        checks::not_default_exchange(name)?;
        let named = Named { what: "exchange", name, vhost: self.topology.vhost_name(vhost) };
        checks::deletable(named)?;
        let Some(index) = self.topology.exchange_index(vhost, name) else {
            return Ok(Evaluation::Unchanged(Outcome::Done));
        };
        if if_unused && self.topology.bindings_from_count(index) > 0 {
            return Err(checks::precondition(format!("{named} in use")));
        }
        self.remove_exchange(vhost, name);
        Ok(self.finish(Outcome::Done))
    }

    fn declare_queue(&mut self, wanted: WantedQueue, requester: Requester) -> Result<Evaluation, Refusal> {
        let WantedQueue { vhost, name, passive, durable, exclusive, auto_delete, arguments } = wanted;
        let generated = name.is_empty() && !passive;
        let name = if generated { self.generate_name(vhost) } else { name };
        let vhost_name = self.topology.vhost_name(vhost);
        let current = self.topology.queue(vhost, &name);
        let declared = |queue: &QueueInfo| {
            Evaluation::Unchanged(Outcome::QueueDeclared {
                queue: queue.id,
                name: Arc::clone(&queue.name),
                created: false,
            })
        };
        if passive {
            let queue = current.ok_or_else(|| Refusal::no_queue(&name, vhost_name))?;
            self.usable(queue, requester)?;
            return Ok(declared(queue));
        }
        if !generated {
            checks::not_reserved("queue", &name)?;
        }
        let named = Named { what: "queue", name: &name, vhost: vhost_name };
        let owner = exclusive.then_some(requester.connection);
        if let Some(queue) = current {
            if queue.exclusive != owner {
                return Err(Refusal::locked_queue(&name, vhost_name));
            }
            checks::same_queue(named, queue, durable && !exclusive, auto_delete, &arguments)?;
            return Ok(declared(queue));
        }
        let properties = Properties { durable, exclusive, auto_delete, server_named: generated };
        queue_types::checked(named, properties, &arguments)?;
        checks::queue_arguments(named, &arguments)?;
        // An exclusive queue ends with its connection: there is nothing to keep.
        let durable = durable && !exclusive;
        let shard = match owner {
            Some(connection) => connection.shard,
            None => self.placement.emptiest(),
        };
        let id = self.place(shard)?;
        let name: Arc<str> = name.into();
        let info = QueueInfo {
            id,
            vhost,
            name: Arc::clone(&name),
            durable,
            durable_id: durable.then(|| DurableId(self.random.u64(1..))),
            auto_delete,
            exclusive: owner,
            arguments,
            policy: None,
        };
        self.create_queue(info);
        Ok(self.finish(Outcome::QueueDeclared { queue: id, name, created: true }))
    }

    fn bind(
        &mut self,
        vhost: VhostId,
        spec: &BindingSpec,
        requester: Requester,
    ) -> Result<Evaluation, Refusal> {
        let spec = self.checked_binding(spec)?;
        let vhost_name = self.topology.vhost_name(vhost);
        let source = self
            .topology
            .exchange(vhost, &spec.source)
            .ok_or_else(|| Refusal::no_exchange(&spec.source, vhost_name))?;
        let queue = match spec.kind {
            DestinationKind::Queue => Some(
                self.topology
                    .queue(vhost, &spec.destination)
                    .ok_or_else(|| Refusal::no_queue(&spec.destination, vhost_name))?,
            ),
            DestinationKind::Exchange => {
                self.topology
                    .exchange(vhost, &spec.destination)
                    .ok_or_else(|| Refusal::no_exchange(&spec.destination, vhost_name))?;
                None
            }
        };
        exchange_checks::binding(source, &spec, queue.map(Arc::as_ref))?;
        if let Some(queue) = queue {
            self.usable(queue, requester)?;
        }
        if self.topology.has_binding(vhost, &spec) {
            return Ok(Evaluation::Unchanged(Outcome::Done));
        }
        self.add_binding(vhost, Arc::new(spec));
        Ok(self.finish(Outcome::Done))
    }

    fn unbind(
        &mut self,
        vhost: VhostId,
        spec: &BindingSpec,
        requester: Requester,
    ) -> Result<Evaluation, Refusal> {
        let spec = self.checked_binding(spec)?;
        if !self.topology.has_binding(vhost, &spec) {
            return Ok(Evaluation::Unchanged(Outcome::Done));
        }
        if spec.kind == DestinationKind::Queue
            && let Some(queue) = self.topology.queue(vhost, &spec.destination)
        {
            self.usable(queue, requester)?;
        }
        let spec = Arc::new(spec);
        if self.binding_is_durable(vhost, &spec) {
            self.store_writes.push(rows::remove(rows::binding_key(self.topology.vhost_name(vhost), &spec)));
        }
        self.change(Change::RemoveBinding { vhost, binding: Arc::clone(&spec) });
        self.remove_if_abandoned(vhost, &spec.source);
        Ok(self.finish(Outcome::Done))
    }

    /// A binding as it is kept: names stripped, the default exchange at neither end.
    fn checked_binding(&self, spec: &BindingSpec) -> Result<BindingSpec, Refusal> {
        let spec = BindingSpec {
            source: checks::stripped(&spec.source),
            destination: checks::stripped(&spec.destination),
            ..spec.clone()
        };
        checks::not_default_exchange(&spec.source)?;
        if spec.kind == DestinationKind::Exchange {
            checks::not_default_exchange(&spec.destination)?;
        }
        Ok(spec)
    }

    /// An exclusive queue is for its own connection.
    fn usable(&self, queue: &QueueInfo, requester: Requester) -> Result<(), Refusal> {
        match queue.exclusive {
            Some(owner) if owner != requester.connection => {
                Err(Refusal::locked_queue(&queue.name, self.topology.vhost_name(queue.vhost)))
            }
            _ => Ok(()),
        }
    }

    /// `amq.gen-` and 128 random bits, as URL-safe base64. Tried again should the name exist.
    fn generate_name(&mut self, vhost: VhostId) -> String {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        const CHARACTERS: usize = 22;
        loop {
            let mut name = String::from("amq.gen-");
            name.extend((0..CHARACTERS).map(|_| char::from(ALPHABET[self.random.usize(..ALPHABET.len())])));
            if self.topology.queue(vhost, &name).is_none() {
                return name;
            }
        }
    }

    pub(super) fn create_exchange(&mut self, mut info: ExchangeInfo) {
        info.policy = self.policies.for_exchange(self.topology.vhost_name(info.vhost), &info);
        if info.durable {
            self.store_writes.push(rows::put_exchange(self.topology.vhost_name(info.vhost), &info));
        }
        self.change(Change::CreateExchange(Arc::new(info)));
    }

    pub(super) fn create_queue(&mut self, mut info: QueueInfo) {
        info.policy = self.policies.for_queue(self.topology.vhost_name(info.vhost), &info);
        if info.durable {
            self.store_writes.push(rows::put_queue(self.topology.vhost_name(info.vhost), &info));
        }
        if let Some(connection) = info.exclusive {
            self.exclusive.entry(connection).or_default().insert(info.id);
        }
        self.change(Change::CreateQueue(Arc::new(info)));
    }

    pub(super) fn add_binding(&mut self, vhost: VhostId, spec: Arc<BindingSpec>) {
        if self.binding_is_durable(vhost, &spec) {
            self.store_writes.push(rows::put_binding(self.topology.vhost_name(vhost), &spec));
        }
        self.change(Change::AddBinding { vhost, binding: spec });
    }

    fn remove_queue(&mut self, id: QueueId) {
        let Some(queue) = self.topology.queue_by_id(id).map(Arc::clone) else { return };
        let bindings: Vec<Arc<BindingSpec>> = self.topology.bindings_to_queue(id).map(Arc::clone).collect();
        self.forget_bindings(queue.vhost, &bindings);
        if queue.durable {
            let key = rows::queue_key(self.topology.vhost_name(queue.vhost), &queue.name);
            self.store_writes.push(rows::remove(key));
        }
        if let Some(connection) = queue.exclusive
            && let Some(queues) = self.exclusive.get_mut(&connection)
        {
            queues.remove(&id);
            if queues.is_empty() {
                self.exclusive.remove(&connection);
            }
        }
        self.change(Change::RemoveQueue(id));
        self.placement.give_back(id);
        self.remove_abandoned_sources(queue.vhost, &bindings);
    }

    /// Removes an exchange, and every auto-delete exchange whose last binding led to it.
    fn remove_exchange(&mut self, vhost: VhostId, name: &str) {
        let incoming = self.remove_exchange_alone(vhost, name);
        self.remove_abandoned_sources(vhost, &incoming);
    }

    /// Removes an exchange and returns the bindings that led to it.
    fn remove_exchange_alone(&mut self, vhost: VhostId, name: &str) -> Vec<Arc<BindingSpec>> {
        let index = self.topology.exchange_index(vhost, name).expect("the caller found it");
        let info = Arc::clone(&self.topology.exchange_at(index).info);
        let outgoing: Vec<Arc<BindingSpec>> = self.topology.bindings_from(index).map(Arc::clone).collect();
        let incoming: Vec<Arc<BindingSpec>> = self.topology.bindings_to(index).map(Arc::clone).collect();
        if let Some(queue) = self.topology.exchange_at(index).delay_queue {
            self.remove_queue(queue);
        }
        self.forget_bindings(vhost, &outgoing);
        // One from the exchange to itself is among both; removing a row twice is no harm.
        self.forget_bindings(vhost, &incoming);
        if info.durable {
            self.store_writes.push(rows::remove(rows::exchange_key(self.topology.vhost_name(vhost), name)));
        }
        self.change(Change::RemoveExchange { vhost, name: Arc::clone(&info.name) });
        incoming
    }

    fn remove_if_abandoned(&mut self, vhost: VhostId, source: &str) {
        if self.is_abandoned(vhost, source) {
            self.remove_exchange(vhost, source);
        }
    }

    /// Auto-delete exchanges go with their last binding, and others with them. A worklist, because a
    /// chain of exchanges may be longer than a stack is deep.
    fn remove_abandoned_sources(&mut self, vhost: VhostId, removed: &[Arc<BindingSpec>]) {
        let mut removed: Vec<Arc<BindingSpec>> = removed.to_vec();
        while let Some(binding) = removed.pop() {
            if self.is_abandoned(vhost, &binding.source) {
                removed.extend(self.remove_exchange_alone(vhost, &binding.source));
            }
        }
    }

    fn is_abandoned(&self, vhost: VhostId, exchange: &str) -> bool {
        self.topology.exchange_index(vhost, exchange).is_some_and(|index| {
            self.topology.exchange_at(index).info.auto_delete && self.topology.bindings_from_count(index) == 0
        })
    }

    /// Removes the rows of bindings that go with one of their ends.
    fn forget_bindings(&mut self, vhost: VhostId, bindings: &[Arc<BindingSpec>]) {
        for binding in bindings {
            if self.binding_is_durable(vhost, binding) {
                let key = rows::binding_key(self.topology.vhost_name(vhost), binding);
                self.store_writes.push(rows::remove(key));
            }
        }
    }

    /// A binding outlives a restart if both its ends do.
    fn binding_is_durable(&self, vhost: VhostId, binding: &BindingSpec) -> bool {
        let exchange =
            |name: &str| self.topology.exchange(vhost, name).is_some_and(|exchange| exchange.durable);
        exchange(&binding.source)
            && match binding.kind {
                DestinationKind::Queue => {
                    self.topology.queue(vhost, &binding.destination).is_some_and(|queue| queue.durable)
                }
                DestinationKind::Exchange => exchange(&binding.destination),
            }
    }

    pub(super) fn change(&mut self, change: Change) {
        self.topology.apply(&change);
        self.changes.push(change);
    }

    /// Ends an evaluation that has something to store, whether or not replicas hear of it.
    pub(super) fn finish_stored(&mut self, outcome: Outcome) -> Evaluation {
        let changes = std::mem::take(&mut self.changes);
        Evaluation::Changed { version: self.topology.count_version(), changes, outcome }
    }

    /// Ends an evaluation: the changes it made, if any, are the next version.
    pub(super) fn finish(&mut self, outcome: Outcome) -> Evaluation {
        match self.changes.is_empty() {
            true => Evaluation::Unchanged(outcome),
            false => Evaluation::Changed {
                version: self.topology.count_version(),
                changes: std::mem::take(&mut self.changes),
                outcome,
            },
        }
    }
}
