//! Somebody wants to know how the shards do (SIGUSR1).
//!
//! Shared by the signal thread, which asks, and the shards, which look at the count in each turn and tell their
//! timings to the log when it has changed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

type Callback = Box<dyn Fn() + Send + Sync>;

/// See the module.
#[derive(Default)]
pub struct Inquiry {
    count: AtomicU64,
    wake: Mutex<Option<Callback>>,
}

impl Inquiry {
    /// Nobody has asked.
    pub fn new() -> Inquiry {
        Inquiry::default()
    }

    /// How often somebody has asked.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Asks all shards.
    pub fn ask(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(wake) = &*self.wake.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    /// Registers what makes every shard turn.
    pub fn on_ask(&self, wake: Callback) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }
}

impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inquiry").field("count", &self.count()).finish_non_exhaustive()
    }
}
