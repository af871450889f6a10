//! From an exchange and a routing key to the queues: the walk over exchanges, and the table that
//! each exchange keeps of its bindings.
//!
//! Runs on the publisher's shard, for every message whose route is not cached. It allocates nothing
//! once the caller's [`RouteScratch`] has grown to the topology's size; only a headers exchange does,
//! for the parsed headers.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use smallvec::SmallVec;

use super::bucket::{BindingIndex, Bucket, Destination, Entry, ExchangeIndex};
use super::delayed::delay_ms;
use super::headers_match::HeadersTable;
use super::replica::Topology;
use super::spread::{ConsistentHashTable, ModulusTable};
use super::topic_trie::{TopicScratch, TopicTrie};
use super::{BindingSpec, ExchangeInfo, ExchangeKind, ReplyAddress, exchange_of_delay_queue};
use crate::shard::HeaderSource;
use crate::{Arguments, QueueId, Refusal, RefusalKind, VhostId};

/// Whether a route depends on exchange and routing key alone, so that it may be used again until the
/// topology's version changes. It does not if a headers exchange was asked, or one that draws lots, or if
/// something beside queues wants to have the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cacheable(pub bool);

/// The result of a route, and what finding it needs. Kept by the caller from one route to the next.
#[derive(Debug, Default)]
pub struct RouteScratch {
    /// Every destination queue once, in the order of their ids: those of one owner stand together.
    pub queues: Vec<QueueId>,
    /// Exchanges on the way that keep a history, each once.
    pub histories: SmallVec<[ExchangeIndex; 1]>,
    /// Channels that get the message as a direct reply.
    pub replies: SmallVec<[ReplyAddress; 1]>,
    /// Queues of delayed exchanges where the message waits before it goes on, and how long, in milliseconds.
    pub delayed: SmallVec<[QueueId; 1]>,
    pub delay_ms: u64,
    /// Exchanges met, in the order they are asked.
    exchanges: Vec<ExchangeIndex>,
    /// By exchange: the route that last met it.
    met: Vec<u64>,
    /// Counts routes.
    route: u64,
    topic: TopicScratch,
    headers: Option<Arguments>,
    /// Draws the lots of x-random and x-local-random.
    random: fastrand::Rng,
}

impl RouteScratch {
    /// An empty one that draws its lots from this seed.
    pub fn with_seed(seed: u64) -> RouteScratch {
        RouteScratch { random: fastrand::Rng::with_seed(seed), ..RouteScratch::default() }
    }

    /// Nodes of topic exchanges that were looked at by all routes so far.
    pub fn topic_nodes_visited(&self) -> u64 {
        self.topic.nodes_visited
    }

    fn begin(&mut self) {
        self.queues.clear();
        self.histories.clear();
        self.replies.clear();
        self.delayed.clear();
        self.exchanges.clear();
        self.headers = None;
        self.route += 1;
    }

    /// Lets an exchange be asked in its turn, unless it was met before.
    fn meet(&mut self, exchange: ExchangeIndex) {
        let position = exchange.0 as usize;
        if self.met.len() <= position {
            self.met.resize(position + 1, 0);
        }
        if self.met[position] != self.route {
            self.met[position] = self.route;
            self.exchanges.push(exchange);
        }
    }
}

/// A message, as far as routing looks at it.
#[derive(Clone, Copy, Debug)]
pub struct RoutingData<'a> {
    /// Routing key.
    pub routing_key: &'a [u8],
    /// More of them, each as good as the first: the sender's choice (CC, BCC).
    pub further_keys: &'a [&'a [u8]],
    /// Headers and properties; read only if an exchange on the way asks.
    pub headers: &'a dyn HeaderSource,
}

impl<'a> RoutingData<'a> {
    fn keys(&self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(self.routing_key).chain(self.further_keys.iter().copied())
    }
}

impl Topology {
    /// Finds the queues that a message goes to, and leaves them in `scratch.queues`.
    ///
    /// Follows bindings between exchanges, cycles included, and the alternate exchange of every
    /// exchange on the way that has no binding for the message. The default exchange works only as the
    /// first: as an alternate exchange it leads nowhere, as in RabbitMQ.
    ///
    /// # Errors
    /// The exchange does not exist, or is internal.
    pub fn route(
        &self,
        vhost: VhostId,
        exchange: &str,
        message: &RoutingData<'_>,
        scratch: &mut RouteScratch,
    ) -> Result<Cacheable, Refusal> {
        let first = self
            .exchange_index(vhost, exchange)
            .ok_or_else(|| Refusal::no_exchange(exchange, self.vhost_name(vhost)))?;
        if self.exchange_at(first).info.internal {
            return Err(Refusal::new(
                RefusalKind::AccessRefused,
                format!(
                    "cannot publish to internal exchange '{exchange}' in vhost '{}'",
                    self.vhost_name(vhost)
                ),
            ));
        }
        Ok(self.walk(vhost, first, message, scratch))
    }

