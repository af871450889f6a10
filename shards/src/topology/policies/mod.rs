//! Policies: what an operator asks of queues and exchanges by their names
//! (<https://www.rabbitmq.com/docs/policies>).
//!
//! Kept by the writer alone. What they come to for an object is worked out there, whenever a policy or the
//! object comes, and travels with the object's own description ([`EffectivePolicy`]): nobody else matches
//! names. Of the policies whose pattern fits and that apply to the object, the one with the highest priority
//! counts, and only that one; among equals the first by name. The same goes for operator policies, and what
//! the two say is merged: of limits the lower counts, of the rest what the operator says.
//!
//! What a policy says and what an object's arguments say is merged in turn: of limits the lower counts, of
//! the rest what the argument says, but for the overflow of quorum queues.

#![forbid(unsafe_code)]

mod definition;

use std::collections::BTreeMap;
use std::sync::Arc;

use fancy_regex::Regex;
use serde::{Deserialize, Serialize};

pub(super) use self::definition::check;
use self::definition::{fits, merged, with_argument};
use super::checks::precondition;
use super::{ExchangeInfo, QueueInfo, QueueKind, exchange_of_delay_queue};
use crate::{Arguments, Refusal, Value};

/// Whose policy it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PolicyOf {
    /// A policy.
    User,
    /// An operator policy: it bounds what policies and arguments ask for.
    Operator,
}

/// What a policy is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ApplyTo {
    All,
    Exchanges,
    Queues,
    ClassicQueues,
    QuorumQueues,
    Streams,
}

impl ApplyTo {
    /// By the name that RabbitMQ gives it.
    pub fn from_name(name: &str) -> Option<ApplyTo> {
        Some(match name {
            "all" => ApplyTo::All,
            "exchanges" => ApplyTo::Exchanges,
            "queues" => ApplyTo::Queues,
            "classic_queues" => ApplyTo::ClassicQueues,
            "quorum_queues" => ApplyTo::QuorumQueues,
            "streams" => ApplyTo::Streams,
            _ => return None,
        })
    }

    /// The name that RabbitMQ gives it.
    pub fn name(self) -> &'static str {
        match self {
            ApplyTo::All => "all",
            ApplyTo::Exchanges => "exchanges",
            ApplyTo::Queues => "queues",
            ApplyTo::ClassicQueues => "classic_queues",
            ApplyTo::QuorumQueues => "quorum_queues",
            ApplyTo::Streams => "streams",
        }
    }

    fn queues(self, kind: QueueKind) -> bool {
        match self {
            ApplyTo::All | ApplyTo::Queues => true,
            ApplyTo::ClassicQueues => kind == QueueKind::Classic,
            ApplyTo::QuorumQueues => kind == QueueKind::Quorum,
            ApplyTo::Exchanges | ApplyTo::Streams => false,
        }
    }

    fn exchanges(self) -> bool {
        matches!(self, ApplyTo::All | ApplyTo::Exchanges)
    }
}

/// A policy as it was set.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Policy {
    pub name: String,
    /// A regular expression that is looked for anywhere in a name, with look-around and back-references.
    pub pattern: String,
    pub apply_to: ApplyTo,
    /// Higher ones are looked at first.
    pub priority: i64,
    /// By RabbitMQ's names of the settings: `message-ttl`, `max-length`.
    pub definition: Arguments,
}

/// What policies come to for one object.
#[derive(Clone, PartialEq, Debug)]
pub struct EffectivePolicy {
    /// The name of the policy that counts.
    pub policy: Option<Arc<str>>,
    /// The name of the operator policy that counts.
    pub operator_policy: Option<Arc<str>>,
    /// What they say together.
    pub definition: Arguments,
}

impl EffectivePolicy {
    /// What the arguments of a queue and its policies say together, under the names of arguments.
    pub fn with_arguments(&self, kind: QueueKind, arguments: &Arguments) -> Arguments {
        let mut all = arguments.clone();
        for (name, value) in &self.definition {
            let argument = format!("x-{name}");
            let value = with_argument(kind, name, value, arguments.get(&argument));
            all.insert(argument, value);
        }
        all
    }

    /// The same for one setting, by its name in a policy.
    pub fn with_argument(&self, kind: QueueKind, name: &str, given: Option<&Value>) -> Option<Value> {
        match self.definition.get(name) {
            Some(value) => Some(with_argument(kind, name, value, given)),
            None => given.cloned(),
        }
    }
}

