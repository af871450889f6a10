//! The types of values: how each is read from TOML or from text, and written as TOML.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lepus_tuning::cpus;
use toml::de::DeValue;
use tracing_subscriber::EnvFilter;

/// A value as a source has it.
pub(super) enum Raw<'a> {
    /// From the environment or a flag. Lists are separated by commas.
    Text(&'a str),
    /// From the file.
    Toml(&'a DeValue<'a>),
}

/// A value is not what its key accepts.
#[derive(Debug)]
pub(super) struct Misfit;

/// A value as TOML.
pub(super) enum Shown {
    Set(String),
    /// There is no value; what one could look like.
    Unset {
        example: &'static str,
    },
}

/// A type that a key can have.
pub(super) trait Setting: Sized {
    fn read(raw: &Raw<'_>) -> Result<Self, Misfit>;
    fn show(&self) -> Shown;
}

impl Raw<'_> {
    fn text(&self) -> Result<&str, Misfit> {
        match self {
            Raw::Text(text) => Ok(text),
            Raw::Toml(value) => value.as_str().ok_or(Misfit),
        }
    }

    fn integer(&self) -> Result<u64, Misfit> {
        let parsed = match self {
            Raw::Text(text) => text.trim().replace('_', "").parse().ok(),
            Raw::Toml(value) => {
                value.as_integer().and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok())
            }
        };
        parsed.ok_or(Misfit)
    }

    fn list(&self) -> Result<Vec<&str>, Misfit> {
        match self {
            Raw::Text(text) if text.trim().is_empty() => Ok(Vec::new()),
            Raw::Text(text) => Ok(text.split(',').map(str::trim).collect()),
            Raw::Toml(value) => {
                let array = value.as_array().ok_or(Misfit)?;
                array.iter().map(|item| item.get_ref().as_str().ok_or(Misfit)).collect()
            }
        }
    }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn quoted_list(texts: impl Iterator<Item = String>) -> Shown {
    Shown::Set(format!("[{}]", texts.map(|text| quoted(&text)).collect::<Vec<_>>().join(", ")))
}

impl Setting for String {
    fn read(raw: &Raw<'_>) -> Result<String, Misfit> {
        Ok(raw.text()?.to_owned())
    }
    fn show(&self) -> Shown {
        Shown::Set(quoted(self))
    }
}

impl Setting for PathBuf {
    fn read(raw: &Raw<'_>) -> Result<PathBuf, Misfit> {
        Ok(PathBuf::from(raw.text()?))
    }
    fn show(&self) -> Shown {
        // Every source is text, so a path is too.
        Shown::Set(quoted(&self.to_string_lossy()))
    }
}

macro_rules! integer_setting {
    ($($type:ty),+) => { $(
        impl Setting for $type {
            fn read(raw: &Raw<'_>) -> Result<$type, Misfit> {
                raw.integer()?.try_into().map_err(|_| Misfit)
            }
            fn show(&self) -> Shown {
                Shown::Set(self.to_string())
            }
        }
    )+ };
}

integer_setting!(u16, u32, u64);

impl Setting for Option<usize> {
    fn read(raw: &Raw<'_>) -> Result<Option<usize>, Misfit> {
        Ok(Some(raw.integer()?.try_into().map_err(|_| Misfit)?))
    }
    fn show(&self) -> Shown {
        self.map_or(Shown::Unset { example: "2" }, |n| Shown::Set(n.to_string()))
    }
}

impl Setting for Vec<String> {
    fn read(raw: &Raw<'_>) -> Result<Vec<String>, Misfit> {
        Ok(raw.list()?.into_iter().map(str::to_owned).collect())
    }
    fn show(&self) -> Shown {
        quoted_list(self.iter().cloned())
    }
}

impl Setting for Vec<SocketAddr> {
    fn read(raw: &Raw<'_>) -> Result<Vec<SocketAddr>, Misfit> {
        raw.list()?.into_iter().map(|text| text.parse().map_err(|_| Misfit)).collect()
    }
    fn show(&self) -> Shown {
        quoted_list(self.iter().map(SocketAddr::to_string))
    }
}

