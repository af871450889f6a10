//! The ledger: who has which message, and what became of it.
//!
//! Model. A queue's messages stand in publication order, at positions that only grow. Each is exactly
//! one of *ready*, *unacked*, *settled*:
//!
//! ```text
//!             claim (conditional on the cursor)
//!   ready  ───────────────────────────────────▶  unacked
//!     ▲                                             │ settle(Accept | Reject)
//!     └────────── settle(Requeue | Fail) ◀──────────┤
//!   ready ── drop (purge, expiry, deletion) ──▶  settled
//! ```
//!
//! A queue has one cursor, shared by all who read it. A claim names the cursor that the claimant saw
//! and is refused with the current one if the queue has moved since. It runs on the queue's owner, so
//! it is a compare and a store on one thread and no lock exists. Everything that ends a claim - ack,
//! nack, reject, recover, a closed channel, a lost connection - is [`Entries::settle`]; requeueing puts
//! a message back at its own position, so order is a property of positions and not of history.
//!
//! A queue with priorities has one ledger for each of them; the first ready message is then that of the
//! highest priority. [`Ledger`] is either.
//!
//! [`Ledger`] lives on the shard that owns the queue, [`Unacked`] on the home shard of the channel.

mod entries;
mod levels;
mod unacked;

pub use entries::{Claim, Cursor, Entries, Holder, Kept, Position, Settled, StaleClaim};
pub use levels::Ledger;
pub use unacked::{Held, Unacked};

/// How often a message has come back to its queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Returns {
    /// For any reason.
    pub all: u32,
    /// Because its consumer failed.
    pub failures: u16,
}
