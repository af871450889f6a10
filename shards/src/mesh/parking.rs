//! How a sleeping shard is woken without a system call for an awake one, and without a lost wake-up.
//!
//! One [`Parking`] for each shard, shared by all threads that leave something for it.
//!
//! The receiver, before it sleeps: (1) stores `parked = true`, (2) a sequentially consistent fence,
//! (3) looks at everything that others fill; finds it empty; sleeps until its bell rings.
//! A sender: (a) puts its batch in, (b) a sequentially consistent fence, (c) loads `parked`, and if it
//! is set, takes it back with a swap; whose swap found it set, rings.
//!
//! No wake-up is lost, because one of the two fences comes first in the order that all threads agree
//! on. If the sender's does, the receiver's look (3) sees the batch and it does not sleep. If the
//! receiver's does, the load (c) sees the mark or something later: either the mark, and then this
//! sender or another one whose swap was quicker rings; or that the receiver has woken since, and then
//! its next (1) comes after this sender's fence and its next look sees the batch. The bell itself
//! counts, so that ringing just before the receiver waits on it ends that wait.
//!
//! At most one sender rings for each (1): the swap lets only one win. (A ring may be for nothing, when
//! the receiver's own look has found the batch in the meantime.) An awake receiver costs a sender a
//! fence and a load, for each batch and not for each message.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_utils::CachePadded;

/// Wakes one shard. Rung from any thread.
pub trait Bell: Send + Sync {
    /// Ends the shard's wait, or the next one if it does not wait now.
    fn ring(&self);
}

/// Whether one shard sleeps, and its bell.
pub struct Parking {
    /// On a cache line of its own: senders look at it for each batch.
    parked: CachePadded<AtomicBool>,
    bell: Arc<dyn Bell>,
}

impl Parking {
    /// For a shard that is awake.
    pub fn new(bell: Arc<dyn Bell>) -> Parking {
        Parking { parked: CachePadded::new(AtomicBool::new(false)), bell }
    }

    /// Wakes the shard if it sleeps. Called from any thread *after* what it shall find is in place.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::AcqRel) {
            self.bell.ring();
        }
    }

    /// The shard is about to sleep. It looks once more after this call, and before it sleeps.
    pub(super) fn announce(&self) {
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The shard does not sleep (any more).
    pub(super) fn cancel(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parking").field("parked", &self.parked).finish_non_exhaustive()
    }
}
