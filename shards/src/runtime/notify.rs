//! Wakes one task from another on the same shard.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A wake-up that is remembered: a notification that comes while nobody waits ends the next wait.
/// Several before a wait count as one. One task waits at a time.
#[derive(Debug, Default)]
pub struct Notify {
    notified: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

impl Notify {
    /// Not notified.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Ends the wait, or the next one. The waiting task runs later, not inside this call.
    pub fn notify(&self) {
        if !self.notified.replace(true)
            && let Some(waiter) = self.waiter.borrow_mut().take()
        {
            waiter.wake();
        }
    }

    /// Forgets a notification: what it was about has been seen.
    pub fn clear(&self) {
        self.notified.set(false);
    }

    /// Returns when there has been a notification since the last return.
    pub async fn notified(&self) {
        poll_fn(|context| {
            if self.notified.replace(false) {
                return Poll::Ready(());
            }
            let mut waiter = self.waiter.borrow_mut();
            match &mut *waiter {
                Some(known) => known.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }
}
