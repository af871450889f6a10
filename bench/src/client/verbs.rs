//! The calls that workloads make, with only the choices that they have.

use amq_protocol::protocol::{AMQPClass, basic, confirm, exchange, queue};
use amq_protocol::types::{AMQPValue, FieldTable};

use super::Client;
use crate::error::BenchError;
use crate::wire::encode::CHANNEL;

/// How a queue is declared.
#[derive(Clone, Debug, Default)]
pub struct QueueKind {
    /// Survives a restart.
    pub durable: bool,
    /// Only for its connection, and gone with it.
    pub exclusive: bool,
    /// `x-...`.
    pub arguments: FieldTable,
}

/// `KEY=VALUE` of an argument: whole numbers and `true` or `false` by type, everything else as a string.
///
/// # Errors
/// When there is no `=`.
pub fn parse_argument(text: &str) -> Result<(String, AMQPValue), String> {
    let (key, value) = text.split_once('=').ok_or("the form is KEY=VALUE")?;
    if key.is_empty() || key.len() > 255 {
        return Err("a key has 1 to 255 bytes".to_owned());
    }
    let value = match (value.parse::<i64>(), value) {
        (Ok(number), _) => AMQPValue::LongLongInt(number),
        (_, "true") => AMQPValue::Boolean(true),
        (_, "false") => AMQPValue::Boolean(false),
        _ => AMQPValue::LongString(value.as_bytes().to_vec().into()),
    };
    Ok((key.to_owned(), value))
}

impl Client {
    /// Declares a queue. Gives its name, which the broker makes when `name` is empty.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn declare_queue(&mut self, name: &str, kind: &QueueKind) -> Result<String, BenchError> {
        let declare = queue::Declare {
            queue: name.into(),
            passive: false,
            durable: kind.durable,
            exclusive: kind.exclusive,
            auto_delete: false,
            nowait: false,
            arguments: kind.arguments.clone(),
        };
        match self.call("a queue", &AMQPClass::Queue(queue::AMQPMethod::Declare(declare)))? {
            AMQPClass::Queue(queue::AMQPMethod::DeclareOk(ok)) => Ok(ok.queue.as_str().to_owned()),
            other => Err(BenchError::Unexpected(format!("{other:?}"))),
        }
    }

    /// Drops the messages of a queue. Gives their number.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn purge_queue(&mut self, name: &str) -> Result<u32, BenchError> {
        let purge = queue::Purge { queue: name.into(), nowait: false };
        match self.call("a purge", &AMQPClass::Queue(queue::AMQPMethod::Purge(purge)))? {
            AMQPClass::Queue(queue::AMQPMethod::PurgeOk(ok)) => Ok(ok.message_count),
            other => Err(BenchError::Unexpected(format!("{other:?}"))),
        }
    }

    /// Deletes a queue, whatever is in it.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn delete_queue(&mut self, name: &str) -> Result<(), BenchError> {
        let delete = queue::Delete { queue: name.into(), if_unused: false, if_empty: false, nowait: false };
        self.call("deleting a queue", &AMQPClass::Queue(queue::AMQPMethod::Delete(delete))).map(|_| ())
    }

    /// Declares an exchange.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn declare_exchange(&mut self, name: &str, kind: &str, durable: bool) -> Result<(), BenchError> {
        let declare = exchange::Declare {
            exchange: name.into(),
            kind: kind.into(),
            passive: false,
            durable,
            auto_delete: false,
            internal: false,
            nowait: false,
            arguments: FieldTable::default(),
        };
        self.call("an exchange", &AMQPClass::Exchange(exchange::AMQPMethod::Declare(declare))).map(|_| ())
    }

    /// Deletes an exchange.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn delete_exchange(&mut self, name: &str) -> Result<(), BenchError> {
        let delete = exchange::Delete { exchange: name.into(), if_unused: false, nowait: false };
        self.call("deleting an exchange", &AMQPClass::Exchange(exchange::AMQPMethod::Delete(delete)))
            .map(|_| ())
    }

    /// Binds a queue to an exchange.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn bind_queue(
        &mut self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: FieldTable,
    ) -> Result<(), BenchError> {
        let bind = queue::Bind {
            queue: queue.into(),
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            nowait: false,
            arguments,
        };
        self.call("a binding", &AMQPClass::Queue(queue::AMQPMethod::Bind(bind))).map(|_| ())
    }

    /// Limits the unacked messages of each consumer that comes after; 0: no limit.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn set_prefetch(&mut self, count: u16) -> Result<(), BenchError> {
        let qos = basic::Qos { prefetch_count: count, global: false };
        self.call("a prefetch", &AMQPClass::Basic(basic::AMQPMethod::Qos(qos))).map(|_| ())
    }

    /// Starts a consumer.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn consume(&mut self, queue: &str, tag: &str, no_ack: bool) -> Result<(), BenchError> {
        let consume = basic::Consume {
            queue: queue.into(),
            consumer_tag: tag.into(),
            no_local: false,
            no_ack,
            exclusive: false,
            nowait: false,
            arguments: FieldTable::default(),
        };
        let what = format!("a consumer of '{queue}'");
        self.call(&what, &AMQPClass::Basic(basic::AMQPMethod::Consume(consume))).map(|_| ())
    }

    /// Asks for publisher confirms.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn select_confirms(&mut self) -> Result<(), BenchError> {
        self.select_confirms_on(CHANNEL)
    }

    /// Asks for publisher confirms on a channel that is open.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn select_confirms_on(&mut self, channel: u16) -> Result<(), BenchError> {
        let select = confirm::AMQPMethod::Select(confirm::Select { nowait: false });
        self.call_on(channel, "publisher confirms", &AMQPClass::Confirm(select)).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_has_the_type_that_it_looks_like() {
        let value = |text| parse_argument(text).unwrap().1;
        assert_eq!(value("x-max-length=10"), AMQPValue::LongLongInt(10));
        assert_eq!(value("x-single-active-consumer=true"), AMQPValue::Boolean(true));
        assert_eq!(value("x-queue-type=quorum"), AMQPValue::LongString(b"quorum".to_vec().into()));
        assert_eq!(value("a=b=c"), AMQPValue::LongString(b"b=c".to_vec().into()));
        assert!(parse_argument("a").is_err() && parse_argument("=b").is_err());
    }
}
