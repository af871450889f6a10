//! As many messages as go through: publishers fill sockets, consumers count deliveries.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{Client, ClientError, method, publish};

/// A throughput run.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// `ADDR:PORT` of the broker.
    pub address: String,
    /// Connections that publish, each to the queue of its number modulo `queues`.
    pub producers: usize,
    /// Connections that consume, likewise.
    pub consumers: usize,
    /// Queues to spread them over.
    pub queues: usize,
    /// Bytes of each body.
    pub body_bytes: usize,
    /// Delivery mode 2 and durable queues.
    pub persistent: bool,
    /// Publisher confirms, at most this many outstanding on a connection; 0: none.
    pub confirm_window: u64,
    /// Manual acks, one `multiple` ack for each read, with this prefetch; 0: no acks.
    pub prefetch: u16,
    /// How long to run.
    pub duration: Duration,
    /// The broker's process, to charge its CPU time.
    pub pid: Option<u32>,
}

/// What a run gave.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Messages published.
    pub published: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Seconds that the run took.
    pub elapsed_s: f64,
    /// CPU seconds of the broker, if its process was named.
    pub broker_cpu_s: f64,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = self.delivered as f64 / self.elapsed_s;
        let cpu_us = self.broker_cpu_s * 1e6 / self.delivered.max(1) as f64;
        write!(
            f,
            "{} published, {} delivered in {:.1} s: {rate:.0} msg/s, broker CPU {cpu_us:.3} µs per message",
            self.published, self.delivered, self.elapsed_s
        )
    }
}

/// CPU seconds that a process has used, user and system, from `/proc`.
///
/// # Errors
/// When there is no such process.
pub fn cpu_seconds(pid: u32) -> std::io::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields 14 and 15; the name in field 2 may hold blanks, so count from its closing bracket.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().filter_map(|field| field.parse::<f64>().ok()).sum();
    // The kernel counts in USER_HZ, which is 100 on every Linux.
    Ok(ticks / 100.0)
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    published: AtomicU64,
    delivered: AtomicU64,
}

impl Throughput {
    /// Runs it.
    ///
    /// # Errors
    /// When the broker cannot be reached or closes a connection.
    pub fn run(&self) -> Result<Report, ClientError> {
        let shared = Shared::default();
        let name = |index: usize| format!("bench-{}", index % self.queues);
        let mut setup = Client::connect(&self.address)?;
        for queue in 0..self.queues {
            setup.declare(&name(queue), self.persistent)?;
        }
        let (cpu, start) = (self.broker_cpu(), Instant::now());
        thread::scope(|scope| {
            let shared = &shared;
            let mut workers = Vec::new();
            for index in 0..self.consumers {
                let queue = name(index);
                workers.push(scope.spawn(move || self.consume(&queue, shared)));
            }
            for index in 0..self.producers {
                let queue = name(index);
                workers.push(scope.spawn(move || self.produce(&queue, shared)));
            }
            thread::sleep(self.duration);
            shared.stop.store(true, Ordering::Relaxed);
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        Ok(Report {
            published: shared.published.into_inner(),
            delivered: shared.delivered.into_inner(),
            elapsed_s: start.elapsed().as_secs_f64(),
            broker_cpu_s: self.broker_cpu() - cpu,
        })
    }

    fn broker_cpu(&self) -> f64 {
        self.pid.and_then(|pid| cpu_seconds(pid).ok()).unwrap_or(0.0)
    }

    fn produce(&self, queue: &str, shared: &Shared) -> Result<(), ClientError> {
        let mut client = Client::connect(&self.address)?;
        if self.confirm_window > 0 {
            client.call(85, 10, &[0], 85, 11)?;
        }
        let one = publish(queue, &vec![b'x'; self.body_bytes], self.persistent);
        let per_write = match self.confirm_window {
            0 => (256 * 1024 / one.len()).max(1) as u64,
            window => (window / 4).max(1),
        };
        let chunk = one.repeat(per_write as usize);
        let (mut sent, mut confirmed) = (0, 0);
        let mut scanner = Scanner::default();
        while !shared.stop.load(Ordering::Relaxed) {
            client.socket.write_all(&chunk)?;
            sent += per_write;
            shared.published.fetch_add(per_write, Ordering::Relaxed);
            while self.confirm_window > 0 && sent - confirmed > self.confirm_window - per_write {
                scanner.read(&mut client)?;
                scanner.each(|kind, payload| {
                    if kind == 1 && payload.starts_with(&[0, 60, 0, 80]) {
                        let tag = payload[4..12].try_into().map(u64::from_be_bytes).expect("eight bytes");
                        confirmed = confirmed.max(tag);
                    }
                });
            }
        }
        Ok(())
    }

    fn consume(&self, queue: &str, shared: &Shared) -> Result<(), ClientError> {
        let mut client = Client::connect(&self.address)?;
        client.consume(queue, self.prefetch == 0, self.prefetch)?;
        client.socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut scanner = Scanner { buffer: client.take_rest(), ..Scanner::default() };
        loop {
            let (mut deliveries, mut last_tag) = (0, 0);
            scanner.each(|kind, payload| {
                if kind == 1 && payload.starts_with(&[0, 60, 0, 60]) {
                    deliveries += 1;
                    // Behind the consumer tag "c".
                    last_tag = payload[6..14].try_into().map(u64::from_be_bytes).expect("eight bytes");
                }
            });
            shared.delivered.fetch_add(deliveries, Ordering::Relaxed);
            if self.prefetch > 0 && deliveries > 0 {
                let mut arguments = u64::to_be_bytes(last_tag).to_vec();
                arguments.push(1);
                client.socket.write_all(&method(1, 60, 80, &arguments))?;
            }
            match scanner.read(&mut client) {
                Ok(()) => {}
                Err(ClientError::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if shared.stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
            if shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
}

/// Frames out of a stream, without copying whole ones.
#[derive(Default)]
struct Scanner {
    buffer: Vec<u8>,
    start: usize,
    chunk: Vec<u8>,
}

impl Scanner {
    fn read(&mut self, client: &mut Client) -> Result<(), ClientError> {
        self.chunk.resize(512 * 1024, 0);
        let read = client.socket.read(&mut self.chunk)?;
        if read == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        self.buffer.extend_from_slice(&self.chunk[..read]);
        Ok(())
    }

    fn each(&mut self, mut frame: impl FnMut(u8, &[u8])) {
        loop {
            let rest = &self.buffer[self.start..];
            if rest.len() < 8 {
                break;
            }
            let size = u32::from_be_bytes([rest[3], rest[4], rest[5], rest[6]]) as usize;
            if rest.len() < size + 8 {
                break;
            }
            frame(rest[0], &rest[7..7 + size]);
            self.start += size + 8;
        }
        self.buffer.drain(..self.start);
        self.start = 0;
    }
}