/// CPUs by number, each once, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl Setting for Option<CpuList> {
    fn read(raw: &Raw<'_>) -> Result<Option<CpuList>, Misfit> {
        let text = match raw {
            // `cpus = [0, 1]` and `cpus = 3` are as clear as `cpus = "0,1"`.
            Raw::Toml(DeValue::Array(items)) => {
                let numbers: Result<Vec<String>, Misfit> =
                    items.iter().map(|item| Ok(Raw::Toml(item.get_ref()).integer()?.to_string())).collect();
                numbers?.join(",")
            }
            Raw::Toml(DeValue::Integer(_)) => raw.integer()?.to_string(),
            _ => raw.text()?.to_owned(),
        };
        Ok(Some(CpuList(cpus::parse_list(&text).ok_or(Misfit)?)))
    }
    fn show(&self) -> Shown {
        match self {
            Some(list) => Shown::Set(quoted(&cpus::format_list(&list.0))),
            None => Shown::Unset { example: "\"0-3,8\"" },
        }
    }
}

/// What a confirm means, see the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The message is on stable storage.
    Fsync,
    /// The kernel has the message.
    Os,
    /// The owning shard has the message.
    Memory,
}

impl Durability {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Fsync => "fsync",
            Durability::Os => "os",
            Durability::Memory => "memory",
        }
    }
}

impl Setting for Durability {
    fn read(raw: &Raw<'_>) -> Result<Durability, Misfit> {
        match raw.text()? {
            "fsync" => Ok(Durability::Fsync),
            "os" => Ok(Durability::Os),
            "memory" => Ok(Durability::Memory),
            _ => Err(Misfit),
        }
    }
    fn show(&self) -> Shown {
        Shown::Set(quoted(self.name()))
    }
}

/// What else runs on the machine, see the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Nothing: the broker may keep its CPUs busy.
    Dedicated,
    /// Others do.
    Shared,
}

impl Setting for Profile {
    fn read(raw: &Raw<'_>) -> Result<Profile, Misfit> {
        match raw.text()? {
            "dedicated" => Ok(Profile::Dedicated),
            "shared" => Ok(Profile::Shared),
            _ => Err(Misfit),
        }
    }
    fn show(&self) -> Shown {
        Shown::Set(quoted(match self {
            Profile::Dedicated => "dedicated",
            Profile::Shared => "shared",
        }))
    }
}

/// How long an idle shard looks around before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// So many microseconds.
    Micros(u64),
    /// It does not sleep.
    Forever,
}

impl Spin {
    /// More would be meant to be for ever.
    const MICROS_MAX: u64 = 1_000_000;

    /// What the executor is told.
    pub fn duration(self) -> Duration {
        match self {
            Spin::Micros(us) => Duration::from_micros(us),
            Spin::Forever => Duration::MAX,
        }
    }
}

impl Setting for Option<Spin> {
    fn read(raw: &Raw<'_>) -> Result<Option<Spin>, Misfit> {
        if matches!(raw.text(), Ok("forever")) {
            return Ok(Some(Spin::Forever));
        }
        let us = raw.integer()?;
        if us <= Spin::MICROS_MAX { Ok(Some(Spin::Micros(us))) } else { Err(Misfit) }
    }
    fn show(&self) -> Shown {
        match self {
            Some(Spin::Micros(us)) => Shown::Set(us.to_string()),
            Some(Spin::Forever) => Shown::Set(quoted("forever")),
            None => Shown::Unset { example: "50" },
        }
    }
}

/// A share of the memory there is, or an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBudget {
    /// Of what the host or the control group has.
    Percent(u64),
    /// This much.
    Bytes(u64),
}

impl MemoryBudget {
    /// Below this, a handful of connections would block publishing.
    const BYTES_MIN: u64 = 16 << 20;

    /// The budget in bytes where this much is available.
    pub fn bytes_of(self, available_bytes: u64) -> u64 {
        match self {
            MemoryBudget::Percent(percent) => available_bytes / 100 * percent,
            MemoryBudget::Bytes(bytes) => bytes,
        }
    }

