//! Who publishes and who consumes: connections with their roles, spread over threads and queues.

use std::sync::Arc;

use amq_protocol::protocol::basic::AMQPProperties;
use serde::Serialize;

use crate::client::{Client, Link};
use crate::engine::consumer::{Acks, Consumer};
use crate::engine::counters::Counters;
use crate::engine::group::Member;
use crate::error::BenchError;
use crate::stop::Stop;
use crate::uri::BrokerUri;

/// How deliveries are acked, on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AckMode {
    /// The broker does not wait for acks.
    #[default]
    Auto,
    /// One ack for each message.
    Each,
    /// One ack for several messages (`multiple`).
    Multiple,
}

impl AckMode {
    /// With `every`: how many messages a `multiple` ack is for; 0: as many as one read brings.
    ///
    /// # Errors
    /// When the consumer would wait for more messages than the prefetch allows.
    pub fn acks(self, every: u64, prefetch: u16) -> Result<Acks, BenchError> {
        let wrong = |text: &str| Err(BenchError::Options(text.to_owned()));
        match self {
            AckMode::Auto if prefetch > 0 => {
                wrong("a prefetch has no effect without acks: give --ack as well")
            }
            AckMode::Auto => Ok(Acks::None),
            AckMode::Each => Ok(Acks::Each),
            AckMode::Multiple if every == 0 => Ok(Acks::Batch),
            AckMode::Multiple if prefetch > 0 && every > u64::from(prefetch) => {
                wrong("--ack-every is more than --prefetch: the consumer would wait for ever")
            }
            AckMode::Multiple => Ok(Acks::Every(every)),
        }
    }
}

/// Properties of messages that only differ in whether they are persistent.
pub fn properties(persistent: bool) -> AMQPProperties {
    match persistent {
        true => AMQPProperties::default().with_delivery_mode(2),
        false => AMQPProperties::default(),
    }
}

/// `parties` take `things` in turn: all things have somebody, and all parties something, though there may be more of
/// one than of the other.
pub fn share(parties: usize, things: usize, party: usize) -> Vec<usize> {
    match parties < things {
        true => (party..things).step_by(parties).collect(),
        false => vec![party % things],
    }
}

/// Connections that consume.
pub struct Consumers<'a> {
    /// Where.
    pub uri: &'a BrokerUri,
    /// How many.
    pub count: usize,
    /// Of which queues.
    pub queues: &'a [String],
    /// How.
    pub acks: Acks,
    /// With which limit; 0: none.
    pub prefetch: u16,
}

impl Consumers<'_> {
    /// Connects them all and starts to consume.
    ///
    /// # Errors
    /// When the broker refuses, or a signal came.
    pub fn connect(&self, stop: &Stop) -> Result<Vec<Link>, BenchError> {
        let mut links = Vec::with_capacity(self.count);
        for party in 0..self.count {
            let mut client = connect(self.uri, stop)?;
            if self.prefetch > 0 {
                client.set_prefetch(self.prefetch)?;
            }
            for queue in share(self.count, self.queues.len(), party) {
                client.consume(&self.queues[queue], &format!("c{queue}"), self.acks == Acks::None)?;
            }
            links.push(client.into_link()?);
        }
        Ok(links)
    }

    /// Gives the connections their role.
    pub fn members(
        &self,
        links: Vec<Link>,
        counters: &Arc<Counters>,
        make: impl Fn(Consumer) -> Consumer,
    ) -> Vec<Member> {
        let member = |link| Member::new(link, make(Consumer::new(self.acks, Arc::clone(counters))));
        links.into_iter().map(member).collect()
    }
}

/// A connection that will publish.
///
/// # Errors
/// When the broker refuses, or a signal came.
pub fn publisher(uri: &BrokerUri, confirms: bool, stop: &Stop) -> Result<Link, BenchError> {
    let mut client = connect(uri, stop)?;
    if confirms {
        client.select_confirms()?;
    }
    client.into_link()
}

fn connect(uri: &BrokerUri, stop: &Stop) -> Result<Client, BenchError> {
    match stop.is_set() {
        true => Err(BenchError::Interrupted),
        false => Client::connect_with_channel(uri),
    }
}

/// Spreads connections over threads.
pub fn spread(members: Vec<Member>, threads: usize) -> Vec<Vec<Member>> {
    let mut groups: Vec<Vec<Member>> = (0..threads.max(1)).map(|_| Vec::new()).collect();
    for (number, member) in members.into_iter().enumerate() {
        let group = number % groups.len();
        groups[group].push(member);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_somebody_and_everybody_something() {
        for (parties, things) in [(1, 1), (1, 5), (2, 5), (5, 2), (3, 3)] {
            let shares: Vec<Vec<usize>> = (0..parties).map(|party| share(parties, things, party)).collect();
            assert!(shares.iter().all(|share| !share.is_empty()));
            let mut all: Vec<usize> = shares.concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all, (0..things).collect::<Vec<_>>(), "{parties} {things}");
            assert_eq!(shares.concat().len(), parties.max(things));
        }
    }

    #[test]
    fn ack_options_that_cannot_work_are_refused() {
        assert_eq!(AckMode::Auto.acks(0, 0).unwrap(), Acks::None);
        assert_eq!(AckMode::Multiple.acks(0, 5).unwrap(), Acks::Batch);
        assert_eq!(AckMode::Multiple.acks(5, 5).unwrap(), Acks::Every(5));
        assert!(AckMode::Multiple.acks(6, 5).is_err());
        assert!(AckMode::Auto.acks(0, 5).is_err());
    }
}
