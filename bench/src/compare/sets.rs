//! Named sets of workloads.

use std::fmt::Write as _;

use crate::error::BenchError;

/// A workload with a name and its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// In tables.
    pub name: String,
    /// As on the command line.
    pub words: Vec<String>,
}

/// What a workload needs besides a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A directory on the brokers' disk.
    Directory,
    /// The broker's process.
    Process,
}

/// A set: its name, what it is for, and its workloads.
type Set = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const SETS: [Set; 3] = [
    (
        "quick",
        "a first look, about 20 s for each broker and round",
        &[
            ("16-B", "throughput --body 16 --seconds 4"),
            ("1-KiB", "throughput --body 1024 --seconds 4"),
            (
                "1-KiB-durable",
                "throughput --body 1024 --persistent --confirm 500 --ack multiple --prefetch 500 --seconds 4",
            ),
            ("latency-1k", "latency --rate 1000 --body 1024 --seconds 4"),
        ],
    ),
    (
        "readme",
        "the figures of the README, about 100 s for each broker and round",
        &[
            ("16-B", "throughput --body 16 --seconds 10"),
            ("1-KiB", "throughput --body 1024 --seconds 10"),
            (
                "1-KiB-durable",
                "throughput --body 1024 --persistent --confirm 500 --ack multiple --prefetch 500 --seconds 10",
            ),
            ("one-at-a-time", "confirms --body 1024 --turns 10 --seconds 3"),
            ("latency-10k", "latency --rate 10000 --body 1024 --seconds 10"),
            ("latency-20k", "latency --rate 20000 --body 1024 --seconds 10"),
            ("fanout-100", "fanout --queues 100 --body 1024 --seconds 5"),
            ("rpc", "rpc --seconds 5"),
            ("idle-1000", "idle --connections 1000 --seconds 5"),
        ],
    ),
    (
        "scale",
        "the same rate over more and more queues and connections",
        &[
            ("1-queue", "throughput --body 256 --rate 20000 --seconds 5"),
            ("100-queues", "throughput --body 256 --rate 20000 --seconds 5 --queues 100"),
            ("1000-queues", "throughput --body 256 --rate 20000 --seconds 5 --queues 1000"),
            (
                "100-connections",
                "throughput --body 256 --rate 20000 --seconds 5 --queues 100 --producers 100 --consumers 100",
            ),
            (
                "1000-connections",
                "throughput --body 256 --rate 20000 --seconds 5 --queues 500 --producers 500 --consumers 500",
            ),
            ("direct", "throughput --body 256 --rate 20000 --seconds 5 --queues 100 --exchange direct"),
            ("topic", "throughput --body 256 --rate 20000 --seconds 5 --queues 100 --exchange topic"),
            ("headers", "throughput --body 256 --rate 20000 --seconds 5 --queues 100 --exchange headers"),
            ("churn", "churn --seconds 3"),
            ("backlog", "backlog --messages 500000 --body 1024"),
        ],
    ),
];

impl Named {
    /// `NAME=OPTIONS`.
    ///
    /// # Errors
    /// When one of both is missing.
    pub fn parse(text: &str) -> Result<Named, BenchError> {
        match text.split_once('=') {
            Some((name, line)) if !name.trim().is_empty() && !line.trim().is_empty() => {
                Ok(Named::new(name.trim(), line))
            }
            _ => Err(BenchError::Options(format!("'{text}' is not NAME=OPTIONS"))),
        }
    }

    fn new(name: &str, line: &str) -> Named {
        Named { name: name.to_owned(), words: line.split_whitespace().map(str::to_owned).collect() }
    }

    fn is(&self, workload: &str) -> bool {
        self.words.first().is_some_and(|first| first == workload)
    }

    /// Whether it takes a URI.
    pub fn has_broker(&self) -> bool {
        !self.is("limit")
    }

    /// Whether it takes a time.
    pub fn has_seconds(&self) -> bool {
        !self.is("backlog")
    }

    /// What it cannot do without.
    pub fn needs(&self) -> Needs {
        match () {
            () if self.is("confirms") => Needs::Directory,
            () if self.is("idle") => Needs::Process,
            () => Needs::Nothing,
        }
    }
}

/// The names of all sets.
pub fn names() -> impl Iterator<Item = &'static str> {
    SETS.iter().map(|(name, ..)| *name)
}

/// The workloads of a set.
///
/// # Errors
/// When there is no such set.
pub fn find(name: &str) -> Result<Vec<Named>, BenchError> {
    match SETS.iter().find(|(of, ..)| *of == name) {
        Some((.., workloads)) => Ok(workloads.iter().map(|(name, line)| Named::new(name, line)).collect()),
        None => {
            let known = names().collect::<Vec<_>>().join(", ");
            Err(BenchError::Options(format!("there is no set '{name}': {known}")))
        }
    }
}

/// All sets, for people.
pub fn list() -> String {
    let mut text = String::new();
    for (name, about, workloads) in SETS {
        let _ = writeln!(text, "{name}: {about}");
        for (name, line) in workloads {
            let _ = writeln!(text, "  {name:<18}{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_set_is_refused_with_those_that_there_are() {
        let text = find("no").unwrap_err().to_string();
        assert!(names().all(|name| text.contains(name)), "{text}");
    }

    #[test]
    fn the_list_shows_every_workload() {
        let list = list();
        for set in names() {
            assert!(find(set).unwrap().iter().all(|named| list.contains(&named.words.join(" "))));
        }
    }
}
