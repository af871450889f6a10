//! The sockets of one shard: connections are adopted, read into the protocol, written and ended, as the protocol
//! and their deadlines have it.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use lepus_shards::runtime::Socket;
use tracing::debug;

use super::{Turn, Worker};
use crate::server::connection::{AfterRead, Connection, Phase};
use crate::server::limits::LINGER_MS;
use crate::server::protocol::{Disposition, Protocol};
use crate::server::timings::Stage;

impl<P: Protocol> Worker<P> {
    pub(super) fn take_handovers(&mut self, turn: &mut Turn) {
        while let Ok((stream, peer)) = self.handovers.pop() {
            if self.drain.is_stopping() {
                continue;
            }
            match self.adopt(stream, peer) {
                Ok(connection) => turn.arrived.push(connection),
                Err(error) => debug!(%peer, %error, "a connection was gone before it was taken over"),
            }
        }
    }

    fn adopt(&mut self, stream: TcpStream, peer: SocketAddr) -> io::Result<Rc<Connection>> {
        let local = stream.local_addr()?;
        let socket = Socket::adopt(stream)?;
        let slot = self.around.front.accept(peer, local, self.now_ms());
        let connection = Rc::new(Connection::new(slot, peer, socket));
        let index = slot as usize;
        if self.connections.len() <= index {
            self.connections.resize(index + 1, None);
        }
        let former = self.connections[index].replace(Rc::clone(&connection));
        assert!(former.is_none(), "the protocol gives a slot to one connection at a time");
        self.connected += 1;
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    /// Reads once, into the protocol.
    pub fn read(&mut self, connection: &Rc<Connection>) -> AfterRead {
        let slot = connection.slot;
        match connection.phase.get() {
            Phase::Closed => return AfterRead::End,
            Phase::Lingering => return self.discard(connection),
            Phase::Open if self.around.front.disposition(slot) != Disposition::Keep => {
                return self.discard(connection);
            }
            Phase::Open => {}
        }
        if !self.may_read(connection) {
            self.paused.push(Rc::clone(connection));
            return AfterRead::Pause;
        }
        let count = match connection.socket.try_read(&mut self.read_buffer) {
            Ok(0) => return AfterRead::End,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return AfterRead::Wait,
            Err(error) => {
                debug!(%error, "a connection broke");
                return AfterRead::End;
            }
        };
        self.active = true;
        self.wake.notify();
        self.enter_for(Stage::Input, Some(slot));
        let forwarded = self.around.outboxes.forwarded();
        P::receive(&mut self.shard, &mut self.around, slot, &self.read_buffer[..count]);
        connection.fills_forward.set(self.around.outboxes.forwarded() != forwarded);
        self.follow_disposition(connection);
        AfterRead::Wait
    }

    /// Input after the end of the conversation: reading it away lets the client's end of the stream
    /// come through.
    fn discard(&mut self, connection: &Connection) -> AfterRead {
        match connection.socket.try_read(&mut self.read_buffer) {
            Ok(0) => AfterRead::End,
            Ok(_) => AfterRead::Wait,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => AfterRead::Wait,
            Err(_) => AfterRead::End,
        }
    }

    /// The protocol may hold a connection up, and so does a peer shard that it floods.
    fn may_read(&self, connection: &Connection) -> bool {
        self.around.front.wants_input(connection.slot)
            && !(connection.fills_forward.get() && self.around.outboxes.congested())
    }

    pub(super) fn unpause(&mut self) {
        let mut paused = std::mem::take(&mut self.paused);
        paused.retain(|connection| {
            let goes_on = connection.phase.get() != Phase::Open
                || self.around.front.disposition(connection.slot) != Disposition::Keep
                || self.may_read(connection);
            if goes_on {
                connection.resume.notify();
            }
            !goes_on
        });
        self.paused = paused;
    }

    /// Writes each connection once that has something: what this in turn sets free is written in the
    /// next turn, so that no fast reader keeps the others waiting.
    pub(super) fn write_dirty(&mut self, turn: &mut Turn) {
        self.collect_dirty();
        if self.dirty.is_empty() {
            return;
        }
        self.enter(Stage::Output);
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            let Some(connection) = self.connections.get(slot as usize).cloned().flatten() else { continue };
            if self.write(&connection) {
                turn.write_blocked.push(connection);
            }
        }
        self.dirty = dirty;
        self.collect_dirty();
    }

