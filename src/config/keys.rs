//! The table of keys. To add a key, add an entry; there is nothing else to do.
//!
//! An entry is: documentation (the user reads it in `lepus config --print-default`), name, field, type,
//! default, what is accepted in words, and the check behind those words where the type allows more.
//! Keys without a section come first, and the keys of a section stand together. Units come last in a name.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::values::{
    CpuList, Durability, LogFilter, MemoryBudget, Misfit, Profile, Raw, Setting, Shown, Spin,
};

/// One row of the table.
pub(super) struct Key {
    /// With its section: `amqp.heartbeat_s`.
    pub name: &'static str,
    /// Lines, each with the space that follows `///`.
    pub doc: &'static [&'static str],
    /// What is accepted, in words that follow "must be".
    pub accepts: &'static str,
    /// Reads a value into its field.
    pub set: fn(&mut Config, &Raw<'_>) -> Result<(), Misfit>,
    /// The field's value as TOML.
    pub show: fn(&Config) -> Shown,
}

impl Key {
    /// `amqp` in `amqp.heartbeat_s`.
    pub fn section(&self) -> Option<&'static str> {
        self.name.split_once('.').map(|(section, _)| section)
    }

    /// `heartbeat_s` in `amqp.heartbeat_s`.
    pub fn name_in_section(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, name)| name)
    }

    /// `LEPUS_AMQP_HEARTBEAT_S` for `amqp.heartbeat_s`.
    pub fn variable(&self) -> String {
        format!("LEPUS_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }
}

macro_rules! keys {
    ($(
        $(#[doc = $doc:literal])+
        $name:literal $field:ident: $type:ty = $default:expr, $accepts:literal $(, if $check:expr)?;
    )+) => {
        /// The configuration, one field for each key.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $( $(#[doc = $doc])+ pub $field: $type, )+
        }

        impl Default for Config {
            fn default() -> Config {
                Config { $( $field: $default, )+ }
            }
        }

        /// All keys, in the order in which they are printed.
        pub(super) const KEYS: &[Key] = &[ $( Key {
            name: $name,
            doc: &[$($doc),+],
            accepts: $accepts,
            set: |config, raw| {
                let value = <$type as Setting>::read(raw)?;
                $(
                    let check: fn(&$type) -> bool = $check;
                    if !check(&value) {
                        return Err(Misfit);
                    }
                )?
                config.$field = value;
                Ok(())
            },
            show: |config| config.$field.show(),
        } ),+ ];
    };
}

keys! {
    /// Where everything that outlives the process is kept. Used by one process at a time.
    "data_dir" data_dir: PathBuf = PathBuf::from("./lepus-data"),
        "the path of a directory", if |path| !path.as_os_str().is_empty();

    /// Addresses to accept AMQP connections on. Port 0 takes a free port. An IPv6 address takes IPv6
    /// connections only: for both, list 0.0.0.0:5672 and [::]:5672.
    "listen" listen: Vec<SocketAddr> = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 5672))],
        "one or more of ADDRESS:PORT, for instance 127.0.0.1:5672 or [::1]:5672", if |list| !list.is_empty();

    /// How many shards (threads, each pinned to a core) to run. By default one for each CPU that the
    /// process may use. Not together with `cpus`.
    "shards" shards: Option<usize> = None,
        "an integer from 1 to 1024", if |shards| shards.is_none_or(|n| (1..=lepus_shards::limits::SHARDS_MAX).contains(&n));

    /// On which CPUs to run shards, one on each. Not together with `shards`.
    "cpus" cpus: Option<CpuList> = None,
        "a list of CPU numbers and ranges, for instance 0-3,8";

    /// What else runs on this machine. `shared`: other programs; an idle shard sleeps, and spins only for moments
    /// when it is busy. `dedicated`: nothing that matters; shards keep their CPUs busy, and nothing has to wake them. Keys of `[runtime]` win over it.
    "profile" profile: Profile = Profile::Shared,
        "one of dedicated and shared";

    /// What a confirm of a persistent message in durable queues means. `fsync`: it is on stable storage
    /// and survives a power loss. `os`: the kernel has it, and it survives a crash of the broker.
    /// `memory`: the broker has it; messages do not survive a restart then, definitions of durable
    /// exchanges, queues and bindings do. A queue's argument `x-durability` says it for that queue.
    "durability" durability: Durability = Durability::Fsync,
        "one of fsync, os and memory";

    /// Size of the files that a shard's log is made of, in MiB. Two are made ahead for each shard.
    "segment_mib" segment_mib: u64 = 64,
        "an integer from 1 to 1024", if |n| (1..=1024).contains(n);

    /// How long a write to the disk may wait for more messages to go out with it, in milliseconds. At 0 the
    /// next write begins when the last one is done, which groups messages too. More makes confirms later and
    /// writes fewer: for disks that are slow at many small writes.
    "commit_delay_max_ms" commit_delay_max_ms: u64 = 0,
        "an integer from 0 to 1000", if |n| *n <= 1000;

    /// Free space on the disk of `data_dir`, in MiB, below which publishers are blocked until there is
    /// more.
    "disk_free_limit_mib" disk_free_limit_mib: u64 = 256,
        "an integer from 0 to 1073741824", if |n| *n <= 1 << 30;

    /// How much memory messages may take, all shards together, before publishers are blocked. Each
    /// shard has an equal part. A percentage is of the host's or the container's memory.
    "memory_budget" memory_budget: MemoryBudget = MemoryBudget::Percent(40),
        "a percentage from 1% to 90%, or an amount of at least 16 MiB in bytes, KiB, MiB or GiB",
        if |budget| budget.is_sensible();

    /// What to log on standard error: a level, or levels for modules.
    "log_level" log_level: LogFilter = LogFilter::default(),
        "one of off, error, warn, info, debug and trace, or a filter such as warn,lepus=debug";

    /// The user that a new broker has.
    "auth.default_user" default_user: String = "guest".to_owned(),
        "a name of 1 to 255 bytes", if |name| is_name(name);

    /// That user's password. Change it before you take the user out of `loopback_users`.
    "auth.default_pass" default_pass: String = "guest".to_owned(),
        "text of 1 to 255 bytes", if |name| is_name(name);

    /// Users that may connect from a loopback address only.
    "auth.loopback_users" loopback_users: Vec<String> = vec!["guest".to_owned()],
        "a list of user names, which may be empty", if |names| names.iter().all(|name| is_name(name));

    /// The vhost that a new broker has, and that the default user may use.
    "auth.default_vhost" default_vhost: String = "/".to_owned(),
        "a name of 1 to 255 bytes", if |name| is_name(name);

    /// Interval of heartbeats offered to clients, in seconds; 0 offers none. A peer that is silent for two
    /// intervals is dead.
    "amqp.heartbeat_s" heartbeat_s: u16 = 60,
        "an integer from 0 to 65535";

    /// Most channels of one connection.
    "amqp.channel_max" channel_max: u16 = 2047,
        "an integer from 1 to 65535", if |n| *n >= 1;

    /// Most consumers of one channel; 0 is no bound.
    "amqp.consumers_per_channel_max" consumers_per_channel_max: u32 = 0,
        "an integer from 0 to 4294967295";

    /// Largest frame, in bytes. Larger bodies are split over frames.
    "amqp.frame_max_bytes" frame_max_bytes: u32 = 131_072,
        "an integer from 4096 to 16777216", if |n| (4096..=16 << 20).contains(n);

    /// Largest body of a message, in bytes.
    "amqp.max_message_bytes" max_message_bytes: u64 = 128 << 20,
        "an integer from 1 to 536870912", if |n| (1..=512 << 20).contains(n);

    /// How long a new connection may take to log in and open a vhost, in milliseconds.
    "amqp.handshake_timeout_ms" handshake_timeout_ms: u64 = 10_000,
        "an integer from 10 to 600000", if |n| (10..=600_000).contains(n);

    /// How long a delivery may stay unacked before its channel is closed, in milliseconds; 0 is for ever. A
    /// queue's `x-consumer-timeout` goes before it.
    "amqp.consumer_timeout_ms" consumer_timeout_ms: u64 = 1_800_000,
        "an integer from 0 to 315360000000", if |n| *n <= 315_360_000_000;

    /// How long a client may leave what was sent to it unread before it is cut off, in milliseconds.
    "amqp.write_stall_timeout_ms" write_stall_timeout_ms: u64 = 30_000,
        "an integer from 10 to 3600000", if |n| (10..=3_600_000).contains(n);

    /// The product name announced to clients. Some tools look for RabbitMQ here.
    "amqp.product" product: String = "Lepus".to_owned(),
        "text of 1 to 255 bytes", if |name| is_name(name);

    /// The version announced to clients.
    "amqp.version" version: String = env!("CARGO_PKG_VERSION").to_owned(),
        "text of 1 to 255 bytes", if |name| is_name(name);

    /// How long a shard that has nothing to do spins before it sleeps, in microseconds, provided that lately
    /// something came within that time. Waking up costs about 20 µs; spinning burns CPU, though it lets other
    /// programs run. By default what `profile` says: forever with `dedicated`, 50 with `shared`; 0 is never.
    "runtime.spin_before_park_us" spin_before_park_us: Option<Spin> = None,
        "an integer from 0 to 1000000, or \"forever\"";

    /// A turn of a shard that takes longer than this, in milliseconds, is logged with what took the time, at most
    /// once a second for each shard; 0 is never.
    "runtime.stall_report_ms" stall_report_ms: u64 = 5,
        "an integer from 0 to 60000", if |n| *n <= 60_000;
}

