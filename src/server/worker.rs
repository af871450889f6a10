//! What one shard's thread does: reads sockets into the protocol, and turn by turn carries batches,
//! confirms and output to where they belong. What it does with a socket is in [`sockets`].
//!
//! Many reading tasks run between two turns; a turn then sends what they all have caused, in one batch
//! for each peer and one write for each connection. That is all the batching there is: it grows with
//! the load and needs no timer.
//!
//! The worker stands in a `RefCell` that no task holds over an await. Nothing in here awaits.

mod sockets;

use std::cell::RefCell;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use lepus_shards::mesh::MeshPort;
use lepus_shards::runtime::{Listener, Notify};
use lepus_shards::shard::{Batch, LogSequence, Shard};
use tracing::{error, warn};

use super::alarm::Alarm;
use super::connection::Connection;
use super::drain::Drain;
use super::limits::{
    DEADLINE_PAUSE_MS, READ_BUFFER_BYTES, RUBBLE_PAUSE_US, RUBBLE_STINT_US, TICK_BUSY, TICK_IDLE,
};
use super::message_log::MessageLog;
use super::protocol::Protocol;
use super::surroundings::Surroundings;
use super::timings::{Loudness, Stage, Timings};
use crate::boot::{Inquiry, Pulse};

/// A shard's worker and the wake-up of its pump, for all tasks of the shard.
pub(super) struct Home<P> {
    pub worker: RefCell<Worker<P>>,
    pub wake: Rc<Notify>,
}

/// An accepted connection on its way to its shard.
pub(super) type Handover = (TcpStream, SocketAddr);

/// What a worker is made of.
pub(super) struct WorkerParts<P> {
    pub shard: Shard,
    pub surroundings: Surroundings<P>,
    pub port: MeshPort<Batch>,
    pub handovers: rtrb::Consumer<Handover>,
    /// Time zero of all shards.
    pub started: Instant,
    pub write_stall_timeout_ms: u64,
    /// Connections of the whole broker.
    pub open: Arc<AtomicUsize>,
    pub drain: Drain,
    pub pulse: Arc<Pulse>,
    pub inquiry: Arc<Inquiry>,
    /// Turns that take longer are logged; 0: none is.
    pub stall_report_ms: u64,
}

/// What a turn leaves to be done by tasks.
#[derive(Default)]
pub(super) struct Turn {
    /// There is more to do right now.
    pub again: bool,
    /// A commit is about to end.
    pub commit_ends_soon: bool,
    /// New connections, to be read.
    pub arrived: Vec<Rc<Connection>>,
    /// Connections whose sockets take no more output for now.
    pub write_blocked: Vec<Rc<Connection>>,
    /// A turn is due after these times, whether or not anything happens.
    pub due_in: [Option<Duration>; 3],
    /// The broker has stopped.
    pub ended: bool,
}

/// See the module.
pub(super) struct Worker<P> {
    shard: Shard,
    around: Surroundings<P>,
    port: MeshPort<Batch>,
    handovers: rtrb::Consumer<Handover>,
    wake: Rc<Notify>,
    started: Instant,
    write_stall_timeout_ms: u64,
    open: Arc<AtomicUsize>,
    drain: Drain,
    pulse: Arc<Pulse>,
    inquiry: Arc<Inquiry>,
    /// Inquiries that were answered.
    answered: u64,
    timings: Timings,
    /// When the clock's next tick is due.
    tick_due_us: Option<u64>,
    /// By slot.
    connections: Vec<Option<Rc<Connection>>>,
    connected: usize,
    /// One for all sockets of the shard.
    read_buffer: Box<[u8]>,
    committed: LogSequence,
    /// Connections to be written in the next turn; the buffer is used again.
    dirty: Vec<u32>,
    /// Connections whose reading task waits to be resumed.
    paused: Vec<Rc<Connection>>,
    /// Connections that have, or had, a deadline.
    watched: Vec<Rc<Connection>>,
    /// Listening sockets, to be closed when the broker stops. On the accepting shard.
    listeners: Vec<Rc<Listener>>,
    /// Something has happened since the last tick.
    active: bool,
    /// The clock's work was too much for one step.
    more_due: bool,
    /// For the commit that is held back.
    commit_alarm: Alarm,
    /// When the clock's work was last done.
    ticked_ms: u64,
    deadline_alarm: Alarm,
    /// When the next slice of what purged and deleted queues had may be carried off.
    rubble_due_us: u64,
    rubble_alarm: Alarm,
}

