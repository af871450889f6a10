//! Policies of a broker that does not run: `lepus policy`.

use std::path::Path;

use lepus_shards::topology::{Operation, Policy, PolicyOf};
use lepus_shards::{Arguments, Value};
use serde_json::{Map, Number, Value as Json};
use thiserror::Error;

use crate::stored_topology::{StoredTopology, StoredTopologyError};

/// Why policies cannot be read or changed.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The policies cannot be read or written, or the policy is not one, or not there.
    #[error(transparent)]
    Stored(#[from] StoredTopologyError),
    /// The definition is no JSON object.
    #[error("the definition must be a JSON object, like {{\"max-length\": 1000}}: {0}")]
    Definition(String),
}

/// The policies in a data directory, which is held as long as this lives.
pub struct StoredPolicies(StoredTopology);

impl StoredPolicies {
    /// Opens the data directory of a stopped broker. `vhost` is the one whose policies are changed; it need
    /// not exist yet.
    ///
    /// # Errors
    /// [`StoredTopologyError`], among others when a broker runs on the directory.
    pub fn open(path: &Path, vhost: &str) -> Result<StoredPolicies, PolicyError> {
        Ok(StoredPolicies(StoredTopology::open(path, vhost)?))
    }

    /// Sets a policy of the vhost, in place of the one of this name if there is one.
    ///
    /// # Errors
    /// It makes no sense, or cannot be stored.
    pub fn set(&mut self, of: PolicyOf, policy: Policy) -> Result<(), PolicyError> {
        Ok(self.0.change(&Operation::SetPolicy { vhost: self.0.vhost(), of, policy })?)
    }

    /// Removes a policy of the vhost.
    ///
    /// # Errors
    /// It is not there, or the change cannot be stored.
    pub fn clear(&mut self, of: PolicyOf, name: &str) -> Result<(), PolicyError> {
        Ok(self.0.change(&Operation::ClearPolicy { vhost: self.0.vhost(), of, name: name.to_owned() })?)
    }

    /// All policies of all vhosts: vhost, whose they are, and what they say.
    pub fn all(&self) -> impl Iterator<Item = (&str, PolicyOf, &Policy)> {
        self.0.writer().policies()
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
