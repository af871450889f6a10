//! The request to stop: set by a signal, seen by every shard.
//!
//! Shared by the signal thread, which sets it, and the shards, which look at it when woken. It goes one
//! way only: once requested, it stays requested.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type Callback = Box<dyn Fn() + Send + Sync>;
type Report = Box<dyn Fn() -> String + Send + Sync>;

/// Tells everybody that the broker is to drain and stop.
#[derive(Default)]
pub struct ShutdownSignal {
    requested: AtomicBool,
    callbacks: Mutex<Vec<Callback>>,
    remaining: Mutex<Option<Report>>,
}

impl ShutdownSignal {
    /// A signal that nobody has given yet.
    pub fn new() -> ShutdownSignal {
        ShutdownSignal::default()
    }

    /// Whether the broker is to stop.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Asks the broker to stop and runs what [`Self::on_request`] registered. Later calls do nothing.
    pub fn request(&self) {
        let callbacks = {
            let mut callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock, so that a registration either sees the flag or is seen here.
            self.requested.store(true, Ordering::Release);
            std::mem::take(&mut *callbacks)
        };
        for callback in callbacks {
            callback();
        }
    }

    /// Runs the callback once when stopping is requested, on the requesting thread; at once, on this
    /// thread, when it already is. The callback wakes somebody (an eventfd) and does no work of its own.
    pub fn on_request(&self, callback: Callback) {
        let mut callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_requested() {
            drop(callbacks);
            callback();
        } else {
            callbacks.push(callback);
        }
    }

    /// Registers who can say, in a few words (`3 connections`), what still keeps the broker from
    /// stopping. Asked only when the time to drain is over.
    pub fn report_remaining(&self, report: Report) {
        *self.remaining.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    /// What still keeps the broker from stopping, if anybody can say.
    pub fn remaining(&self) -> Option<String> {
        self.remaining.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|report| report())
    }
}

impl fmt::Debug for ShutdownSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownSignal").field("requested", &self.is_requested()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn counter(signal: &ShutdownSignal) -> Arc<AtomicU32> {
        let calls = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&calls);
        signal.on_request(Box::new(move || {
            seen.fetch_add(1, Ordering::Relaxed);
        }));
        calls
    }

    #[test]
    fn a_callback_runs_once_however_often_stopping_is_requested() {
        let signal = ShutdownSignal::new();
        let calls = counter(&signal);
        assert!(!signal.is_requested());
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        signal.request();
        signal.request();
        assert!(signal.is_requested());
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_callback_that_comes_late_runs_at_once() {
        let signal = ShutdownSignal::new();
        signal.request();
        assert_eq!(counter(&signal).load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_remains_is_asked_for_at_that_moment() {
        let signal = ShutdownSignal::new();
        assert_eq!(signal.remaining(), None);
        let open = Arc::new(AtomicU32::new(3));
        let seen = Arc::clone(&open);
        signal.report_remaining(Box::new(move || format!("{} connections", seen.load(Ordering::Relaxed))));
        open.store(1, Ordering::Relaxed);
        assert_eq!(signal.remaining().as_deref(), Some("1 connections"));
    }
}
