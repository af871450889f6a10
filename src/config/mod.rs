//! The configuration: one table of keys, filled from defaults, a TOML file, the environment and flags.
//!
//! Used on the main thread, before shards exist. A later source wins over an earlier one: default, file,
//! `LEPUS_...` environment variable, flag. Invariants: every value of a [`Config`] is one that its key
//! accepts, and `shards` and `cpus` are never both set. A key is declared in one place, [`keys`];
//! reading, checking, suggesting, the names of environment variables and the printed default follow.

mod error;
mod keys;
mod load;
mod print;
mod settings;
mod values;

pub use error::{ConfigError, Origin};
pub use keys::Config;
pub use load::{Assignment, FILE_VARIABLE, Sources};
pub use settings::Settings;
pub use values::{CpuList, Durability, LogFilter, MemoryBudget, Profile, Spin};

/// How long a busy shard looks around on a machine that others use, in microseconds: about twice what
/// sleeping and being woken cost.
const SPIN_SHARED_US: u64 = 50;

impl Config {
    /// How long idle shards spin: as configured, or as the profile has it.
    pub fn spin(&self) -> Spin {
        self.spin_before_park_us.unwrap_or(match self.profile {
            Profile::Dedicated => Spin::Forever,
            Profile::Shared => Spin::Micros(SPIN_SHARED_US),
        })
    }

    /// The values that server and protocol work with.
    pub fn settings(&self, shards: usize, memory_available_bytes: u64) -> Settings {
        let budget = self.memory_budget.bytes_of(memory_available_bytes);
        Settings {
            default_user: self.default_user.clone(),
            default_pass: self.default_pass.clone(),
            loopback_users: self.loopback_users.clone(),
            default_vhost: self.default_vhost.clone(),
            heartbeat_s: self.heartbeat_s,
            channel_max: self.channel_max,
            frame_max_bytes: self.frame_max_bytes,
            consumers_per_channel_max: self.consumers_per_channel_max,
            max_message_bytes: self.max_message_bytes,
            memory_per_shard_bytes: budget / shards.max(1) as u64,
            durability: self.durability,
            segment_bytes: self.segment_mib << 20,
            commit_delay_max_ms: self.commit_delay_max_ms,
            disk_free_limit_bytes: self.disk_free_limit_mib << 20,
            handshake_timeout_ms: self.handshake_timeout_ms,
            consumer_timeout_ms: self.consumer_timeout_ms,
            write_stall_timeout_ms: self.write_stall_timeout_ms,
            stall_report_ms: self.stall_report_ms,
            spin_before_park: self.spin().duration(),
            product: self.product.clone(),
            version: self.version.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn shards_share_the_memory_budget_equally() {
        let config = Config { memory_budget: MemoryBudget::Percent(40), ..Config::default() };
        assert_eq!(config.settings(4, 1_000_000).memory_per_shard_bytes, 100_000);
        let config = Config { memory_budget: MemoryBudget::Bytes(64 << 20), ..Config::default() };
        assert_eq!(config.settings(2, 1_000_000).memory_per_shard_bytes, 32 << 20);
    }

    #[test]
    fn the_profile_says_whether_shards_spin_unless_their_own_key_does() {
        let spin = |profile, spin_before_park_us| {
            Config { profile, spin_before_park_us, ..Config::default() }.settings(1, 1 << 30).spin_before_park
        };
        assert_eq!(spin(Profile::Dedicated, None), Duration::MAX);
        assert_eq!(spin(Profile::Shared, None), Duration::from_micros(50));
        assert_eq!(spin(Profile::Dedicated, Some(Spin::Micros(50))), Duration::from_micros(50));
        assert_eq!(spin(Profile::Shared, Some(Spin::Forever)), Duration::MAX);
        assert_eq!(Config::default().profile, Profile::Shared, "an idle machine is not burnt unasked");
    }

    #[test]
    fn the_defaults_are_those_that_clients_expect() {
        let settings = Config::default().settings(1, 1 << 30);
        assert_eq!(
            (settings.heartbeat_s, settings.channel_max, settings.frame_max_bytes),
            (60, 2047, 131_072)
        );
        assert_eq!((settings.default_user.as_str(), settings.default_pass.as_str()), ("guest", "guest"));
        assert_eq!(
            (settings.loopback_users.as_slice(), settings.default_vhost.as_str()),
            (&["guest".to_owned()][..], "/")
        );
        assert_eq!(settings.max_message_bytes, 128 << 20);
        assert_eq!(settings.product, "Lepus");
    }
}
