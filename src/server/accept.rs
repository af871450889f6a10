//! Accepting connections, on one shard, and handing them to all shards in turn.
//!
//! One plain listening socket for each address, never `SO_REUSEPORT`: with it, a second process could
//! silently take half of the connections.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lepus_shards::runtime::{Doorbell, Listener, sleep};
use tracing::{debug, warn};

use super::limits::{ACCEPT_PAUSE_MAX, ACCEPT_PAUSE_MIN};
use super::protocol::Protocol;
use super::worker::{Handover, Home};

/// The ways to all shards, in their order.
pub(super) struct Handovers {
    ways: Vec<(rtrb::Producer<Handover>, Arc<Doorbell>)>,
    next: usize,
}

impl Handovers {
    pub fn new(ways: Vec<(rtrb::Producer<Handover>, Arc<Doorbell>)>) -> Handovers {
        Handovers { ways, next: 0 }
    }

    /// To the next shard whose way has room; given back when none has.
    fn hand_over(&mut self, mut handover: Handover) -> Result<(), Handover> {
        for _ in 0..self.ways.len() {
            let next = (self.next + 1) % self.ways.len();
            let (way, doorbell) = &mut self.ways[std::mem::replace(&mut self.next, next)];
            match way.push(handover) {
                Ok(()) => {
                    doorbell.ring();
                    return Ok(());
                }
                Err(rtrb::PushError::Full(back)) => handover = back,
            }
        }
        Err(handover)
    }
}

/// Accepts until the broker stops. No error ends it: whatever accept(2) reports concerns one
/// connection, or passes.
pub(super) async fn accept<P: Protocol>(
    home: Rc<Home<P>>,
    listener: Rc<Listener>,
    handovers: Rc<RefCell<Handovers>>,
) {
    let mut pause = ACCEPT_PAUSE_MIN;
    loop {
        let accepted = listener.accept().await;
        if home.worker.borrow().is_stopping() {
            return;
        }
        match accepted {
            Ok(handover) => {
                pause = ACCEPT_PAUSE_MIN;
                hand_over(handover, &handovers).await;
            }
            Err(error) if concerns_one_connection(&error) => {
                debug!(%error, "a connection was gone before it was accepted");
            }
            Err(error) => {
                warn!(%error, "cannot accept connections for now; raise the limit of open files if this goes on");
                pause = back_off(pause).await;
            }
        }
    }
}

async fn hand_over(mut handover: Handover, handovers: &RefCell<Handovers>) {
    let mut pause = ACCEPT_PAUSE_MIN;
    loop {
        let result = handovers.borrow_mut().hand_over(handover);
        match result {
            Ok(()) => return,
            Err(back) => handover = back,
        }
        pause = back_off(pause).await;
    }
}

/// Waits, and says how long to wait the next time.
async fn back_off(pause: Duration) -> Duration {
    sleep(pause).await;
    (pause * 2).min(ACCEPT_PAUSE_MAX)
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | HostUnreachable | NetworkUnreachable | TimedOut
    )
}
