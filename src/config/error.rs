//! What can be wrong with a configuration. Every text is one line and names the place.

use std::fmt;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of the file, counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag, as it is written: `--shards`.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}; check --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{origin}: this is not TOML: {message}")]
    Syntax {
        /// Where.
        origin: Origin,
        /// What the parser expected.
        message: String,
    },
    /// There is no such key.
    #[error("{origin}: there is no key `{name}`; the nearest one is `{nearest}`{}", hint(origin, nearest))]
    UnknownKey {
        /// Where it was given.
        origin: Origin,
        /// What was given.
        name: String,
        /// The known key whose name is most like it.
        nearest: &'static str,
    },
    /// The value is not one that the key accepts.
    #[error("{origin}: `{key}` is {value}, but must be {accepts}")]
    BadValue {
        /// Where it was given.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What was given, as it was written.
        value: String,
        /// What would be accepted.
        accepts: &'static str,
    },
    /// Two keys that exclude each other.
    #[error("{second}: `shards` and `cpus` exclude each other, and {first} sets the other one; keep one")]
    Conflict {
        /// Where the one was given.
        first: Origin,
        /// Where the other was.
        second: Origin,
    },
    /// `--set` without a value.
    #[error("--set {text}: this is not KEY=VALUE, for instance --set amqp.heartbeat_s=30")]
    NoAssignment {
        /// What was given.
        text: String,
    },
}

/// The variable's own name, where the key is meant by one.
fn hint(origin: &Origin, nearest: &str) -> String {
    match origin {
        Origin::Variable(_) => {
            format!(" (LEPUS_{})", nearest.replace('.', "_").to_ascii_uppercase())
        }
        Origin::File { .. } | Origin::Flag(_) => String::new(),
    }
}