    /// As [`Self::route`], for what the broker itself publishes: internal exchanges take it too, and one
    /// that does not exist leads nowhere.
    pub fn route_inside(
        &self,
        vhost: VhostId,
        exchange: &str,
        message: &RoutingData<'_>,
        scratch: &mut RouteScratch,
    ) {
        match self.exchange_index(vhost, exchange) {
            Some(first) => {
                self.walk(vhost, first, message, scratch);
            }
            None => scratch.begin(),
        }
    }

    fn walk(
        &self,
        vhost: VhostId,
        first: ExchangeIndex,
        message: &RoutingData<'_>,
        scratch: &mut RouteScratch,
    ) -> Cacheable {
        scratch.begin();
        // What is cached is found by the routing key alone.
        let mut cacheable = message.further_keys.is_empty();
        scratch.meet(first);
        let mut asked = 0;
        while let Some(&exchange) = scratch.exchanges.get(asked) {
            asked += 1;
            cacheable &= self.ask(vhost, exchange, message, scratch);
        }
        if scratch.queues.len() > 1 {
            scratch.queues.sort_unstable();
            scratch.queues.dedup();
        }
        Cacheable(cacheable)
    }

    /// Adds one exchange's destinations; false if they depend on more than the routing key.
    fn ask(
        &self,
        vhost: VhostId,
        index: ExchangeIndex,
        message: &RoutingData<'_>,
        scratch: &mut RouteScratch,
    ) -> bool {
        let exchange = self.exchange_at(index);
        if exchange.info.name.is_empty() {
            for key in message.keys() {
                match std::str::from_utf8(key).ok().and_then(|name| self.queue(vhost, name)) {
                    Some(queue) if exchange_of_delay_queue(&queue.name).is_some() => {}
                    Some(queue) => scratch.queues.push(queue.id),
                    None => scratch.replies.extend(ReplyAddress::from_name(key)),
                }
            }
            return scratch.replies.is_empty();
        }
        if let Some(queue) = exchange.delay_queue {
            let headers = scratch.headers.get_or_insert_with(|| message.headers.headers());
            if let Some(delay_ms) = delay_ms(headers) {
                scratch.delay_ms = delay_ms;
                scratch.delayed.push(queue);
                return false;
            }
        }
        let found = exchange.table.destinations(message, scratch);
        if exchange.info.kind == ExchangeKind::RecentHistory {
            scratch.histories.push(index);
        }
        if !found
            && let Some(alternate) = exchange.info.alternate().filter(|name| !name.is_empty())
            && let Some(alternate) = self.exchange_index(vhost, alternate)
        {
            scratch.meet(alternate);
        }
        exchange.delay_queue.is_none() && exchange.table.is_cacheable()
    }
}

/// An exchange's bindings, arranged for its type.
#[derive(Debug)]
pub(super) enum RoutingTable {
    /// By routing key. Clients choose the keys: hence the keyed hash.
    Direct(HashMap<Box<[u8]>, Bucket>),
    Fanout(Bucket),
    Topic(TopicTrie),
    Headers(HeadersTable),
    ConsistentHash(ConsistentHashTable),
    Modulus(ModulusTable),
    /// One of them, by lot.
    Random(Bucket),
    /// All of them; the message is remembered, too.
    History(Bucket),
}

impl RoutingTable {
    pub fn new(exchange: &ExchangeInfo) -> RoutingTable {
        match exchange.routes_as() {
            ExchangeKind::Direct | ExchangeKind::Delayed => RoutingTable::Direct(HashMap::new()),
            ExchangeKind::Fanout => RoutingTable::Fanout(Bucket::default()),
            ExchangeKind::Topic => RoutingTable::Topic(TopicTrie::new()),
            ExchangeKind::Headers => RoutingTable::Headers(HeadersTable::default()),
            ExchangeKind::ConsistentHash => RoutingTable::ConsistentHash(ConsistentHashTable::new(exchange)),
            ExchangeKind::ModulusHash => RoutingTable::Modulus(ModulusTable::default()),
            // The broker is one node: every queue is local.
            ExchangeKind::Random | ExchangeKind::LocalRandom => RoutingTable::Random(Bucket::default()),
            ExchangeKind::RecentHistory => RoutingTable::History(Bucket::default()),
        }
    }