    pub(super) fn is_sensible(&self) -> bool {
        match *self {
            MemoryBudget::Percent(percent) => (1..=90).contains(&percent),
            MemoryBudget::Bytes(bytes) => bytes >= MemoryBudget::BYTES_MIN,
        }
    }

    fn parse(text: &str) -> Option<MemoryBudget> {
        let text = text.trim();
        if let Some(percent) = text.strip_suffix('%') {
            return Some(MemoryBudget::Percent(percent.trim_end().parse().ok()?));
        }
        let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
        let (number, shift) = units
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?.trim_end(), *shift)))
            .unwrap_or((text, 0));
        Some(MemoryBudget::Bytes(number.parse::<u64>().ok()?.checked_mul(1 << shift)?))
    }
}

impl Setting for MemoryBudget {
    fn read(raw: &Raw<'_>) -> Result<MemoryBudget, Misfit> {
        match raw {
            Raw::Toml(DeValue::Integer(_)) => Ok(MemoryBudget::Bytes(raw.integer()?)),
            _ => MemoryBudget::parse(raw.text()?).ok_or(Misfit),
        }
    }
    fn show(&self) -> Shown {
        Shown::Set(match self {
            MemoryBudget::Percent(percent) => quoted(&format!("{percent}%")),
            MemoryBudget::Bytes(bytes) => bytes.to_string(),
        })
    }
}

/// What is logged: directives of `tracing`'s filter, known to parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// The filter that the directives describe.
    pub fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }

    /// A bare word that is no level would pass as the name of a module, and silence everything.
    fn parse(text: &str) -> Option<LogFilter> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let parts_clear = text.split(',').all(|part| part.contains('=') || LEVELS.contains(&part.trim()));
        (parts_clear && EnvFilter::try_new(text).is_ok()).then(|| LogFilter(text.to_owned()))
    }
}

impl Default for LogFilter {
    fn default() -> LogFilter {
        LogFilter("info".to_owned())
    }
}

impl Setting for LogFilter {
    fn read(raw: &Raw<'_>) -> Result<LogFilter, Misfit> {
        LogFilter::parse(raw.text()?).ok_or(Misfit)
    }
    fn show(&self) -> Shown {
        Shown::Set(quoted(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_takes_some_time_or_for_ever() {
        let read = |text| <Option<Spin> as Setting>::read(&Raw::Text(text)).ok().flatten();
        assert_eq!(read("50"), Some(Spin::Micros(50)));
        assert_eq!(read("forever"), Some(Spin::Forever));
        for wrong in ["", "always", "-1", "1000001"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn memory_is_a_percentage_or_an_amount() {
        assert_eq!(MemoryBudget::parse("40%"), Some(MemoryBudget::Percent(40)));
        assert_eq!(MemoryBudget::parse("512MiB"), Some(MemoryBudget::Bytes(512 << 20)));
        assert_eq!(MemoryBudget::parse("2 GiB"), Some(MemoryBudget::Bytes(2 << 30)));
        assert_eq!(MemoryBudget::parse("33554432"), Some(MemoryBudget::Bytes(32 << 20)));
        for wrong in ["", "%", "4.5%", "-1", "1MB", "MiB", "99999999999999GiB"] {
            assert_eq!(MemoryBudget::parse(wrong), None, "{wrong}");
        }
        assert!(!MemoryBudget::Percent(0).is_sensible() && !MemoryBudget::Percent(91).is_sensible());
        assert!(
            !MemoryBudget::Bytes((16 << 20) - 1).is_sensible() && MemoryBudget::Bytes(16 << 20).is_sensible()
        );
    }

    #[test]
    fn a_log_filter_is_levels_and_nothing_that_only_looks_like_one() {
        for good in ["info", "off", "warn,lepus=debug", "lepus::server=trace"] {
            assert!(LogFilter::parse(good).is_some(), "{good}");
        }
        for wrong in ["", "verbose", "warn,lepus", "lepus=loud"] {
            assert_eq!(LogFilter::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lists_in_text_are_separated_by_commas() {
        let read = |text| <Vec<String> as Setting>::read(&Raw::Text(text)).unwrap();
        assert_eq!(read("a, b,c"), ["a", "b", "c"]);
        assert!(read("").is_empty());
    }
}
