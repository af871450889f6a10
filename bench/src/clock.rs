//! Time of one run, in nanoseconds since its start: what bodies carry and histograms count.

use std::time::{Duration, Instant};

/// Nanoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Time since an earlier point; zero when it is later.
    pub fn since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Later by this much.
    pub fn after(self, time: Duration) -> Nanos {
        Nanos(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The clock that all threads of a run share.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts it.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// What it shows.
    pub fn now(self) -> Nanos {
        Nanos(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
