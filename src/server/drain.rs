//! How the broker stops: every shard closes its connections, goes on working until all shards have
//! done so, and then ends. One value for each shard; they agree through [`DrainShared`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lepus_shards::runtime::Doorbell;
use tracing::error;

use crate::boot::ShutdownSignal;

use super::limits::{DRAIN_MS, LINGER_MS};

/// What the shards' drains share.
pub(super) struct DrainShared {
    pub signal: Arc<ShutdownSignal>,
    bells: Vec<Arc<Doorbell>>,
    /// Shards that still have connections, or batches for others.
    unfinished: AtomicUsize,
    /// Why the broker stops, if something broke.
    failure: Mutex<Option<String>>,
}

impl DrainShared {
    pub fn new(signal: Arc<ShutdownSignal>, bells: Vec<Arc<Doorbell>>) -> DrainShared {
        let unfinished = AtomicUsize::new(bells.len());
        DrainShared { signal, bells, unfinished, failure: Mutex::new(None) }
    }

    /// Makes every shard look.
    pub fn ring_all(&self) {
        self.bells.iter().for_each(|bell| bell.ring());
    }

    /// Why the broker stopped, if something broke.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One shard's way to its end.
pub(super) struct Drain {
    shared: Arc<DrainShared>,
    /// Since when the shard closes its connections.
    since: Option<Instant>,
    finished: bool,
}

impl Drain {
    pub fn new(shared: Arc<DrainShared>) -> Drain {
        Drain { shared, since: None, finished: false }
    }

    /// True once, when the broker has been asked to stop.
    pub fn begin_when_asked(&mut self) -> bool {
        let begins = self.since.is_none() && self.shared.signal.is_requested();
        if begins {
            self.since = Some(Instant::now());
        }
        begins
    }

    pub fn is_stopping(&self) -> bool {
        self.since.is_some()
    }

    /// Clients have had their time.
    pub fn is_overdue(&self) -> bool {
        self.has_lasted(DRAIN_MS - LINGER_MS)
    }

    fn has_lasted(&self, limit_ms: u64) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= Duration::from_millis(limit_ms))
    }

    /// Stops the broker because it cannot go on. The first reason counts.
    pub fn fail(&mut self, reason: String) {
        let mut failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            error!("{reason}");
            *failure = Some(reason);
            drop(failure);
            self.shared.signal.request();
        }
    }

    /// For a shard that could not start: stops the broker, and is done itself.
    pub fn give_up(mut self, reason: String) {
        self.fail(reason);
        self.finish();
    }

    fn finish(&mut self) {
        self.finished = true;
        if self.shared.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.ring_all();
        }
    }

    /// Whether all shards are done, given whether this one is. Shards that are done go on serving the
    /// others until then.
    pub fn ended(&mut self, idle: bool) -> bool {
        if !self.is_stopping() {
            return false;
        }
        if !self.finished && (idle || self.has_lasted(DRAIN_MS)) {
            self.finish();
        }
        self.finished && self.shared.unfinished.load(Ordering::Acquire) == 0
    }
}
