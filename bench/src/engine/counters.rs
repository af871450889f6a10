//! What all threads of a run count together. Each adds once for a read or a write, not for each message.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// Counts while the run goes on.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$text])* pub $name: Counter,)*
        }

        /// Counts at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$text])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them now.
            pub fn totals(&self) -> Totals {
                Totals { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Messages handed to the socket.
    sent,
    /// Messages that the broker has confirmed.
    confirmed,
    /// Messages that the broker has refused by a nack.
    nacked,
    /// Mandatory messages that came back.
    returned,
    /// Messages delivered.
    delivered,
    /// Of these, with the redelivered flag.
    redelivered,
    /// Messages acked.
    acked,
    /// Bytes of delivered bodies.
    body_bytes,
    /// Times that the broker has blocked a connection.
    blocked,
    /// Publishers that have nothing more to send or to wait for.
    finished,
}

/// One count.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds, and does nothing for nothing.
    pub fn add(&self, count: u64) {
        if count > 0 {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// What it stands at.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
