//! The server on real sockets and several shards, with the real kernel and a protocol of lines.

mod lines;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use lepus_shards::runtime::{Placement, ShardOptions};
use lepus_shards::topology::Writer;
use lepus_storage::{DataDir, TopologyStore};

use super::{Broker, ServerError};
use crate::boot::{Inquiry, Pulse, ShutdownSignal};
use crate::test_dir::TestDir;
use lines::{Gate, Lines};

struct Running {
    address: SocketAddr,
    shutdown: Arc<ShutdownSignal>,
    stalled: mpsc::Receiver<()>,
    release: mpsc::Sender<()>,
    thread: Option<thread::JoinHandle<Result<(), ServerError>>>,
    _directory: TestDir,
}

impl Running {
    fn start(shards: usize) -> Running {
        Running::start_with(shards, 60_000)
    }

    fn start_with(shards: usize, write_stall_timeout_ms: u64) -> Running {
        let directory = TestDir::new();
        let data = DataDir::open(directory.path()).unwrap();
        let (store, snapshot) = TopologyStore::open(&data).unwrap();
        let random = fastrand::Rng::with_seed(1);
        let (writer, changes) = Writer::restore(shards, snapshot.rows, "/", random).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Arc::new(ShutdownSignal::new());
        let (ready_in, ready) = mpsc::channel();
        let broker = Broker {
            shards: vec![Placement::Anywhere; shards],
            options: ShardOptions::default(),
            listeners: vec![listener],
            changes,
            writer,
            store,
            logs: Vec::new(),
            epoch: 1,
            durability: lepus_shards::Durability::Fsync,
            memory_per_shard_bytes: 1 << 30,
            consumer_timeout_ms: 0,
            write_stall_timeout_ms,
            shutdown: Arc::clone(&shutdown),
            pulse: Arc::new(Pulse::new(shards)),
            inquiry: Arc::new(Inquiry::new()),
            stall_report_ms: 5,
            on_ready: Box::new(move || ready_in.send(()).unwrap()),
        };
        let (entered, stalled) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let gate = Arc::new(Mutex::new(Gate { entered, released }));
        let thread = thread::spawn(move || {
            let result = broker.run(move |_| Lines::new(gate));
            drop(data);
            result
        });
        ready.recv().expect("the broker is ready");
        Running { address, shutdown, stalled, release, thread: Some(thread), _directory: directory }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        Client { reader: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    fn stop(mut self) -> Result<(), ServerError> {
        self.shutdown.request();
        self.thread.take().unwrap().join().unwrap()
    }
}

struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    fn say(&mut self, line: &str) {
        self.stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }
}

#[test]
fn messages_go_from_any_shard_to_any_shard_in_order() {
    const MESSAGES: usize = 20_000;
    let broker = Running::start(3);
    // Connections go round the shards, and queues are spread over them: every pair occurs.
    let mut clients: Vec<Client> = (0..6).map(|_| broker.connect()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("declare q{index}")), format!("declared q{index}"));
    }
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("consume q{index}")), "consuming");
    }
    thread::scope(|scope| {
        for (index, client) in clients.into_iter().enumerate() {
            let Client { mut stream, reader } = client;
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let queue = (index + 1 + number % 2) % 6;
                    writeln!(stream, "publish q{queue} {index} {number}").unwrap();
                }
            });
            scope.spawn(move || {
                // From the two that publish here, each its own half of the numbers.
                let mut next = [0, 1];
                for line in reader.lines().take(MESSAGES) {
                    let line = line.unwrap();
                    let (from, number) = line.split_once(' ').unwrap();
                    let from: usize = from.parse().unwrap();
                    let half = (index + 6 - from) % 6 - 1;
                    assert_eq!(number.parse::<usize>().unwrap(), next[half], "from {from} to {index}");
                    next[half] += 2;
                }
                assert_eq!(next, [MESSAGES, MESSAGES + 1]);
            });
        }
    });
    broker.stop().unwrap();
}

#[test]
fn the_last_answer_arrives_before_the_connection_ends() {
    let broker = Running::start(2);
    for _ in 0..50 {
        let mut client = broker.connect();
        // Input behind the end of the conversation must not reset it.
        client.stream.write_all(b"bye\nflood 1\nflood 1\n").unwrap();
        assert_eq!(client.hear(), "goodbye");
        assert_eq!(client.hear(), "");
    }
    // The client closes its side together with its last request.
    let mut client = broker.connect();
    client.say("bye");
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.hear(), "goodbye");
    broker.stop().unwrap();
}