/// Names travel in AMQP short strings.
fn is_name(text: &str) -> bool {
    (1..=255).contains(&text.len())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_keys_share_an_environment_variable() {
        let variables: HashSet<String> = KEYS.iter().map(Key::variable).collect();
        assert_eq!(variables.len(), KEYS.len());
        assert!(!variables.contains("LEPUS_CONFIG"), "names the file");
    }

    #[test]
    fn sections_stand_together_and_behind_the_keys_that_have_none() {
        let sections: Vec<_> =
            KEYS.chunk_by(|a, b| a.section() == b.section()).map(|run| run[0].section()).collect();
        let distinct: HashSet<_> = sections.iter().collect();
        assert_eq!(distinct.len(), sections.len());
        assert_eq!(sections[0], None);
    }

    #[test]
    fn every_default_is_accepted_by_its_own_key() {
        for key in KEYS {
            if let Shown::Set(text) = (key.show)(&Config::default()) {
                let document = format!("value = {text}");
                let table = toml::de::DeTable::parse(&document).unwrap();
                let value = table.get_ref().values().next().unwrap().get_ref();
                let mut config = Config::default();
                assert!((key.set)(&mut config, &Raw::Toml(value)).is_ok(), "{}", key.name);
                assert_eq!(config, Config::default());
            }
        }
    }
}