#[derive(Debug)]
struct Compiled {
    policy: Policy,
    name: Arc<str>,
    pattern: Regex,
}

/// All policies of all vhosts.
#[derive(Default, Debug)]
pub(super) struct Policies {
    all: BTreeMap<(String, PolicyOf), BTreeMap<String, Compiled>>,
}

impl Policies {
    /// Takes a policy in, in place of one of the same name.
    ///
    /// # Errors
    /// When its pattern is not a regular expression.
    pub fn set(&mut self, vhost: &str, of: PolicyOf, policy: Policy) -> Result<(), Refusal> {
        let pattern = Regex::new(&policy.pattern).map_err(|error| {
            precondition(format!("pattern should be regular expression but is invalid: {error}"))
        })?;
        let name: Arc<str> = policy.name.as_str().into();
        let of_vhost = self.all.entry((vhost.to_owned(), of)).or_default();
        of_vhost.insert(policy.name.clone(), Compiled { policy, name, pattern });
        Ok(())
    }

    /// Removes a policy; false if there is none.
    pub fn clear(&mut self, vhost: &str, of: PolicyOf, name: &str) -> bool {
        let key = (vhost.to_owned(), of);
        let Some(of_vhost) = self.all.get_mut(&key) else { return false };
        let found = of_vhost.remove(name).is_some();
        if of_vhost.is_empty() {
            self.all.remove(&key);
        }
        found
    }

    /// All of them, by vhost and name; the operators' behind the others of their vhost.
    pub fn iter(&self) -> impl Iterator<Item = (&str, PolicyOf, &Policy)> {
        self.all.iter().flat_map(|((vhost, of), policies)| {
            policies.values().map(move |compiled| (vhost.as_str(), *of, &compiled.policy))
        })
    }

    /// What is asked of a queue.
    pub fn for_queue(&self, vhost: &str, queue: &QueueInfo) -> Option<Arc<EffectivePolicy>> {
        if exchange_of_delay_queue(&queue.name).is_some() {
            return None;
        }
        let kind = queue.kind();
        self.effective(vhost, &queue.name, |policy| {
            policy.apply_to.queues(kind) && fits(kind, &policy.definition)
        })
    }

    /// What is asked of an exchange.
    pub fn for_exchange(&self, vhost: &str, exchange: &ExchangeInfo) -> Option<Arc<EffectivePolicy>> {
        self.effective(vhost, &exchange.name, |policy| policy.apply_to.exchanges())
    }

    fn effective(
        &self,
        vhost: &str,
        name: &str,
        applies: impl Fn(&Policy) -> bool,
    ) -> Option<Arc<EffectivePolicy>> {
        if self.all.is_empty() {
            return None;
        }
        let user = self.best(vhost, PolicyOf::User, name, &applies);
        let operator = self.best(vhost, PolicyOf::Operator, name, &applies);
        if user.is_none() && operator.is_none() {
            return None;
        }
        let mut definition = user.map_or_else(Arguments::new, |user| user.policy.definition.clone());
        for (name, value) in operator.iter().flat_map(|operator| &operator.policy.definition) {
            let value = match definition.get(name) {
                // Of what is no limit, the second one counts: the operator's.
                Some(given) => merged(name, given, value),
                None => value.clone(),
            };
            definition.insert(name.clone(), value);
        }
        let name = |compiled: Option<&Compiled>| compiled.map(|compiled| Arc::clone(&compiled.name));
        let (policy, operator_policy) = (name(user), name(operator));
        Some(Arc::new(EffectivePolicy { policy, operator_policy, definition }))
    }

    /// The first in the order of precedence whose pattern fits.
    fn best(
        &self,
        vhost: &str,
        of: PolicyOf,
        name: &str,
        applies: impl Fn(&Policy) -> bool,
    ) -> Option<&Compiled> {
        let mut best: Option<&Compiled> = None;
        for compiled in self.all.get(&(vhost.to_owned(), of))?.values() {
            let Compiled { policy, pattern, .. } = compiled;
            let higher = best.is_none_or(|best| policy.priority > best.policy.priority);
            // A pattern that takes too long to try fits nothing.
            if higher && applies(policy) && pattern.is_match(name).unwrap_or(false) {
                best = Some(compiled);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests;