    /// Adds a binding and returns its position among those that match alike.
    pub fn add(&mut self, binding: &BindingSpec, entry: Entry) -> u32 {
        let key = binding.routing_key.as_bytes();
        match self {
            RoutingTable::Direct(keys) => match keys.get_mut(key) {
                Some(bucket) => bucket.add(entry),
                None => keys.entry(key.into()).or_default().add(entry),
            },
            RoutingTable::Fanout(bucket) | RoutingTable::Random(bucket) | RoutingTable::History(bucket) => {
                bucket.add(entry)
            }
            RoutingTable::Topic(trie) => trie.add(key, entry),
            RoutingTable::Headers(table) => table.add(&binding.arguments, entry),
            RoutingTable::ConsistentHash(table) => table.add(binding, entry),
            RoutingTable::Modulus(table) => {
                table.add(binding, entry);
                // Found by its identity: the positions of others change as it comes and goes.
                0
            }
        }
    }

    /// Removes a binding by its position; returns the binding that has that position now, if any.
    pub fn remove(&mut self, binding: &BindingSpec, position: u32) -> Option<BindingIndex> {
        let key = binding.routing_key.as_bytes();
        match self {
            RoutingTable::Direct(keys) => {
                let bucket = keys.get_mut(key).expect("a binding stands under its routing key");
                let moved = bucket.remove(position);
                if bucket.is_empty() {
                    keys.remove(key);
                }
                moved
            }
            RoutingTable::Fanout(bucket) | RoutingTable::Random(bucket) | RoutingTable::History(bucket) => {
                bucket.remove(position)
            }
            RoutingTable::Topic(trie) => trie.remove(key, position),
            RoutingTable::Headers(table) => table.remove(position),
            RoutingTable::ConsistentHash(table) => table.remove(position),
            RoutingTable::Modulus(table) => {
                table.remove(binding);
                None
            }
        }
    }

    /// Another message with the same routing key goes the same way.
    fn is_cacheable(&self) -> bool {
        match self {
            RoutingTable::Direct(_)
            | RoutingTable::Fanout(_)
            | RoutingTable::Topic(_)
            | RoutingTable::Modulus(_) => true,
            RoutingTable::Headers(table) => table.is_empty(),
            RoutingTable::ConsistentHash(table) => table.is_cacheable(),
            RoutingTable::Random(bucket) => bucket.entries().len() < 2,
            RoutingTable::History(_) => false,
        }
    }

    /// Puts the destinations into the scratch; false if there is none.
    fn destinations(&self, message: &RoutingData<'_>, scratch: &mut RouteScratch) -> bool {
        let mut found = false;
        match self {
            RoutingTable::Direct(keys) => {
                for key in message.keys() {
                    if let Some(bucket) = keys.get(key) {
                        found = true;
                        take(bucket, scratch);
                    }
                }
            }
            RoutingTable::Fanout(bucket) | RoutingTable::History(bucket) => {
                found = !bucket.is_empty();
                take(bucket, scratch);
            }
            RoutingTable::Topic(trie) => {
                // Taken out for the walk, so that the walk can fill the rest of the scratch.
                let mut topic = std::mem::take(&mut scratch.topic);
                for key in message.keys() {
                    trie.matches(key, &mut topic, |bucket| {
                        found = true;
                        take(bucket, scratch);
                    });
                }
                scratch.topic = topic;
            }
            RoutingTable::Headers(table) if !table.is_empty() => {
                let headers = scratch.headers.take().unwrap_or_else(|| message.headers.headers());
                table.matches(&headers, |entry| {
                    found = true;
                    take_one(entry, scratch);
                });
                scratch.headers = Some(headers);
            }
            RoutingTable::Headers(_) => {}
            RoutingTable::ConsistentHash(table) => {
                let chosen = table.choose(message, &mut scratch.headers);
                found = chosen.is_some();
                chosen.into_iter().for_each(|entry| take_one(entry, scratch));
            }
            RoutingTable::Modulus(table) => {
                let chosen = table.choose(message);
                found = chosen.is_some();
                chosen.into_iter().for_each(|entry| take_one(entry, scratch));
            }
            RoutingTable::Random(bucket) => {
                let chosen = scratch.random.choice(bucket.entries());
                found = chosen.is_some();
                chosen.into_iter().for_each(|entry| take_one(entry, scratch));
            }
        }
        found
    }
}

fn take(bucket: &Bucket, scratch: &mut RouteScratch) {
    for entry in bucket.entries() {
        take_one(entry, scratch);
    }
}

fn take_one(entry: &Entry, scratch: &mut RouteScratch) {
    match entry.destination {
        Destination::Queue(queue) => scratch.queues.push(queue),
        Destination::Exchange(exchange) => scratch.meet(exchange),
    }
}
