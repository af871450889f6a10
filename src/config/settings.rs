//! The settled values that server and protocol work with. Built once at boot and shared by all shards,
//! read-only; nothing in it needs parsing, looking up or asking the host any more.

use std::time::Duration;

use super::Durability;

/// What the running broker must know of its configuration. Every field is within the bounds that the
/// key of the same name documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The user that exists from the first start on.
    pub default_user: String,
    /// That user's password.
    pub default_pass: String,
    /// Users that may connect from this host's loopback addresses only.
    pub loopback_users: Vec<String>,
    /// The vhost that exists from the first start on.
    pub default_vhost: String,
    /// Heartbeat interval offered in `connection.tune`, in seconds; 0 offers none.
    pub heartbeat_s: u16,
    /// Most channels of a connection, offered in `connection.tune`.
    pub channel_max: u16,
    /// Largest frame, header and end byte included, offered in `connection.tune`.
    pub frame_max_bytes: u32,
    /// Most consumers of a channel; 0 is no bound.
    pub consumers_per_channel_max: u32,
    /// Largest body of a message.
    pub max_message_bytes: u64,
    /// Message memory of *one* shard: the configured budget divided by the number of shards.
    pub memory_per_shard_bytes: u64,
    /// What a confirm of a persistent message means.
    pub durability: Durability,
    /// Size of a file of a shard's log, in bytes.
    pub segment_bytes: u64,
    /// How long a commit waits for more to go out with it; 0 is not at all.
    pub commit_delay_max_ms: u64,
    /// Free bytes on the disk of the data directory below which publishers are blocked.
    pub disk_free_limit_bytes: u64,
    /// How long a connection may take from accept to `connection.open`.
    pub handshake_timeout_ms: u64,
    /// How long a delivery may stay unacked, where its queue does not say; 0 is for ever.
    pub consumer_timeout_ms: u64,
    /// How long a connection may leave output unread before it is cut off.
    pub write_stall_timeout_ms: u64,
    /// How long a turn of a shard may take before it is logged; 0 is for ever.
    pub stall_report_ms: u64,
    /// How long an idle shard spins before it sleeps: as configured, or as the profile has it.
    pub spin_before_park: Duration,
    /// `product` in the server properties.
    pub product: String,
    /// `version` in the server properties.
    pub version: String,
}
