//! Policies of a broker that does not run: `lepus policy`.
//!
//! The topology store is opened under the lock of the data directory, so that a running broker and this
//! never write it both. A change is decided by the same writer as in the broker, with the same refusals, and
//! is on disk when it returns; the broker goes by it from its next start on.

use std::path::{Path, PathBuf};
use std::{fs, io};

use lepus_shards::topology::{Evaluation, Operation, Policy, PolicyOf, Requester, TopologyError, Writer};
use lepus_shards::{Arguments, ConnectionId, ShardId, Value, VhostId, limits};
use lepus_storage::{DataDir, DataDirError, StoreError, TopologyStore};
use serde_json::{Map, Number, Value as Json};
use thiserror::Error;

use crate::server::write_now;

/// Why policies cannot be read or changed.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// There is no such directory.
    #[error("there is no data directory {}: {source}", path.display())]
    Missing {
        /// What was named.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A running broker has it, or it is not one of ours.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The topology cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The topology does not make sense.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The definition is no JSON object.
    #[error("the definition must be a JSON object, like {{\"max-length\": 1000}}: {0}")]
    Definition(String),
    /// The policy is not one, or not there.
    #[error("{0}")]
    Refused(String),
}

/// The policies in a data directory, which is held as long as this lives.
pub struct StoredPolicies {
    writer: Writer,
    vhost: VhostId,
    store: TopologyStore,
    _data_dir: DataDir,
}

impl StoredPolicies {
    /// Opens the data directory of a stopped broker. `vhost` is the one whose policies are changed; it need
    /// not exist yet.
    ///
    /// # Errors
    /// [`PolicyError`], among others when a broker runs on the directory.
    pub fn open(path: &Path, vhost: &str) -> Result<StoredPolicies, PolicyError> {
        fs::metadata(path).map_err(|source| PolicyError::Missing { path: path.to_owned(), source })?;
        let data_dir = DataDir::open(path)?;
        let (store, snapshot) = TopologyStore::open(&data_dir)?;
        // With as many shards as there can be, no queue has to move.
        let (writer, _) = Writer::restore(limits::SHARDS_MAX, snapshot.rows, vhost, fastrand::Rng::new())?;
        let vhost = writer.topology().vhost(vhost).expect("the default vhost exists in any case");
        Ok(StoredPolicies { writer, vhost, store, _data_dir: data_dir })
    }

    /// Sets a policy of the vhost, in place of the one of this name if there is one.
    ///
    /// # Errors
    /// It makes no sense, or cannot be stored.
    pub fn set(&mut self, of: PolicyOf, policy: Policy) -> Result<(), PolicyError> {
        self.change(&Operation::SetPolicy { vhost: self.vhost, of, policy })
    }

    /// Removes a policy of the vhost.
    ///
    /// # Errors
    /// It is not there, or the change cannot be stored.
    pub fn clear(&mut self, of: PolicyOf, name: &str) -> Result<(), PolicyError> {
        self.change(&Operation::ClearPolicy { vhost: self.vhost, of, name: name.to_owned() })
    }

    /// All policies of all vhosts: vhost, whose they are, and what they say.
    pub fn all(&self) -> impl Iterator<Item = (&str, PolicyOf, &Policy)> {
        self.writer.policies()
    }

    fn change(&mut self, operation: &Operation) -> Result<(), PolicyError> {
        // Nobody's connection: policies look at none.
        let connection = ConnectionId { shard: ShardId(0), slot: 0, generation: 0 };
        if let Evaluation::Refused(refusal) = self.writer.evaluate(operation, Requester { connection }) {
            return Err(PolicyError::Refused(refusal.text));
        }
        Ok(write_now(&mut self.store, self.writer.take_store_writes())?)
    }
}

/// Reads a definition as RabbitMQ's tools take it, a JSON object.
///
/// # Errors
/// It is none.
pub fn definition(text: &str) -> Result<Arguments, PolicyError> {
    let object: Map<String, Json> =
        serde_json::from_str(text).map_err(|error| PolicyError::Definition(error.to_string()))?;
    object.into_iter().map(|(name, json)| Ok((name, value(json)?))).collect()
}

fn value(json: Json) -> Result<Value, PolicyError> {
    Ok(match json {
        Json::Null => Value::Void,
        Json::Bool(value) => Value::Bool(value),
        Json::String(text) => Value::LongString(text.into_bytes()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::I64(number),
            (None, Some(number)) => Value::F64(number),
            (None, None) => return Err(PolicyError::Definition(format!("{number} is too large"))),
        },
        Json::Array(values) => Value::Array(values.into_iter().map(value).collect::<Result<_, _>>()?),
        Json::Object(fields) => {
            let fields = fields.into_iter().map(|(name, json)| Ok((name, value(json)?)));
            Value::Table(fields.collect::<Result<_, PolicyError>>()?)
        }
    })
}

/// Writes a policy's definition as JSON, for people and tools.
pub fn definition_text(definition: &Arguments) -> String {
    // Only integers and texts are in a definition that was accepted.
    let json = |value: &Value| match value.as_integer() {
        Some(number) => Json::Number(Number::from(number)),
        None => Json::String(value.as_text().unwrap_or_default().to_owned()),
    };
    let fields: Map<String, Json> =
        definition.iter().map(|(name, value)| (name.clone(), json(value))).collect();
    Json::Object(fields).to_string()
}

#[cfg(test)]
#[path = "policies_tests.rs"]
mod tests;