impl<P: Protocol> Home<P> {
    pub fn new(parts: WorkerParts<P>) -> Rc<Home<P>> {
        let wake = Rc::new(Notify::new());
        let worker = Worker {
            shard: parts.shard,
            around: parts.surroundings,
            port: parts.port,
            handovers: parts.handovers,
            wake: Rc::clone(&wake),
            started: parts.started,
            write_stall_timeout_ms: parts.write_stall_timeout_ms,
            open: parts.open,
            drain: parts.drain,
            pulse: parts.pulse,
            answered: parts.inquiry.count(),
            inquiry: parts.inquiry,
            timings: Timings::new(parts.stall_report_ms),
            tick_due_us: None,
            connections: Vec::new(),
            connected: 0,
            read_buffer: vec![0; READ_BUFFER_BYTES].into_boxed_slice(),
            committed: 0,
            dirty: Vec::new(),
            paused: Vec::new(),
            watched: Vec::new(),
            listeners: Vec::new(),
            active: false,
            more_due: false,
            commit_alarm: Alarm::default(),
            ticked_ms: 0,
            deadline_alarm: Alarm::default(),
            rubble_due_us: 0,
            rubble_alarm: Alarm::default(),
        };
        Rc::new(Home { worker: RefCell::new(worker), wake })
    }
}

impl<P: Protocol> Worker<P> {
    fn now_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn now_ms(&self) -> u64 {
        self.now_us() / 1_000
    }

