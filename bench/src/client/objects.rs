//! Queues and exchanges of one run: removed when this is dropped, whether the run went well, failed or was
//! interrupted. Messages that nobody wants any more would eat the broker's memory.
//!
//! They are removed over a connection of its own: that of the run may be gone, or blocked for having published.

use std::sync::atomic::{AtomicU64, Ordering};

use amq_protocol::types::FieldTable;

use super::{Broker, Client, QueueKind};
use crate::error::BenchError;
use crate::uri::BrokerUri;

/// Starts names that no other run has.
pub fn unique_prefix() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("lepus-bench.{}.{count}", std::process::id())
}

/// What a run has declared.
#[derive(Debug)]
pub struct Objects {
    uri: BrokerUri,
    prefix: String,
    client: Client,
    queues: Vec<String>,
    exchanges: Vec<String>,
}

impl Objects {
    /// None yet, on a connection of its own.
    ///
    /// # Errors
    /// When there is no connection.
    pub fn new(uri: &BrokerUri) -> Result<Objects, BenchError> {
        let client = Client::connect_with_channel(uri)?;
        Ok(Objects {
            uri: uri.clone(),
            prefix: unique_prefix(),
            client,
            queues: Vec::new(),
            exchanges: Vec::new(),
        })
    }

    /// Who is at the other end.
    pub fn broker(&self) -> Broker {
        self.client.broker.clone()
    }

    /// The largest frame that the broker takes.
    pub fn frame_max(&self) -> usize {
        self.client.frame_max
    }

    /// Declares so many queues. Gives their names.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn queues(&mut self, count: usize, kind: &QueueKind) -> Result<Vec<String>, BenchError> {
        let first = self.queues.len();
        for number in first..first + count {
            // All names have the same length: messages to them do as well.
            let name = format!("{}.q{number:06}", self.prefix);
            // Noted first: a declare that the broker answers late has happened all the same.
            self.queues.push(name.clone());
            self.client.declare_queue(&name, kind)?;
        }
        Ok(self.queues[first..].to_vec())
    }

    /// Declares an exchange. Gives its name.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn exchange(&mut self, kind: &str, durable: bool) -> Result<String, BenchError> {
        let name = format!("{}.x{}", self.prefix, self.exchanges.len());
        self.exchanges.push(name.clone());
        self.client.declare_exchange(&name, kind, durable)?;
        Ok(name)
    }

    /// Binds one of the queues to one of the exchanges.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn bind(
        &mut self,
        queue: &str,
        exchange: &str,
        key: &str,
        arguments: FieldTable,
    ) -> Result<(), BenchError> {
        self.client.bind_queue(queue, exchange, key, arguments)
    }

    /// Drops what is left in the queues. Gives the number of messages.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn purge(&mut self) -> Result<u64, BenchError> {
        let client = &mut self.client;
        self.queues.iter().map(|name| client.purge_queue(name).map(u64::from)).sum()
    }

    /// Deletes the queue that was declared last.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn delete_last(&mut self) -> Result<(), BenchError> {
        if let Some(name) = self.queues.last() {
            self.client.delete_queue(name)?;
            self.queues.pop();
        }
        Ok(())
    }

    /// Removes everything, and says what went wrong. What is not removed is tried again when this is dropped.
    ///
    /// # Errors
    /// When the broker refuses or is gone.
    pub fn remove(&mut self) -> Result<(), BenchError> {
        if self.queues.is_empty() && self.exchanges.is_empty() {
            return Ok(());
        }
        let mut client = Client::connect_with_channel(&self.uri)?;
        while let Some(name) = self.queues.last() {
            // A purge first: brokers free messages sooner than queues.
            if client.purge_queue(name).is_err() {
                // There is no such queue: its declare was refused. The channel is closed by that.
                client = Client::connect_with_channel(&self.uri)?;
            }
            client.delete_queue(name)?;
            self.queues.pop();
        }
        while let Some(name) = self.exchanges.last() {
            client.delete_exchange(name)?;
            self.exchanges.pop();
        }
        client.close();
        Ok(())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("lepus bench: queues named {}.* may be left: {error}", self.prefix);
        }
    }
}
