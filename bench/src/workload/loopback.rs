//! Loopback alone: connections with both ends in this process, and what a round trip over one takes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::BenchError;

/// Bytes of a message that goes to and fro.
const PING_BYTES: usize = 64;

/// Both ends of a connection.
///
/// # Errors
/// When there is no loopback.
pub fn connection() -> Result<(TcpStream, TcpStream), BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// A connection to a thread that sends back what it gets. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Echo {
    near: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there is no loopback.
    pub fn start() -> Result<Echo, BenchError> {
        let (near, mut far) = connection()?;
        let thread = thread::spawn(move || {
            let mut bytes = [0; PING_BYTES];
            while far.read_exact(&mut bytes).and_then(|()| far.write_all(&bytes)).is_ok() {}
        });
        Ok(Echo { near, thread: Some(thread) })
    }

    /// One message there and back. How long it took.
    ///
    /// # Errors
    /// When loopback fails.
    pub fn round_trip(&mut self) -> Result<Duration, BenchError> {
        let mut bytes = [0; PING_BYTES];
        let began = Instant::now();
        self.near.write_all(&bytes)?;
        self.near.read_exact(&mut bytes)?;
        Ok(began.elapsed())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.near.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