#[test]
fn a_slow_reader_gets_everything_and_keeps_nobody_waiting() {
    const BYTES: usize = 20_000_000;
    let broker = Running::start(1);
    let (mut slow, mut quick) = (broker.connect(), broker.connect());
    slow.say(&format!("flood {BYTES}"));
    for turn in 0..100 {
        assert_eq!(quick.ask(&format!("declare q{turn}")), format!("declared q{turn}"));
    }
    slow.reader.read_exact(&mut vec![0; BYTES]).unwrap();
    assert_eq!(slow.ask("declare q"), "declared q");
    broker.stop().unwrap();
}

#[test]
fn a_client_that_never_reads_is_cut_off() {
    let broker = Running::start_with(1, 50);
    let mut client = broker.connect();
    client.say("flood 50000000");
    // Reading nothing: the wait for the reset ends when the broker has given up.
    let error = loop {
        thread::yield_now();
        if let Err(error) = client.stream.write_all(b"flood 1\n") {
            break error;
        }
    };
    assert!(matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe));
    broker.stop().unwrap();
}

#[test]
fn a_connection_whose_input_is_not_wanted_waits_and_goes_on() {
    let broker = Running::start(1);
    let (mut held, mut other) = (broker.connect(), broker.connect());
    assert_eq!(held.ask("hold"), "held");
    held.say("declare late");
    assert_eq!(other.ask("declare early"), "declared early");
    // Nothing has come for the held one, although its request came first.
    held.stream.set_nonblocking(true).unwrap();
    assert_eq!(held.stream.read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    held.stream.set_nonblocking(false).unwrap();
    other.say("go");
    assert_eq!(held.hear(), "declared late");
    broker.stop().unwrap();
}

#[test]
fn stopping_tells_every_client_and_ends_with_all_shards() {
    let broker = Running::start(3);
    let mut clients: Vec<Client> = (0..9).map(|_| broker.connect()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("declare q{index}")), format!("declared q{index}"));
    }
    assert_eq!(broker.shutdown.remaining().unwrap(), "9 connections");
    let address = broker.address;
    broker.shutdown.request();
    for client in &mut clients {
        assert_eq!(client.hear(), "broker is shutting down");
        assert_eq!(client.hear(), "");
    }
    drop(clients);
    broker.stop().unwrap();
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn many_connections_come_and_go() {
    let broker = Running::start(2);
    for round in 0..10 {
        let mut clients: Vec<Client> = (0..60).map(|_| broker.connect()).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            let name = format!("q{}", index % 7);
            assert_eq!(client.ask(&format!("declare {name}")), format!("declared {name}"), "round {round}");
        }
    }
    broker.stop().unwrap();
}

/// Writes until the socket has taken nothing for a while; the rest is left in `bytes`.
fn write_until_full(stream: &mut TcpStream, bytes: &mut &[u8]) {
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => *bytes = &bytes[count..],
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    stream.set_write_timeout(None).unwrap();
}

#[test]
fn a_shard_that_takes_nothing_in_stops_the_reading_of_who_sends_to_it_and_loses_nothing() {
    const MESSAGES: usize = 16_000;
    const BODY_BYTES: usize = 8_000;
    let broker = Running::start(2);
    // In turn on shard 0 and 1; the two queues are on one shard each.
    let (mut sender, mut stalled, mut same) = (broker.connect(), broker.connect(), broker.connect());
    for queue in ["q0", "q1"] {
        assert_eq!(sender.ask(&format!("declare {queue}")), format!("declared {queue}"));
    }
    stalled.say("stall");
    broker.stalled.recv().unwrap();
    let padding = "x".repeat(BODY_BYTES);
    let line = |number: usize| format!("publish q{} {number} {padding}\n", number % 2);
    let input: Vec<u8> = (0..MESSAGES).flat_map(|number| line(number).into_bytes()).collect();
    let mut rest = &input[..];
    write_until_full(&mut sender.stream, &mut rest);
    let taken = input.len() - rest.len();
    assert!(
        taken < input.len() / 2,
        "{taken} of {} bytes were read for a shard that stands still",
        input.len()
    );
    // Others on the sender's shard are served.
    same.say("flood 9");
    same.reader.read_exact(&mut [0; 9]).unwrap();
    broker.release.send(()).unwrap();
    sender.stream.write_all(rest).unwrap();
    for (index, client) in [&mut same, &mut stalled].into_iter().enumerate() {
        assert_eq!(client.ask(&format!("consume q{index}")), "consuming");
        for number in (index..MESSAGES).step_by(2) {
            let heard = client.hear();
            assert_eq!(heard.split_once(' ').unwrap().0, number.to_string());
        }
    }
    broker.stop().unwrap();
}
