//! Load itself: connections in groups, one thread for each group, driven by epoll. What a connection does is its
//! [`Role`]; when the run starts and ends is decided by [`run::run`] on the caller's thread.
//!
//! Cheap on purpose: one write or read moves up to hundreds of KiB, frames are looked at where they lie, and what
//! threads tell each other is counted once for each of these calls, not for each message.

pub mod consumer;
pub mod counters;
pub mod group;
pub mod histograms;
pub mod open_loop;
pub mod outstanding;
pub mod pace;
pub mod producer;
pub mod progress;
pub mod run;

use crate::clock::Nanos;
use crate::error::BenchError;
use crate::wire::scan::Frames;
use histograms::Histograms;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Publishers publish.
    Running,
    /// Publishers end at the next message's end; consumers go on.
    Draining,
    /// Connections are let go.
    Ended,
}

/// Now, as all roles of a group see it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Since the start of the run.
    pub now: Nanos,
    /// Where the run stands.
    pub phase: Phase,
}

/// What a connection does.
pub trait Role: Send {
    /// Takes all whole frames that have come.
    ///
    /// # Errors
    /// When the broker has refused something or makes no sense: the run ends.
    fn take(&mut self, frames: &mut Frames<'_>, at: Moment) -> Result<(), BenchError>;

    /// What it wants to send now; as much as one write takes.
    fn offer(&mut self, at: Moment) -> &[u8];

    /// So many of the offered bytes are sent.
    fn sent(&mut self, bytes: usize, at: Moment);

    /// When it will have something to offer, though nothing may come until then.
    fn wake(&self, at: Moment) -> Option<Nanos>;

    /// What it has measured.
    fn histograms(&mut self) -> Histograms {
        Histograms::default()
    }
}
