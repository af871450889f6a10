//! The wish to end early: set by SIGINT and SIGTERM, looked at by every loop.
//!
//! A run that ends early cleans up as any other. A second signal ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit code of a run that a signal ended, as a shell counts it.
pub const INTERRUPTED_EXIT: u8 = 130;

/// Whether the run should end early.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// One that SIGINT and SIGTERM set.
    ///
    /// # Errors
    /// When the handlers cannot be set.
    pub fn on_signals() -> io::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal only sets the flag, the second finds it set.
            flag::register_conditional_shutdown(signal, i32::from(INTERRUPTED_EXIT), Arc::clone(&stop.0))?;
            flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Sets it.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps, but not past a signal. Whether the run goes on.
    pub fn sleep(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_set() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(Duration::from_millis(20)));
        }
        false
    }
}
