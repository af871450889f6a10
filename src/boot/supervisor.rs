//! Tells the supervisor how the broker is, as systemd wants to be told (sd_notify(3)): a datagram with
//! `READY=1`, `STOPPING=1`, or `WATCHDOG=1` to the socket that the environment names.
//!
//! Without such a socket nobody is told. A supervisor that does not take a datagram is no reason to fail:
//! it will act as it thinks right. The watchdog has a thread of its own. It is fed only when every shard
//! has turned since it was fed last, so that a shard that hangs ends in a restart.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, process};

use tracing::{error, warn};

use super::pulse::Pulse;

/// A supervisor that is this slow to read is not waited for.
const SEND_MAX: Duration = Duration::from_secs(1);

/// Who started the broker and wants to know how it is; perhaps nobody.
#[derive(Clone, Debug, Default)]
pub struct Supervisor {
    socket: Option<SocketAddr>,
    /// How long it waits for a sign of life.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// What the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    pub fn of_environment(environment: &[(OsString, OsString)]) -> Supervisor {
        let value = |key: &str| {
            environment.iter().find(|(name, value)| name == key && !value.is_empty()).map(|(_, value)| value)
        };
        let number = |key| value(key).and_then(|text| text.to_str()?.parse::<u64>().ok());
        let socket = value("NOTIFY_SOCKET").and_then(|name| match address(name.as_bytes()) {
            Ok(address) => Some(address),
            Err(error) => {
                warn!("cannot tell the supervisor anything: NOTIFY_SOCKET={}: {error}", name.display());
                None
            }
        });
        // The variables may have been handed on by a parent that they were meant for.
        let for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|us| for_us && *us > 0).map(Duration::from_micros);
        Supervisor { socket, watchdog }
    }

    /// The broker accepts connections.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The broker has been asked to stop, or has to.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, what: &str) {
        let Some(address) = &self.socket else { return };
        if let Err(error) = send(address, what) {
            warn!("the supervisor was not told {what}: {error}");
        }
    }
}

/// `@name` is a name without a file.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(Path::new(std::ffi::OsStr::from_bytes(name))),
        _ => Err(io::Error::new(io::ErrorKind::Unsupported, "neither a path nor an abstract name")),
    }
}

fn send(address: &SocketAddr, what: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_MAX))?;
    socket.send_to_addr(what.as_bytes(), address)?;
    Ok(())
}

/// Feeds the supervisor's watchdog from the time when the broker is ready until it has stopped.
pub(super) struct Watchdog {
    thread: Option<JoinHandle<()>>,
    /// Closed when the broker has stopped.
    running: Sender<()>,
}

impl Watchdog {
    /// Waits to be fed, see [`Self::starter`]. No thread is made where there is no watchdog.
    pub fn new(supervisor: &Supervisor, pulse: Arc<Pulse>) -> io::Result<Watchdog> {
        let (running, ready) = mpsc::channel();
        let thread = match supervisor.watchdog {
            None => None,
            Some(limit) => {
                let feeder = Feeder { supervisor: supervisor.clone(), seen: pulse.turns(), pulse };
                let run = move || feeder.run(&ready, limit / 2);
                Some(thread::Builder::new().name("lepus-watchdog".to_owned()).spawn(run)?)
            }
        };
        Ok(Watchdog { thread, running })
    }

    /// Says, from any thread, that shards turn from now on.
    pub fn starter(&self) -> impl FnOnce() + Send + use<> {
        let running = self.running.clone();
        move || {
            // Nobody listens where there is no watchdog.
            let _ = running.send(());
        }
    }

    /// The broker has stopped, and every starter is gone.
    pub fn stop(self) {
        drop(self.running);
        if self.thread.is_some_and(|thread| thread.join().is_err()) {
            error!("the watchdog thread panicked");
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("on", &self.thread.is_some()).finish_non_exhaustive()
    }
}

struct Feeder {
    supervisor: Supervisor,
    pulse: Arc<Pulse>,
    /// Turns of each shard when the watchdog was fed last.
    seen: Vec<u64>,
}

impl Feeder {
    fn run(mut self, running: &Receiver<()>, interval: Duration) {
        if running.recv().is_err() {
            return;
        }
        while let Err(RecvTimeoutError::Timeout) = running.recv_timeout(interval) {
            if let Err(text) = self.feed() {
                error!("{text}");
            }
        }
    }

