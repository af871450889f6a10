//! TCP sockets of a shard.
//!
//! A [`Socket`] lends itself to direct, non-blocking system calls and to waiting for readiness, and
//! holds no buffer in either: an idle connection costs one armed poll in the ring. Reading takes the
//! caller's buffer for the length of one system call, so that one buffer serves all sockets of a
//! shard. Descriptors move between shards as std types ([`TcpStream`] is `Send`) and become a
//! `Socket` on the shard that uses them.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use glommio::io::PollableFd;

/// A connected socket on the shard that reads and writes it.
#[derive(Debug)]
pub struct Socket {
    fd: PollableFd<TcpStream>,
}

impl Socket {
    /// Takes a connected stream over, on the shard that will use it: non-blocking, without Nagle's
    /// delay (batching is the caller's, who knows when more is coming).
    pub fn adopt(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Socket { fd: PollableFd::new(stream)? })
    }

    /// Reads what is there, at most the buffer's length, 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        uninterrupted(|| self.fd.get_ref().read(buffer))
    }

    /// Writes what the socket takes at once.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        uninterrupted(|| self.fd.get_ref().write(bytes))
    }

    /// Returns when a read would not block: data, the end of the stream, or an error that the read
    /// will report. One task waits at a time.
    pub async fn readable(&self) -> io::Result<()> {
        Ok(self.fd.readable().await?)
    }

    /// Returns when a write would not block, or would report an error. One task waits at a time.
    pub async fn writable(&self) -> io::Result<()> {
        Ok(self.fd.writable().await?)
    }

    /// Ends one or both directions at once. Ends waits in [`Self::readable`] (and, for both, in
    /// [`Self::writable`]). A socket that the peer has already reset counts as shut down.
    pub fn shutdown(&self, how: Shutdown) {
        let _ = self.fd.get_ref().shutdown(how);
    }
}

/// A listening socket on the shard that accepts from it.
#[derive(Debug)]
pub struct Listener {
    fd: PollableFd<TcpListener>,
}

impl Listener {
    /// Takes over a socket that is bound and listens.
    pub fn adopt(listener: TcpListener) -> io::Result<Listener> {
        listener.set_nonblocking(true)?;
        Ok(Listener { fd: PollableFd::new(listener)? })
    }

    /// Stops listening at once: new connections are refused, and a wait in [`Self::accept`] ends with
    /// an error. What was connected and not accepted is reset.
    pub fn stop(&self) {
        let _ = socket2::SockRef::from(self.fd.get_ref()).shutdown(Shutdown::Both);
    }

    /// The next connection and who made it. The stream can go to any shard.
    ///
    /// # Errors
    /// Those of accept(2) that concern one connection or the process (no descriptors left): the
    /// listener itself stays usable, and the caller decides when to try again.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            match uninterrupted(|| self.fd.get_ref().accept()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.fd.readable().await?,
                accepted => return accepted,
            }
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
