//! AMQP 0-9-1 on the server.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use lepus_shards::runtime::{Placement, ShardOptions};
use lepus_shards::shard::Shard;
use lepus_shards::topology::Writer;
use lepus_shards::{ConnectionId, Durability};

use super::broker::{Broker, ServerError};
use super::message_log::LogSettings;
use super::protocol::{Disposition, Protocol};
use super::surroundings::Surroundings;
use super::{recovery, store};
use crate::amqp::{self, Credentials, Front, FrontConfig, HasFront};
use crate::boot::ServerPlan;
use crate::config::{self, Settings};

/// Runs the broker as planned, with AMQP on all its listening sockets, until it has been asked to
/// stop and has drained.
///
/// # Errors
/// [`ServerError`]; before [`ServerPlan::on_ready`] was called, nothing has been served.
pub fn run(plan: ServerPlan) -> Result<(), ServerError> {
    let settings = plan.settings;
    let shards = plan.cpus.len();
    let (mut writer, changes) =
        Writer::restore(shards, plan.rows, &settings.default_vhost, fastrand::Rng::new())?;
    // Only to tell starts apart.
    let (epoch, mut store) = (plan.boot_epoch as u32, plan.store);
    // Where queues are comes first: their messages follow, now or at the next start.
    store::write_now(&mut store, writer.take_store_writes())?;
    for (vhost, name) in writer.topology().vhosts() {
        if writer.topology().is_traced(vhost) {
            tracing::warn!(vhost = %name, "what is published and delivered here is traced: `lepus trace off` ends it");
        }
    }
    let queues = recovery::durable_queues(&changes);
    let logs = recovery::recover_logs(&plan.data_dir, shards, epoch, &log_settings(&settings), &queues)?;
    let broker = Broker {
        shards: plan.cpus.into_iter().map(Placement::Cpu).collect(),
        options: ShardOptions { spin_before_park: settings.spin_before_park, ..ShardOptions::default() },
        listeners: plan.listeners,
        changes,
        writer,
        store,
        durability: durability(settings.durability),
        logs,
        epoch,
        memory_per_shard_bytes: settings.memory_per_shard_bytes,
        consumer_timeout_ms: settings.consumer_timeout_ms,
        write_stall_timeout_ms: settings.write_stall_timeout_ms,
        stall_report_ms: settings.stall_report_ms,
        shutdown: plan.shutdown,
        pulse: plan.pulse,
        inquiry: plan.inquiry,
        on_ready: plan.on_ready,
    };
    let authenticate = Arc::new(Credentials {
        user: settings.default_user.clone(),
        password: settings.default_pass.clone(),
        loopback_users: settings.loopback_users.clone(),
    });
    broker.run(move |_| Front::new(front_config(&settings, authenticate)))
}

/// How the shards' logs are kept. There is one also if messages are in memory only: for queues that ask
/// for more, and for what memory has no room for.
fn log_settings(settings: &Settings) -> LogSettings {
    let sync = settings.durability == config::Durability::Fsync;
    let (segment_bytes, free_limit_bytes) = (settings.segment_bytes, settings.disk_free_limit_bytes);
    let commit_delay_max_ms = settings.commit_delay_max_ms;
    LogSettings { sync, segment_bytes, free_limit_bytes, commit_delay_max_ms }
}

fn durability(configured: config::Durability) -> Durability {
    match configured {
        config::Durability::Fsync => Durability::Fsync,
        config::Durability::Os => Durability::Os,
        config::Durability::Memory => Durability::Memory,
    }
}

fn front_config(settings: &Settings, authenticate: Arc<Credentials>) -> FrontConfig {
    FrontConfig {
        channel_max: settings.channel_max,
        frame_max: settings.frame_max_bytes,
        consumers_per_channel_max: settings.consumers_per_channel_max as usize,
        heartbeat_s: settings.heartbeat_s,
        max_message_bytes: settings.max_message_bytes,
        handshake_timeout_ms: settings.handshake_timeout_ms,
        write_stall_timeout_ms: settings.write_stall_timeout_ms,
        // Half-received bodies get a quarter of what messages may take; one may go past that.
        assembly_budget_bytes: settings.memory_per_shard_bytes / 4,
        product: settings.product.clone(),
        version: settings.version.clone(),
        cluster_name: cluster_name(),
        authenticate,
    }
}

/// `lepus@` and the host's name, as tools expect a cluster of one node to be called.
fn cluster_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => "lepus".to_owned(),
        host => format!("lepus@{host}"),
    }
}

impl HasFront for Surroundings<Front> {
    fn front(&mut self) -> &mut Front {
        &mut self.front
    }
}

impl Protocol for Front {
    fn accept(&mut self, peer: SocketAddr, local: SocketAddr, now_ms: u64) -> u32 {
        Front::accept(self, peer, local, now_ms)
    }

    fn receive(shard: &mut Shard, around: &mut Surroundings<Front>, slot: u32, bytes: &[u8]) {
        amqp::receive(shard, around, slot, bytes);
    }

    fn resume(shard: &mut Shard, around: &mut Surroundings<Front>) {
        amqp::resume(shard, around);
    }

    fn disconnected(shard: &mut Shard, around: &mut Surroundings<Front>, slot: u32) {
        amqp::disconnected(shard, around, slot);
    }

    fn tick(shard: &mut Shard, around: &mut Surroundings<Front>, now_ms: u64) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        around.front.set_unix_time(unix.map_or(0, |since| since.as_secs()));
        amqp::tick(shard, around, now_ms);
    }

    fn shutdown(shard: &mut Shard, around: &mut Surroundings<Front>, reason: &str) {
        amqp::shutdown(shard, around, reason);
    }

    fn pending(&mut self, slot: u32) -> &[u8] {
        self.output(slot).pending()
    }

    fn written(&mut self, slot: u32, count: usize) {
        self.output(slot).advance(count);
        self.wrote(slot);
    }

    fn next_dirty(&mut self) -> Option<u32> {
        Front::next_dirty(self)
    }

    fn disposition(&self, slot: u32) -> Disposition {
        match Front::disposition(self, slot) {
            amqp::Disposition::Open => Disposition::Keep,
            amqp::Disposition::FlushThenClose => Disposition::CloseWhenWritten,
            amqp::Disposition::CloseNow => Disposition::CloseNow,
        }
    }

    fn wants_input(&self, slot: u32) -> bool {
        Front::wants_input(self, slot)
    }

    fn connection_id(&self, slot: u32) -> Option<ConnectionId> {
        Front::connection_id(self, slot)
    }
}
