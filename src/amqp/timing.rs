//! Heartbeats, dead peers, and everything that must be done by a certain time.
//!
//! Connections are looked at in turn, a few at each tick, each about twice a second: no timer of its
//! own, and no burst of work for many connections at once.

use lepus_shards::shard::Shard;

use super::codec::HEARTBEAT_FRAME;
use super::failure::{Failure, RESOURCE_ERROR};
use super::front::{AssemblyTurn, HasFront};
use super::limits::{ASSEMBLY_SILENCE_MS, ASSEMBLY_TOLD_MS, ASSEMBLY_TURN_MS};
use super::peer::{Pause, Peer, Phase};
use super::session;

/// How long one look at all connections takes, in milliseconds.
const SWEEP_MS: u64 = 500;

enum Due {
    Nothing,
    Heartbeat,
    /// The client is gone, does not read, or has not done in time what it must.
    Cut(&'static str),
}

/// To be called often, at most every 10 ms and at least every 100 ms; milliseconds since any moment.
pub fn tick<E: HasFront>(shard: &mut Shard, fx: &mut E, now_ms: u64) {
    let front = fx.front();
    let passed_ms = now_ms.saturating_sub(front.now_ms).max(1);
    front.now_ms = front.now_ms.max(now_ms);
    watch_assembly(shard, fx, now_ms);
    let front = fx.front();
    let slots = front.peers.capacity().max(1);
    let count = (slots as u64 * passed_ms).div_ceil(SWEEP_MS).min(slots as u64) as usize;
    let from = front.sweep_from;
    front.sweep_from = (from + count) % slots;
    for index in from..from + count {
        let slot = (index % slots) as u32;
        let stall_ms = fx.front().config.write_stall_timeout_ms;
        let wants_input = match fx.front().peers.contains(slot as usize) {
            true => fx.front().wants_input(slot),
            false => continue,
        };
        match look(fx.front().peer(slot), now_ms, stall_ms, wants_input) {
            Due::Nothing => {}
            Due::Heartbeat => fx.front().out(slot).extend_from_slice(&HEARTBEAT_FRAME),
            Due::Cut(why) => {
                tracing::info!(slot, why, "connection cut off");
                session::cut(shard, fx, slot);
            }
        }
    }
}

/// Sees that a body for which others wait gets complete, and that they know why they wait.
fn watch_assembly<E: HasFront>(shard: &mut Shard, fx: &mut E, now_ms: u64) {
    let front = fx.front();
    let Some(AssemblyTurn { slot, since_ms, .. }) = front.assembly_turn else { return };
    if front.assembly_waiting.is_empty() {
        return;
    }
    let peer = front.peer(slot);
    let silent_ms = now_ms.saturating_sub(peer.last_read_ms.max(since_ms));
    let silent = peer.pause.is_none() && silent_ms >= ASSEMBLY_SILENCE_MS;
    if silent || now_ms.saturating_sub(since_ms) >= ASSEMBLY_TURN_MS {
        let text = "memory for incomplete bodies is short, and this one's body does not get complete";
        return session::fail_connection(shard, fx, slot, &Failure::new(RESOURCE_ERROR, text, (60, 40)));
    }
    if now_ms.saturating_sub(since_ms) >= ASSEMBLY_TOLD_MS {
        for index in 0..front.assembly_waiting.len() {
            let waiting = front.assembly_waiting[index];
            if front.peers.get(waiting as usize).is_some_and(|peer| peer.pause == Some(Pause::Assembly)) {
                front.tell_blocked(waiting, true);
            }
        }
    }
}

fn look(peer: &mut Peer, now_ms: u64, stall_ms: u64, wants_input: bool) -> Due {
    if peer.phase == Phase::Dead {
        return Due::Nothing;
    }
    if peer.deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now_ms) {
        return Due::Cut("it took too long to shake hands or to close");
    }
    if peer.output.pending().is_empty() {
        peer.stall = None;
    } else {
        let written = peer.output.written();
        match peer.stall {
            Some((then, since_ms)) if then == written => {
                if now_ms - since_ms >= stall_ms {
                    return Due::Cut("it does not read");
                }
            }
            _ => peer.stall = Some((written, now_ms)),
        }
    }
    if peer.heartbeat_ms == 0 || !peer.is_running() {
        return Due::Nothing;
    }
    // One that is not read cannot show that it lives.
    if wants_input && now_ms.saturating_sub(peer.last_read_ms) >= 2 * peer.heartbeat_ms {
        return Due::Cut("no heartbeat for two intervals");
    }
    if !wants_input {
        peer.last_read_ms = now_ms;
    }
    let quiet_ms = now_ms.saturating_sub(peer.last_write_ms);
    if quiet_ms >= peer.heartbeat_ms / 2 && peer.output.pending().is_empty() {
        return Due::Heartbeat;
    }
    Due::Nothing
}
