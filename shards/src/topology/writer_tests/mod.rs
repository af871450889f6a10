//! What clients rely on when they declare, bind, delete and publish, one behaviour per test. Here: the
//! broker under test and the requests it is given.

mod bindings;
mod declarations;
mod types;

use super::*;
use crate::shard::NoHeaders;
use crate::{Arguments, ConnectionId, QueueId, RefusalKind, ShardId, Value, VhostId};

const VHOST: VhostId = VhostId(0);

/// A writer, and the requests of two connections on two shards.
struct Broker {
    writer: Writer,
}

fn connection(shard: u16) -> ConnectionId {
    ConnectionId { shard: ShardId(shard), slot: 3, generation: 0 }
}

fn requester(shard: u16) -> Requester {
    Requester { connection: connection(shard) }
}

fn arguments(fields: &[(&str, Value)]) -> Arguments {
    fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn text(text: &str) -> Value {
    Value::LongString(text.into())
}

fn exchange(name: &str, kind: &str) -> Operation {
    Operation::DeclareExchange {
        vhost: VHOST,
        name: name.into(),
        kind: kind.into(),
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Arguments::new(),
    }
}

fn auto_delete_exchange(name: &str) -> Operation {
    let mut operation = exchange(name, "fanout");
    if let Operation::DeclareExchange { auto_delete, .. } = &mut operation {
        *auto_delete = true;
    }
    operation
}

fn exchange_with(name: &str, given: &[(&str, Value)]) -> Operation {
    let mut operation = exchange(name, "direct");
    if let Operation::DeclareExchange { arguments: field, .. } = &mut operation {
        *field = arguments(given);
    }
    operation
}

fn queue_with(name: &str, given: &[(&str, Value)]) -> Operation {
    Operation::DeclareQueue {
        vhost: VHOST,
        name: name.into(),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: arguments(given),
    }
}

fn queue(name: &str) -> Operation {
    queue_with(name, &[])
}

fn exclusive_queue(name: &str) -> Operation {
    let mut operation = queue(name);
    if let Operation::DeclareQueue { exclusive, .. } = &mut operation {
        *exclusive = true;
    }
    operation
}

fn passive(mut operation: Operation) -> Operation {
    match &mut operation {
        Operation::DeclareExchange { passive, .. } | Operation::DeclareQueue { passive, .. } => {
            *passive = true
        }
        _ => panic!("only declares are passive"),
    }
    operation
}

fn spec(source: &str, destination: &str, kind: DestinationKind, key: &str) -> BindingSpec {
    let arguments = Arguments::new();
    BindingSpec {
        source: source.into(),
        destination: destination.into(),
        kind,
        routing_key: key.into(),
        arguments,
    }
}

fn bind(source: &str, queue: &str, key: &str) -> Operation {
    Operation::Bind { vhost: VHOST, binding: spec(source, queue, DestinationKind::Queue, key) }
}

fn bind_exchange(source: &str, destination: &str, key: &str) -> Operation {
    Operation::Bind { vhost: VHOST, binding: spec(source, destination, DestinationKind::Exchange, key) }
}

fn unbind(source: &str, queue: &str, key: &str) -> Operation {
    Operation::Unbind { vhost: VHOST, binding: spec(source, queue, DestinationKind::Queue, key) }
}

fn delete_queue(name: &str) -> Operation {
    Operation::DeleteQueue { vhost: VHOST, name: name.into(), if_unused: false, if_empty: false }
}

fn delete_exchange(name: &str, if_unused: bool) -> Operation {
    Operation::DeleteExchange { vhost: VHOST, name: name.into(), if_unused }
}

impl Broker {
    fn new() -> Broker {
        let (writer, _) = Writer::restore(2, [], "/", fastrand::Rng::with_seed(7)).unwrap();
        Broker { writer }
    }

    fn ask(&mut self, operation: &Operation) -> Evaluation {
        self.writer.evaluate(operation, requester(0))
    }

    /// Expects a yes; deletions go through both halves.
    fn run(&mut self, operation: &Operation) -> Outcome {
        let mut evaluation = self.ask(operation);
        if let Evaluation::DropQueues { queues, .. } = &evaluation {
            evaluation = self.writer.queues_dropped(queues, 0);
        }
        match evaluation {
            Evaluation::Changed { outcome, .. } | Evaluation::Unchanged(outcome) => outcome,
            other => panic!("{operation:?} gave {other:?}"),
        }
    }

    fn refused_by(&mut self, shard: u16, operation: &Operation) -> (RefusalKind, String) {
        match self.writer.evaluate(operation, requester(shard)) {
            Evaluation::Refused(refusal) => (refusal.kind, refusal.text),
            other => panic!("{operation:?} gave {other:?}"),
        }
    }

    fn refused(&mut self, operation: &Operation) -> (RefusalKind, String) {
        self.refused_by(0, operation)
    }

    fn queue_id(&self, name: &str) -> QueueId {
        self.writer.topology().queue(VHOST, name).unwrap().id
    }

    fn has_exchange(&self, name: &str) -> bool {
        self.writer.topology().exchange(VHOST, name).is_some()
    }

    fn route(&self, exchange: &str, key: &str) -> Result<Vec<String>, String> {
        let mut scratch = RouteScratch::default();
        let topology = self.writer.topology();
        let message = RoutingData { routing_key: key.as_bytes(), further_keys: &[], headers: &NoHeaders };
        topology.route(VHOST, exchange, &message, &mut scratch).map_err(|refusal| refusal.text)?;
        let mut names: Vec<String> =
            scratch.queues.iter().map(|&id| topology.queue_by_id(id).unwrap().name.to_string()).collect();
        names.sort();
        Ok(names)
    }
}

fn precondition(text: &str) -> (RefusalKind, String) {
    (RefusalKind::PreconditionFailed, text.to_owned())
}

fn access(text: &str) -> (RefusalKind, String) {
    (RefusalKind::AccessRefused, text.to_owned())
}

fn missing(text: &str) -> (RefusalKind, String) {
    (RefusalKind::NotFound, text.to_owned())
}