    fn collect_dirty(&mut self) {
        while let Some(slot) = self.around.front.next_dirty() {
            self.dirty.push(slot);
        }
    }

    /// The socket takes output again. True if it has just stopped.
    pub fn write_on(&mut self, connection: &Rc<Connection>) -> bool {
        self.enter_for(Stage::Output, Some(connection.slot));
        self.write(connection)
    }

    /// Writes as much of the connection's output as the socket takes. True if it has just stopped
    /// taking.
    fn write(&mut self, connection: &Rc<Connection>) -> bool {
        if connection.phase.get() != Phase::Open {
            return false;
        }
        if connection.write_blocked.get() {
            // Its own task writes on, unless the protocol has given it up.
            self.follow_disposition(connection);
            return false;
        }
        let slot = connection.slot;
        let mut wrote = false;
        loop {
            let pending = self.around.front.pending(slot);
            if pending.is_empty() {
                break;
            }
            match connection.socket.try_write(pending) {
                Ok(count) => {
                    self.around.front.written(slot, count);
                    wrote = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.write_blocked.set(true);
                    break;
                }
                Err(error) => {
                    debug!(%error, "a connection broke");
                    self.cut_off(connection);
                    return false;
                }
            }
        }
        let blocked = connection.write_blocked.get();
        if wrote || connection.deadline_ms.get() == 0 {
            let deadline_ms = if blocked { self.now_ms() + self.write_stall_timeout_ms } else { 0 };
            self.set_deadline(connection, deadline_ms);
        }
        if wrote && let Some(id) = self.around.front.connection_id(slot) {
            let left = self.around.front.pending(slot).len();
            self.shard.output_drained(&mut self.around, id, left);
        }
        self.follow_disposition(connection);
        blocked
    }

    fn set_deadline(&mut self, connection: &Rc<Connection>, deadline_ms: u64) {
        if connection.deadline_ms.replace(deadline_ms) == 0
            && deadline_ms != 0
            && !connection.watched.replace(true)
        {
            self.watched.push(Rc::clone(connection));
        }
    }

    pub(super) fn cut_off_late(&mut self, now_ms: u64) {
        let mut watched = std::mem::take(&mut self.watched);
        watched.retain(|connection| {
            let deadline_ms = connection.deadline_ms.get();
            if deadline_ms != 0 && deadline_ms <= now_ms {
                self.cut_off(connection);
            }
            let goes_on = connection.deadline_ms.get() != 0 && connection.phase.get() != Phase::Closed;
            connection.watched.set(goes_on);
            goes_on
        });
        self.watched = watched;
    }

    /// Does with the socket what the protocol wants to become of it.
    fn follow_disposition(&mut self, connection: &Rc<Connection>) {
        if connection.phase.get() != Phase::Open {
            return;
        }
        match self.around.front.disposition(connection.slot) {
            Disposition::Keep => {}
            Disposition::CloseNow => self.cut_off(connection),
            Disposition::CloseWhenWritten => {
                if self.around.front.pending(connection.slot).is_empty() {
                    connection.socket.shutdown(Shutdown::Write);
                    connection.phase.set(Phase::Lingering);
                    self.set_deadline(connection, self.now_ms() + LINGER_MS);
                    connection.resume.notify();
                }
            }
        }
    }

    /// Ends a connection whatever the client does; its reading task sees the end of the stream.
    pub(super) fn cut_off(&mut self, connection: &Connection) {
        connection.phase.set(Phase::Closed);
        connection.socket.shutdown(Shutdown::Both);
        connection.resume.notify();
    }

    /// The reading task has ended.
    pub fn disconnect(&mut self, connection: &Rc<Connection>) {
        self.enter(Stage::Ended);
        // A client may close its side right behind its last request; the answer still goes out.
        self.write(connection);
        self.cut_off(connection);
        let slot = connection.slot;
        self.connections[slot as usize] = None;
        self.connected -= 1;
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.active = true;
        P::disconnected(&mut self.shard, &mut self.around, slot);
    }
}
