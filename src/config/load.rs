//! Fills a [`Config`] from its sources, in the order of their rank.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Origin};
use super::keys::{Config, KEYS, Key};
use super::values::{Misfit, Raw};

/// Variables begin with this.
const PREFIX: &str = "LEPUS_";
/// Names the file, not a key; see [`Sources::file`].
pub const FILE_VARIABLE: &str = "LEPUS_CONFIG";

/// A value given by a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The flag as it is written, `--shards`.
    pub flag: String,
    /// The key's name.
    pub key: String,
    /// The value as text.
    pub value: String,
}

impl Assignment {
    /// Reads what stands behind `--set`.
    ///
    /// # Errors
    /// [`ConfigError::NoAssignment`].
    pub fn from_set(text: &str) -> Result<Assignment, ConfigError> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => Ok(Assignment {
                flag: "--set".to_owned(),
                key: key.trim().to_owned(),
                value: value.to_owned(),
            }),
            _ => Err(ConfigError::NoAssignment { text: text.to_owned() }),
        }
    }
}

/// Where a configuration comes from; the later ones win.
#[derive(Clone, Debug, Default)]
pub struct Sources<'a> {
    /// The file, if there is one.
    pub file: Option<&'a Path>,
    /// The environment: of it, what begins with `LEPUS_`, except `LEPUS_CONFIG`.
    pub environment: Vec<(OsString, OsString)>,
    /// What flags set.
    pub flags: Vec<Assignment>,
}

/// Of the sources; orders as precedence does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    File,
    Environment,
    Flag,
}

impl Config {
    /// Reads all sources.
    ///
    /// # Errors
    /// [`ConfigError`] for the first thing that is wrong.
    pub fn load(sources: &Sources<'_>) -> Result<Config, ConfigError> {
        let mut loader = Loader { config: Config::default(), shards: None, cpus: None };
        if let Some(path) = sources.file {
            let text = fs::read_to_string(path)
                .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
            loader.file(path, &text)?;
        }
        loader.environment(&sources.environment)?;
        for Assignment { flag, key, value } in &sources.flags {
            let origin = Origin::Flag(flag.clone());
            let key = find(key).ok_or_else(|| unknown(key, origin.clone()))?;
            loader.set(Rank::Flag, key, &Raw::Text(value), origin, value)?;
        }
        loader.finish()
    }
}

struct Loader {
    config: Config,
    /// Who set `shards` last.
    shards: Option<(Rank, Origin)>,
    /// Who set `cpus` last.
    cpus: Option<(Rank, Origin)>,
}

impl Loader {
    fn file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let at = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(text, offset) };
        let document = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            origin: at(error.span().map_or(0, |span| span.start)),
            message: error.message().lines().collect::<Vec<_>>().join("; "),
        })?;
        let mut pairs = Vec::new();
        flatten(document.get_ref(), None, &mut pairs);
        pairs.sort_by_key(|pair| pair.key_offset); // the first mistake in the file is reported first
        for Pair { name, key_offset, value, span } in pairs {
            let origin = at(key_offset);
            let key = find(&name).ok_or_else(|| unknown(&name, origin.clone()))?;
            let written = text.get(span).unwrap_or_default();
            self.set(Rank::File, key, &Raw::Toml(value), origin, written)?;
        }
        Ok(())
    }

    fn environment(&mut self, variables: &[(OsString, OsString)]) -> Result<(), ConfigError> {
        let mut named: Vec<(String, &OsString)> = variables
            .iter()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value))
            .filter(|(name, _)| name.starts_with(PREFIX) && name != FILE_VARIABLE && !is_of_others(name))
            .collect();
        named.sort(); // so that the same mistakes give the same error
        for (name, value) in named {
            let origin = Origin::Variable(name.clone());
            let key = KEYS.iter().find(|key| key.variable() == name).ok_or_else(|| {
                ConfigError::UnknownKey { origin: origin.clone(), nearest: nearest_variable(&name), name }
            })?;
            match value.to_str() {
                Some(text) => self.set(Rank::Environment, key, &Raw::Text(text), origin, text)?,
                None => return Err(bad_value(key, origin, &value.to_string_lossy())),
            }
        }
        Ok(())
    }

    fn set(
        &mut self,
        rank: Rank,
        key: &Key,
        raw: &Raw<'_>,
        origin: Origin,
        written: &str,
    ) -> Result<(), ConfigError> {
        if let Err(Misfit) = (key.set)(&mut self.config, raw) {
            return Err(bad_value(key, origin, written));
        }
        match key.name {
            "shards" => self.shards = Some((rank, origin)),
            "cpus" => self.cpus = Some((rank, origin)),
            _ => {}
        }
        Ok(())
    }

    /// Of `shards` and `cpus`, the one from the source of higher rank wins; the same source may not set both.
    fn finish(mut self) -> Result<Config, ConfigError> {
        if let (Some((shards_rank, shards)), Some((cpus_rank, cpus))) = (self.shards, self.cpus) {
            match shards_rank.cmp(&cpus_rank) {
                std::cmp::Ordering::Equal => {
                    return Err(ConfigError::Conflict { first: shards, second: cpus });
                }
                std::cmp::Ordering::Less => self.config.shards = None,
                std::cmp::Ordering::Greater => self.config.cpus = None,
            }
        }
        Ok(self.config)
    }
}