    /// Feeds the watchdog if all shards are alive; otherwise says which are not.
    fn feed(&mut self) -> Result<(), String> {
        let turns = self.pulse.turns();
        let still: Vec<String> = (0..turns.len())
            .filter(|&shard| turns[shard] == self.seen[shard])
            .map(|shard| shard.to_string())
            .collect();
        if !still.is_empty() {
            return Err(format!(
                "no sign of life from shard {}: the watchdog is not fed, and the supervisor will end this process",
                still.join(", ")
            ));
        }
        self.seen = turns;
        self.supervisor.tell("WATCHDOG=1");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn environment(variables: &[(&str, &str)]) -> Supervisor {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
        Supervisor::of_environment(&variables)
    }

    /// A socket that does not wait, and a supervisor behind it.
    fn listening(dir: &TestDir) -> (UnixDatagram, Supervisor) {
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket, environment(&[("NOTIFY_SOCKET", path.to_str().unwrap())]))
    }

    fn received(socket: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 64];
        let count = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..count]).into_owned())
    }

    #[test]
    fn the_supervisor_is_told_in_datagrams_of_its_own_kind() {
        let dir = TestDir::new();
        let (socket, supervisor) = listening(&dir);
        supervisor.ready();
        supervisor.stopping();
        assert_eq!(received(&socket).as_deref(), Some("READY=1"));
        assert_eq!(received(&socket).as_deref(), Some("STOPPING=1"));
        assert_eq!(received(&socket), None);
    }

    #[test]
    fn an_abstract_socket_is_told_too() {
        let name = format!("lepus-supervisor-{}", process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        environment(&[("NOTIFY_SOCKET", &format!("@{name}"))]).ready();
        assert_eq!(received(&socket).as_deref(), Some("READY=1"));
    }

    #[test]
    fn a_broker_without_a_supervisor_or_with_one_that_is_gone_goes_on() {
        for supervisor in [
            environment(&[]),
            environment(&[("NOTIFY_SOCKET", "")]),
            environment(&[("NOTIFY_SOCKET", "vsock:2:1")]),
            environment(&[("NOTIFY_SOCKET", "/no/such/socket")]),
        ] {
            supervisor.ready();
            assert_eq!(supervisor.watchdog, None);
        }
    }

    #[test]
    fn a_watchdog_that_was_meant_for_another_process_is_left_alone() {
        let own = process::id().to_string();
        let watchdog = |variables: &[(&str, &str)]| environment(variables).watchdog;
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "1000000")]), second);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", &own)]), second);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "1")]), None);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "0")]), None);
    }

    #[test]
    fn the_watchdog_is_fed_only_when_every_shard_has_turned_since() {
        let dir = TestDir::new();
        let (socket, supervisor) = listening(&dir);
        let pulse = Arc::new(Pulse::new(2));
        let mut feeder = Feeder { supervisor, seen: pulse.turns(), pulse: Arc::clone(&pulse) };
        pulse.beat(0);
        assert!(feeder.feed().unwrap_err().contains("shard 1:"));
        assert_eq!(received(&socket), None);
        pulse.beat(1);
        feeder.feed().unwrap();
        assert_eq!(received(&socket).as_deref(), Some("WATCHDOG=1"));
        assert!(feeder.feed().unwrap_err().contains("shard 0, 1:"), "those were old turns");
        assert_eq!(received(&socket), None);
    }

    #[test]
    fn a_watchdog_ends_with_the_broker_whether_that_was_ready_or_not() {
        let supervisor = Supervisor { socket: None, watchdog: Some(Duration::from_secs(3600)) };
        for ready in [false, true] {
            let watchdog = Watchdog::new(&supervisor, Arc::new(Pulse::new(1))).unwrap();
            let start = watchdog.starter();
            if ready {
                start()
            } else {
                drop(start)
            }
            watchdog.stop();
        }
    }
}
