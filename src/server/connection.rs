//! One client connection on its shard: the socket, the task that reads it, and the one that waits for
//! it to take output. An idle connection is one task that waits for input, and no buffer.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use lepus_shards::runtime::{Notify, Socket};

use super::protocol::Protocol;
use super::worker::Home;

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Read and written.
    Open,
    /// Everything is written and this side is closed; waits for the client's end, ignoring input.
    Lingering,
    /// Over: its tasks end.
    Closed,
}

/// What its tasks and the worker share. Cells, because the tasks wait on the socket while the worker
/// is not theirs.
#[derive(Debug)]
pub(super) struct Connection {
    pub slot: u32,
    pub peer: SocketAddr,
    pub socket: Socket,
    pub phase: Cell<Phase>,
    /// Ends the pause of the reading task.
    pub resume: Notify,
    /// The socket takes no output; a task waits until it does.
    pub write_blocked: Cell<bool>,
    /// When the socket is cut off unless something happens; 0: not at all.
    pub deadline_ms: Cell<u64>,
    /// It is on the worker's list of connections with deadlines.
    pub watched: Cell<bool>,
    /// Its last input made something for another shard's Forward lane.
    pub fills_forward: Cell<bool>,
}

impl Connection {
    pub fn new(slot: u32, peer: SocketAddr, socket: Socket) -> Connection {
        Connection {
            slot,
            peer,
            socket,
            phase: Cell::new(Phase::Open),
            resume: Notify::new(),
            write_blocked: Cell::new(false),
            deadline_ms: Cell::new(0),
            watched: Cell::new(false),
            fills_forward: Cell::new(false),
        }
    }
}

/// What the reading task does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterRead {
    /// Waits for input, also when there is probably more: others come first.
    Wait,
    /// Waits until the connection may be read again.
    Pause,
    /// Ends.
    End,
}

/// The reading task: as long as the connection.
pub(super) async fn read<P: Protocol>(home: Rc<Home<P>>, connection: Rc<Connection>) {
    loop {
        let after = home.worker.borrow_mut().read(&connection);
        match after {
            // When there is more, this comes back when everybody else has been looked at.
            AfterRead::Wait => {
                if connection.socket.readable().await.is_err() {
                    break;
                }
            }
            AfterRead::Pause => connection.resume.notified().await,
            AfterRead::End => break,
        }
    }
    home.worker.borrow_mut().disconnect(&connection);
    home.wake.notify();
}

/// Writes on as the socket takes it; ends when everything is written, or the connection is over.
pub(super) async fn write_when_possible<P: Protocol>(home: Rc<Home<P>>, connection: Rc<Connection>) {
    loop {
        if connection.socket.writable().await.is_err() {
            return;
        }
        connection.write_blocked.set(false);
        let blocked = home.worker.borrow_mut().write_on(&connection);
        home.wake.notify();
        if !blocked {
            return;
        }
    }
}
