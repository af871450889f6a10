//! Random histories against models: routes against a walk over the plain lists of bindings, replicas
//! and restored topologies against the writer's own.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::stable_hash::StableHash;
use super::*;
use crate::shard::HeaderSource;
use crate::{Arguments, ConnectionId, QueueId, ShardId, Value, VhostId};

const VHOST: VhostId = VhostId(0);
const QUEUES: [&str; 4] = ["q0", "q1", "q2", "q3"];
const EXCHANGES: [&str; 5] = ["x0", "x1", "x2", "x3", "amq.topic"];
const KEYS: [&str; 7] = ["", "a", "a.b", "a.#", "*.b", "1", "4"];

#[derive(Debug)]
struct Headers(Arguments);

impl HeaderSource for Headers {
    fn headers(&self) -> Arguments {
        self.0.clone()
    }
}

fn one_of(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(names).prop_map(str::to_owned)
}

fn headers() -> impl Strategy<Value = Arguments> {
    prop::collection::btree_map(one_of(&["h", "i"]), (0..2).prop_map(Value::I32), 0..2)
}

fn binding() -> impl Strategy<Value = BindingSpec> {
    let destination = prop_oneof![
        3 => one_of(&QUEUES).prop_map(|name| (name, DestinationKind::Queue)),
        2 => one_of(&EXCHANGES).prop_map(|name| (name, DestinationKind::Exchange)),
    ];
    (one_of(&EXCHANGES), destination, one_of(&KEYS), headers()).prop_map(
        |(source, (destination, kind), routing_key, arguments)| BindingSpec {
            source,
            destination,
            kind,
            routing_key,
            arguments,
        },
    )
}

fn declare_exchange() -> impl Strategy<Value = Operation> {
    let kind = one_of(&[
        "direct",
        "fanout",
        "topic",
        "headers",
        "x-consistent-hash",
        "x-modulus-hash",
        "x-recent-history",
    ]);
    let flags = (any::<bool>(), prop::bool::weighted(0.3), prop::bool::weighted(0.1));
    let alternate = prop::option::of(one_of(&EXCHANGES));
    (one_of(&EXCHANGES), kind, flags, alternate).prop_map(
        |(name, kind, (durable, auto_delete, internal), alternate)| Operation::DeclareExchange {
            vhost: VHOST,
            name,
            kind,
            passive: false,
            durable,
            auto_delete,
            internal,
            arguments: alternate
                .map(|name| ("alternate-exchange".to_owned(), Value::LongString(name.into())))
                .into_iter()
                .collect(),
        },
    )
}

fn declare_queue() -> impl Strategy<Value = Operation> {
    (one_of(&QUEUES), any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(name, durable, exclusive)| {
        Operation::DeclareQueue {
            vhost: VHOST,
            name,
            passive: false,
            durable,
            exclusive,
            auto_delete: false,
            arguments: [("x-expires".to_owned(), Value::I32(1000))].into(),
        }
    })
}

fn of() -> impl Strategy<Value = PolicyOf> {
    prop::sample::select(vec![PolicyOf::User, PolicyOf::Operator])
}

