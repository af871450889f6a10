//! TCP sockets of a shard.
//!
//! A [`Socket`] lends itself to direct, non-blocking system calls and to waiting for readiness, and
//! holds no buffer in either: an idle connection costs one poll in the kernel, armed once. Reading takes the
//! caller's buffer for the length of one system call, so that one buffer serves all sockets of a
//! shard. Descriptors move between shards as std types ([`TcpStream`] is `Send`) and become a
//! `Socket` on the shard that uses them.
#![forbid(unsafe_code)]

use std::cell::OnceCell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use super::executor::reactor;
use super::reactor::{Direction, Interest};

/// A connected socket on the shard that reads and writes it.
#[derive(Debug)]
pub struct Socket {
    input: Interest,
    /// From the first wait for output on: most sockets take what they are given.
    output: OnceCell<Interest>,
    stream: TcpStream,
}

impl Socket {
    /// Takes a connected stream over, on the shard that will use it: non-blocking, without Nagle's
    /// delay (batching is the caller's, who knows when more is coming).
    ///
    /// # Errors
    /// When the stream has ended meanwhile.
    ///
    /// # Panics
    /// Outside of a shard.
    pub fn adopt(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let input = Interest::new(reactor(), stream.as_raw_fd(), Direction::Input);
        Ok(Socket { input, output: OnceCell::new(), stream })
    }

    /// Reads what is there, at most the buffer's length, 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = uninterrupted(|| (&self.stream).read(buffer));
        match &read {
            Ok(count) if 0 < *count && *count < buffer.len() => self.input.took_all(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.input.used_up(),
            _ => {}
        }
        read
    }

    /// Writes what the socket takes at once.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        uninterrupted(|| (&self.stream).write(bytes))
    }

    /// Returns when a read may have something to tell: data, the end of the stream, or an error. One task waits
    /// at a time.
    pub async fn readable(&self) {
        self.input.ready().await;
    }

    /// Returns when a write would not block, or would report an error. One task waits at a time.
    pub async fn writable(&self) {
        let output = || Interest::new(reactor(), self.stream.as_raw_fd(), Direction::Output);
        self.output.get_or_init(output).ready().await;
    }

    /// Ends one or both directions at once. Ends waits in [`Self::readable`] (and, for both, in
    /// [`Self::writable`]). A socket that the peer has already reset counts as shut down.
    pub fn shutdown(&self, how: Shutdown) {
        let _ = self.stream.shutdown(how);
    }
}

/// A listening socket on the shard that accepts from it.
#[derive(Debug)]
pub struct Listener {
    input: Interest,
    listener: TcpListener,
}

impl Listener {
    /// Takes over a socket that is bound and listens.
    ///
    /// # Errors
    /// Those of fcntl(2).
    ///
    /// # Panics
    /// Outside of a shard.
    pub fn adopt(listener: TcpListener) -> io::Result<Listener> {
        listener.set_nonblocking(true)?;
        let input = Interest::new(reactor(), listener.as_raw_fd(), Direction::Input);
        Ok(Listener { input, listener })
    }

    /// Stops listening at once: new connections are refused, and a wait in [`Self::accept`] ends with
    /// an error. What was connected and not accepted is reset.
    pub fn stop(&self) {
        let _ = socket2::SockRef::from(&self.listener).shutdown(Shutdown::Both);
    }

    /// The next connection and who made it. The stream can go to any shard.
    ///
    /// # Errors
    /// Those of accept(2) that concern one connection or the process (no descriptors left): the
    /// listener itself stays usable, and the caller decides when to try again.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            match uninterrupted(|| self.listener.accept()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.input.used_up(),
                accepted => return accepted,
            }
            self.input.ready().await;
        }
    }
}

fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