    /// One turn: everything that has come in since the last one goes where it belongs.
    pub fn turn(&mut self) -> Turn {
        self.wake.clear();
        self.pulse.beat(self.shard.id().0 as usize);
        let mut turn = Turn::default();
        let began_us = self.enter(Stage::Mesh);
        let now_ms = began_us / 1_000;
        self.take_handovers(&mut turn);
        let took = !turn.arrived.is_empty() | self.take_batches(began_us);
        self.active |= took;
        if took {
            self.enter(Stage::Control);
        } else {
            self.timings.rounds.rename(Stage::Control);
        }
        self.take_persisted();
        self.stop_when_asked();
        if self.more_due || self.deadline_due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            self.enter(Stage::Clock);
            self.ticked_ms = now_ms;
            self.more_due = self.shard.tick(&mut self.around);
            self.enter(Stage::Control);
        }
        self.carry_off(began_us);
        P::resume(&mut self.shard, &mut self.around);
        self.take_committed();
        self.enter(Stage::Queues);
        let blocked = self.shard.publishing_blocked();
        self.shard.end_turn(&mut self.around);
        // Publishers that waited for memory go on in the next turn.
        turn.again |= blocked && !self.shard.publishing_blocked();
        self.write_dirty(&mut turn);
        let ended_us = self.now_us();
        self.around.outboxes.send(&mut self.port, ended_us);
        self.finish_round(ended_us);
        self.unpause();
        self.more_due |= self.shard.has_more_due() || self.shard.has_more_to_page();
        let mut written = true;
        if let Some(log) = &self.around.log {
            (written, turn.commit_ends_soon) = (log.is_idle(), log.is_about_to_commit());
            turn.again |= log.has_more_to_do();
            turn.due_in[0] = self.commit_due_in();
        }
        turn.due_in[1] = self.deadline_due_in();
        if self.shard.has_rubble() {
            turn.again |= self.rubble_due_us <= ended_us;
            turn.due_in[2] = self.rubble_alarm.set(self.rubble_due_us, ended_us);
        }
        turn.again |= self.more_due || !self.dirty.is_empty() || self.port.has_arrivals();
        turn.ended = self.drain.ended(self.connected == 0 && self.around.outboxes.is_empty() && written);
        turn
    }

    /// Takes the batches of other shards. True if there were any.
    fn take_batches(&mut self, now_us: u64) -> bool {
        let Worker { port, shard, around, timings, .. } = self;
        let taken = port.drain(|from, _, batch| {
            timings.mesh.record(now_us.saturating_sub(batch.sent_us));
            shard.receive_batch(around, from, batch);
        });
        taken > 0
    }

    /// The shard is busy with this from now on. Gives the time.
    fn enter(&mut self, stage: Stage) -> u64 {
        self.enter_for(stage, None)
    }

    fn enter_for(&mut self, stage: Stage, slot: Option<u32>) -> u64 {
        let now_us = self.now_us();
        self.timings.rounds.enter(stage, slot, now_us);
        self.shard.set_time_us(now_us);
        if let Some(log) = &mut self.around.log {
            log.set_time(now_us / 1_000);
        }
        now_us
    }

    fn finish_round(&mut self, now_us: u64) {
        if let Some(stall) = self.timings.rounds.finish(now_us) {
            let connection = stall.slot().and_then(|slot| self.connections.get(slot as usize)?.as_ref());
            let peer = connection.map(|connection| tracing::field::display(connection.peer));
            warn!(shard = self.shard.id().0, peer, "{stall}");
        }
        let asked = self.inquiry.count();
        if self.answered != asked {
            self.answered = asked;
            self.tell_timings(Loudness::Asked);
        }
    }

    /// Tells the log how the shard has done since the last time.
    pub fn tell_timings(&mut self, loudness: Loudness) {
        let (waits, now_us) = (self.shard.take_waits(), self.now_us());
        self.timings.tell(self.shard.id(), &waits, loudness, now_us);
    }

    /// When a commit that is being held back is to begin, if no turn is due then already.
    fn commit_due_in(&mut self) -> Option<Duration> {
        let due_ms = self.around.log.as_ref()?.commit_due_ms()?;
        let now_us = self.now_us();
        self.commit_alarm.set(due_ms * 1_000, now_us)
    }

    /// When the next deadline is to be looked at.
    fn deadline_due_ms(&self) -> Option<u64> {
        Some(self.shard.next_deadline_ms()?.max(self.ticked_ms + DEADLINE_PAUSE_MS))
    }

    /// When that is, if neither a turn nor a tick comes before it anyway.
    fn deadline_due_in(&mut self) -> Option<Duration> {
        let (due_us, now_us) = (self.deadline_due_ms()?.saturating_mul(1_000), self.now_us());
        if due_us > now_us + TICK_IDLE.as_micros() as u64 {
            return None;
        }
        self.deadline_alarm.set(due_us, now_us)
    }

    /// Carries off what purged and deleted queues had, for a stint, if others have had their time.
    fn carry_off(&mut self, now_us: u64) {
        if !self.shard.has_rubble() || now_us < self.rubble_due_us {
            return;
        }
        let until_us = self.enter(Stage::Clock) + RUBBLE_STINT_US;
        while self.shard.has_rubble() && self.now_us() < until_us {
            self.shard.carry_off(&mut self.around);
        }
        self.rubble_due_us = self.enter(Stage::Control) + RUBBLE_PAUSE_US;
    }

    /// The commit that was about to end is still to be waited for, and no other shard has sent something.
    pub fn waits_for_commit(&mut self) -> bool {
        !self.port.has_arrivals()
            && self.around.log.as_mut().is_some_and(MessageLog::is_still_about_to_commit)
    }

    /// Whether the pump may sleep; if so, whoever has something for this shard wakes it.
    pub fn try_park(&mut self) -> bool {
        let outboxes = &self.around.outboxes;
        self.port.try_park(|port| outboxes.can_send(port))
    }

    /// The pump is awake.
    pub fn unpark(&mut self) {
        self.port.unpark();
    }

    /// What is due by the clock. Returns when it is to come again.
    pub fn tick(&mut self) -> Duration {
        let now_us = self.enter(Stage::Clock);
        if let Some(due_us) = self.tick_due_us {
            self.timings.lag.record(now_us.saturating_sub(due_us));
        }
        let now_ms = now_us / 1_000;
        self.ticked_ms = now_ms;
        P::tick(&mut self.shard, &mut self.around, now_ms);
        self.more_due |= self.shard.tick(&mut self.around);
        self.cut_off_late(now_ms);
        if self.drain.is_overdue() {
            let all: Vec<_> = self.connections.iter().flatten().cloned().collect();
            all.iter().for_each(|connection| self.cut_off(connection));
        }
        let pause = if std::mem::take(&mut self.active) { TICK_BUSY } else { TICK_IDLE };
        self.tick_due_us = Some(self.now_us() + pause.as_micros() as u64);
        pause
    }

    /// Listening sockets to be closed when the broker stops.
    pub fn add_listener(&mut self, listener: Rc<Listener>) {
        self.listeners.push(listener);
    }

    /// Whether the broker is stopping.
    pub fn is_stopping(&self) -> bool {
        self.drain.is_stopping()
    }

    fn stop_when_asked(&mut self) {
        if self.drain.begin_when_asked() {
            self.listeners.drain(..).for_each(|listener| listener.stop());
            P::shutdown(&mut self.shard, &mut self.around, "broker is shutting down");
            if let Some(log) = &mut self.around.log {
                log.flush();
            }
        }
    }

    /// Confirms what the log has, and gives the disk more to do.
    fn take_committed(&mut self) {
        let now_us = self.enter(Stage::Log);
        let frontier = match &mut self.around.log {
            None => self.around.appended,
            Some(log) => match log.poll(now_us / 1_000) {
                Ok(frontier) => {
                    self.timings.commits.appended(self.around.appended, self.timings.rounds.began_us());
                    self.timings.commits.committed(frontier, now_us);
                    let (backlog_bytes, short_of_space) = (log.backlog_bytes(), log.short_of_space());
                    self.shard.note_log(backlog_bytes, log.is_behind_with_settlements(), short_of_space);
                    frontier
                }
                Err(failed) => return self.drain.fail(failed.to_string()),
            },
        };
        if frontier > self.committed {
            self.committed = frontier;
            self.shard.committed(&mut self.around, frontier);
        }
        if let Some(log) = &mut self.around.log {
            let (arrived, resolved) = (log.take_arrived(), log.take_resolved());
            self.shard.arrived(&mut self.around, arrived);
            self.shard.resolved(&mut self.around, resolved);
        }
    }

    fn take_persisted(&mut self) {
        let Some(persistence) = &mut self.around.persistence else { return };
        let mut versions = Vec::new();
        let failed = loop {
            match persistence.persisted() {
                Ok(Some(version)) => versions.push(version),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        for version in versions {
            self.shard.persisted(&mut self.around, version);
        }
        if let Some(error) = failed {
            self.drain.fail(error.to_string());
        }
    }
}

impl<P> Drop for Worker<P> {
    fn drop(&mut self) {
        if self.connected > 0 {
            error!(connections = self.connected, "stopped with connections still open");
        }
    }
}