fn set_policy() -> impl Strategy<Value = Operation> {
    let apply_to = prop::sample::select(vec![ApplyTo::All, ApplyTo::Queues, ApplyTo::Exchanges]);
    let pattern = one_of(&["^q", "0$", "^x", "[12]", "topic"]);
    (one_of(&["p0", "p1"]), of(), pattern, apply_to, 0..2i64, 1..9i64).prop_map(
        |(name, of, pattern, apply_to, priority, limit)| {
            let mut definition: Arguments = [("max-length".to_owned(), Value::I64(limit))].into();
            if of == PolicyOf::User && limit % 2 == 0 {
                let alternate = Value::LongString(EXCHANGES[limit as usize % 5].into());
                definition.insert("alternate-exchange".to_owned(), alternate);
            }
            let policy = Policy { name, pattern, apply_to, priority, definition };
            Operation::SetPolicy { vhost: VHOST, of, policy }
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        3 => declare_exchange(),
        3 => declare_queue(),
        8 => binding().prop_map(|binding| Operation::Bind { vhost: VHOST, binding }),
        2 => binding().prop_map(|binding| Operation::Unbind { vhost: VHOST, binding }),
        1 => one_of(&EXCHANGES)
            .prop_map(|name| Operation::DeleteExchange { vhost: VHOST, name, if_unused: false }),
        1 => one_of(&QUEUES).prop_map(|name| Operation::DeleteQueue {
            vhost: VHOST,
            name,
            if_unused: false,
            if_empty: false,
        }),
        1 => set_policy(),
        1 => (one_of(&["p0", "p1"]), of())
            .prop_map(|(name, of)| Operation::ClearPolicy { vhost: VHOST, of, name }),
        1 => Just(Operation::ReleaseConnection { connection: requester().connection }),
    ]
}

fn requester() -> Requester {
    Requester { connection: ConnectionId { shard: ShardId(1), slot: 0, generation: 0 } }
}

/// A topology's contents in an order of their own, with the queues' ids or without.
#[derive(Debug, PartialEq)]
struct Contents {
    vhosts: Vec<String>,
    exchanges: BTreeMap<(VhostId, String), ExchangeInfo>,
    queues: BTreeMap<(VhostId, String), QueueInfo>,
    bindings: BTreeMap<Vec<u8>, (VhostId, BindingSpec)>,
}

fn contents(topology: &Topology) -> Contents {
    let exchanges = topology.exchanges().map(|x| ((x.vhost, x.name.to_string()), ExchangeInfo::clone(x)));
    let queues = topology.queues().map(|q| ((q.vhost, q.name.to_string()), QueueInfo::clone(q)));
    let bindings = topology.bindings().map(|(vhost, spec)| {
        (rows::binding_key(topology.vhost_name(vhost), spec), (vhost, BindingSpec::clone(spec)))
    });
    Contents {
        vhosts: topology.vhosts().map(|(_, name)| name.to_string()).collect(),
        exchanges: exchanges.collect(),
        queues: queues.collect(),
        bindings: bindings.collect(),
    }
}

/// What of it outlives a restart, where queues may get other ids.
fn durable_part(mut contents: Contents) -> Contents {
    contents.exchanges.retain(|_, exchange| exchange.durable);
    contents.queues.retain(|_, queue| queue.durable);
    for queue in contents.queues.values_mut() {
        queue.id = QueueId::new(ShardId(0), 0, 0);
    }
    let Contents { exchanges, queues, bindings, .. } = &mut contents;
    bindings.retain(|_, (vhost, spec)| {
        let destination = (*vhost, spec.destination.clone());
        exchanges.contains_key(&(*vhost, spec.source.clone()))
            && match spec.kind {
                DestinationKind::Queue => queues.contains_key(&destination),
                DestinationKind::Exchange => exchanges.contains_key(&destination),
            }
    });
    contents
}

/// A writer with a replica and a store behind it.
struct World {
    writer: Writer,
    replica: Topology,
    store: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl World {
    fn new() -> World {
        let (writer, changes) = Writer::restore(3, [], "/", fastrand::Rng::with_seed(1)).unwrap();
        let mut replica = Topology::new();
        replica.apply_all(1, &changes);
        World { writer, replica, store: BTreeMap::new() }
    }

    fn run(&mut self, operation: &Operation) {
        let mut evaluation = self.writer.evaluate(operation, requester());
        if let Evaluation::DropQueues { queues, .. } = &evaluation {
            evaluation = self.writer.queues_dropped(queues, 0);
        }
        if let Evaluation::Changed { version, changes, .. } = &evaluation {
            self.replica.apply_all(*version, changes);
        }
        for StoreWrite { key, value } in self.writer.take_store_writes() {
            match value {
                Some(value) => self.store.insert(key, value),
                None => self.store.remove(&key),
            };
        }
    }

    fn grown(operations: &[Operation]) -> World {
        let mut world = World::new();
        for operation in operations {
            world.run(operation);
        }
        world
    }
}

fn topic_fits(pattern: &[&str], key: &[&str]) -> bool {
    match pattern {
        [] => key.is_empty(),
        ["#", rest @ ..] => (0..=key.len()).any(|skipped| topic_fits(rest, &key[skipped..])),
        [word, rest @ ..] => {
            !key.is_empty() && (*word == "*" || *word == key[0]) && topic_fits(rest, &key[1..])
        }
    }
}

fn words(key: &str) -> Vec<&str> {
    if key.is_empty() { Vec::new() } else { key.split('.').collect() }
}

/// Where a message goes, by the definition.
fn walk(topology: &Topology, first: &str, keys: &[String], headers: &Arguments) -> BTreeSet<QueueId> {
    let (mut queues, mut seen, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![first.to_owned()]);
    while let Some(name) = open.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let Some(exchange) = topology.exchange(VHOST, &name) else { continue };
        let bindings = topology.bindings().filter(|(_, binding)| *binding.source == name);
        let bindings: Vec<&BindingSpec> = bindings.map(|(_, binding)| &**binding).collect();
        let fitting = fitting(exchange.kind, bindings, keys, headers);
        for binding in &fitting {
            match binding.kind {
                DestinationKind::Queue => {
                    queues.insert(topology.queue(VHOST, &binding.destination).unwrap().id);
                }
                DestinationKind::Exchange => open.push(binding.destination.clone()),
            }
        }
        if fitting.is_empty() {
            open.extend(exchange.alternate().map(str::to_owned));
        }
    }
    queues
}

/// The bindings of one exchange that get a message.
fn fitting<'a>(
    kind: ExchangeKind,
    mut bindings: Vec<&'a BindingSpec>,
    keys: &[String],
    headers: &Arguments,
) -> Vec<&'a BindingSpec> {
    let hash = || {
        let hash = StableHash::new().bytes(keys[0].as_bytes());
        keys[1..].iter().fold(hash, |hash, key| hash.part(key.as_bytes())).finish()
    };
    let fits = |binding: &BindingSpec| match kind {
        ExchangeKind::Direct => keys.contains(&binding.routing_key),
        ExchangeKind::Topic => keys.iter().any(|key| topic_fits(&words(&binding.routing_key), &words(key))),
        ExchangeKind::Headers => {
            binding.arguments.iter().all(|(name, value)| headers.get(name) == Some(value))
        }
        _ => true,
    };
    match kind {
        ExchangeKind::ModulusHash if !bindings.is_empty() => {
            bindings.sort_by_key(|binding| rows::binding_key("", binding));
            vec![bindings[(hash() % bindings.len() as u64) as usize]]
        }
        ExchangeKind::ConsistentHash => {
            let score = |binding: &BindingSpec| {
                let kind: &[u8] = if binding.kind == DestinationKind::Queue { b"q" } else { b"e" };
                let name = StableHash::new().bytes(kind).bytes(binding.destination.as_bytes()).finish();
                let u = ((stable_hash::mix(hash() ^ name) >> 12) as f64 + 0.5) / 2_f64.powi(52);
                u.ln() / binding.routing_key.parse::<f64>().unwrap()
            };
            bindings.into_iter().max_by(|a, b| score(a).total_cmp(&score(b))).into_iter().collect()
        }
        _ => bindings.into_iter().filter(|binding| fits(binding)).collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn routes_agree_with_a_walk_over_all_bindings(
        operations in prop::collection::vec(operation(), 0..120),
        messages in prop::collection::vec(
            (one_of(&EXCHANGES), prop::collection::vec(one_of(&KEYS), 1..3), headers()), 1..20,
        ),
    ) {
        let world = World::grown(&operations);
        let mut scratch = RouteScratch::default();
        for (exchange, keys, headers) in messages {
            let source = Headers(headers.clone());
            let further_keys: Vec<&[u8]> = keys[1..].iter().map(|key| key.as_bytes()).collect();
            let (routing_key, further_keys) = (keys[0].as_bytes(), &*further_keys);
            let message = RoutingData { routing_key, further_keys, headers: &source };
            let route = world.replica.route(VHOST, &exchange, &message, &mut scratch);
            match world.replica.exchange(VHOST, &exchange) {
                Some(info) if !info.internal => {
                    prop_assert!(route.is_ok());
                    let expected: Vec<QueueId> =
                        walk(&world.replica, &exchange, &keys, &headers).into_iter().collect();
                    prop_assert_eq!(&scratch.queues, &expected, "each once, in the order of ids");
                }
                _ => prop_assert!(route.is_err()),
            }
        }
    }

    #[test]
    fn a_replica_is_what_the_writer_has(operations in prop::collection::vec(operation(), 0..120)) {
        let world = World::grown(&operations);
        prop_assert_eq!(world.replica.version(), world.writer.version());
        prop_assert_eq!(contents(&world.replica), contents(world.writer.topology()));
    }

    #[test]
    fn the_store_holds_the_durable_part_and_nothing_else(
        operations in prop::collection::vec(operation(), 0..120),
    ) {
        let world = World::grown(&operations);
        let rows: Vec<_> = world.store.clone().into_iter().rev().collect();
        let (restored, changes) = Writer::restore(2, rows, "/", fastrand::Rng::with_seed(2)).unwrap();
        let expected = durable_part(contents(world.writer.topology()));
        prop_assert_eq!(restored.version(), 1);
        let mut replica = Topology::new();
        replica.apply_all(1, &changes);
        prop_assert_eq!(contents(&replica), contents(restored.topology()));
        let found = contents(restored.topology());
        let policies = world.writer.policies().map(|(vhost, of, policy)| (vhost.to_owned(), of, policy.clone()));
        let policies: Vec<_> = policies.collect();
        let restored: Vec<_> =
            restored.policies().map(|(vhost, of, policy)| (vhost.to_owned(), of, policy.clone())).collect();
        prop_assert_eq!(&restored, &policies);
        let stored = found.exchanges.len() - 7 + found.queues.len() + found.bindings.len() + policies.len();
        prop_assert_eq!(stored, world.store.len(), "no row is left behind");
        prop_assert!(found.queues.values().all(|queue| queue.durable));
        prop_assert_eq!(durable_part(found), expected);
    }

    #[test]
    fn a_topology_that_lost_everything_has_kept_nothing(operations in prop::collection::vec(operation(), 0..120)) {
        let mut world = World::grown(&operations);
        for name in QUEUES {
            let (vhost, name) = (VHOST, name.to_owned());
            world.run(&Operation::DeleteQueue { vhost, name, if_unused: false, if_empty: false });
        }
        for (name, of) in ["p0", "p1"].into_iter().flat_map(|name| {
            [PolicyOf::User, PolicyOf::Operator].map(|of| (name, of))
        }) {
            world.run(&Operation::ClearPolicy { vhost: VHOST, of, name: name.to_owned() });
        }
        for name in EXCHANGES {
            world.run(&Operation::DeleteExchange { vhost: VHOST, name: name.to_owned(), if_unused: false });
        }
        // What is left are loops of amq.topic onto itself, which nobody may delete.
        for (_, binding) in world.replica.bindings() {
            prop_assert_eq!((&*binding.source, &*binding.destination), ("amq.topic", "amq.topic"));
        }
        prop_assert_eq!(world.store.len(), world.replica.bindings().count());
        prop_assert_eq!(world.replica.queues().count(), 0);
        prop_assert_eq!(world.replica.exchanges().count(), 7);
    }
}

#[test]
fn the_same_history_gives_the_same_changes() {
    let history = || {
        let mut world = World::new();
        let mut evaluations = Vec::new();
        for n in 0..200 {
            let operation = Operation::DeclareQueue {
                vhost: VHOST,
                name: String::new(),
                passive: false,
                durable: n % 2 == 0,
                exclusive: n % 3 == 0,
                auto_delete: false,
                arguments: Arguments::new(),
            };
            evaluations.push(world.writer.evaluate(&operation, requester()));
        }
        evaluations.push(
            world
                .writer
                .evaluate(&Operation::ReleaseConnection { connection: requester().connection }, requester()),
        );
        evaluations
    };
    assert_eq!(history(), history());
}