/// A key of the file, with its section, and its value.
struct Pair<'a> {
    name: String,
    key_offset: usize,
    value: &'a DeValue<'a>,
    span: std::ops::Range<usize>,
}

/// Goes into tables that are not themselves the value of a known key.
fn flatten<'a>(table: &'a DeTable<'a>, section: Option<&str>, pairs: &mut Vec<Pair<'a>>) {
    for (key, value) in table {
        let name = match section {
            Some(section) => format!("{section}.{}", key.get_ref()),
            None => key.get_ref().to_string(),
        };
        match value.get_ref() {
            DeValue::Table(inner) if find(&name).is_none() && !inner.is_empty() => {
                flatten(inner, Some(&name), pairs);
            }
            // A known section may be empty; an unknown one is a mistake all the same.
            DeValue::Table(inner) if inner.is_empty() && is_section(&name) => {}
            inner => {
                pairs.push(Pair { name, key_offset: key.span().start, value: inner, span: value.span() })
            }
        }
    }
}

/// Variables that begin like ours and are not: what an orchestrator sets in the surroundings of a service
/// that is called lepus, and what the tests of this project read.
fn is_of_others(name: &str) -> bool {
    const PREFIXES: [&str; 7] = [
        "LEPUS_PORT_",
        "LEPUS_SERVICE_",
        "LEPUS_SIM_",
        "LEPUS_TEST_",
        "LEPUS_CRASH_",
        "LEPUS_BLESS",
        "LEPUS_BIN",
    ];
    name == "LEPUS_PORT" || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.section() == Some(name))
}

fn unknown(name: &str, origin: Origin) -> ConfigError {
    ConfigError::UnknownKey { origin, name: name.to_owned(), nearest: nearest(name) }
}

/// The key that is meant by all likelihood: a right name in the wrong section is nearer than any typo.
fn nearest(name: &str) -> &'static str {
    let last = name.rsplit('.').next().unwrap_or(name);
    let distance = |key: &&Key| {
        let whole = strsim::damerau_levenshtein(name, key.name) * 2;
        let without_section = strsim::damerau_levenshtein(last, key.name_in_section()) * 2 + 1;
        whole.min(without_section)
    };
    KEYS.iter().min_by_key(distance).expect("there are keys").name
}

fn nearest_variable(name: &str) -> &'static str {
    let distance = |key: &&Key| {
        let short = format!("{PREFIX}{}", key.name_in_section().to_ascii_uppercase());
        let whole = strsim::damerau_levenshtein(name, &key.variable()) * 2;
        whole.min(strsim::damerau_levenshtein(name, &short) * 2 + 1)
    };
    KEYS.iter().min_by_key(distance).expect("there are keys").name
}

fn bad_value(key: &Key, origin: Origin, written: &str) -> ConfigError {
    // Errors end up in logs.
    let value = if key.name.ends_with("_pass") { "not shown here".to_owned() } else { shorten(written) };
    ConfigError::BadValue { origin, key: key.name, value, accepts: key.accepts }
}

/// A value as it was written, in one line of bounded length.
fn shorten(written: &str) -> String {
    const CHARS_MAX: usize = 60;
    if written.is_empty() {
        return "empty".to_owned();
    }
    let line: String = written.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
