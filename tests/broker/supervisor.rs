//! What a supervisor is told that starts the broker as systemd does, with a socket for its state and a watchdog.

use std::os::unix::net::UnixDatagram;

use lepus_tests::limits::PATIENCE;
use lepus_tests::process::DataDir;
use lepus_tests::{Broker, Setup, os};

/// A supervisor's end, which waits for what it is told.
struct Told(UnixDatagram);

impl Told {
    fn next(&self) -> String {
        let mut buffer = [0; 256];
        let count = self.0.recv(&mut buffer).expect("the broker says something within a generous time");
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    }
}

fn supervised(setup: Setup) -> Option<(Broker, Told, DataDir)> {
    let directory = DataDir::new();
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket in a directory of our own");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let broker = Broker::own(setup.variable("NOTIFY_SOCKET", path.to_str().expect("the path is text")))?;
    Some((broker, Told(socket), directory))
}

#[test]
fn a_supervisor_is_told_when_the_broker_is_ready_that_it_lives_and_when_it_stops() {
    let setup = Setup::new().variable("WATCHDOG_USEC", "1000000");
    let Some((mut broker, told, _directory)) = supervised(setup) else { return };
    assert_eq!(told.next(), "READY=1");
    broker.assert_healthy();
    // Idle shards live as well.
    for _ in 0..4 {
        assert_eq!(told.next(), "WATCHDOG=1");
    }
    os::signal(broker.pid(), libc::SIGTERM);
    let last = std::iter::repeat_with(|| told.next()).find(|said| said != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
    let status = broker.wait(PATIENCE).expect("it ends");
    assert!(status.success(), "{status}; it said:\n{}", broker.log());
}

#[test]
fn without_a_watchdog_a_supervisor_is_told_of_start_and_stop_alone() {
    let Some((broker, told, _directory)) = supervised(Setup::new()) else { return };
    assert_eq!(told.next(), "READY=1");
    broker.stop();
    assert_eq!(told.next(), "STOPPING=1");
}
