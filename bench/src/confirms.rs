//! How long a confirm of a persistent message takes, one message at a time, beside what a plain synchronous
//! write of a block takes on the same disk: both in turns, so that whatever else the machine does meets both.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, thread};

use crate::client::{Client, ClientError, publish};

/// One block, the least that direct I/O writes.
const BLOCK_BYTES: usize = 4096;
/// Blocks of the file that is overwritten.
const FILE_BLOCKS: usize = 4096;
/// Confirms, and writes, in one turn.
const TURN: usize = 200;
/// Threads of the second part.
const THREADS: usize = 2;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Confirms {
    /// Host and port of the broker.
    pub address: String,
    /// A directory on the disk that the broker uses.
    pub directory: PathBuf,
    /// Bytes of each body.
    pub body_bytes: usize,
    /// Turns of 200 confirms and 200 writes.
    pub turns: usize,
    /// Publishers in the second part, each with one message at a time.
    pub publishers: usize,
    /// How long the second part takes.
    pub duration: Duration,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct ConfirmsReport {
    /// Sorted times of confirms.
    pub confirms: Vec<Duration>,
    /// Sorted times of plain writes.
    pub writes: Vec<Duration>,
    /// Confirms a second of all publishers together.
    pub together_per_second: f64,
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

impl fmt::Display for ConfirmsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |times: &[Duration]| {
            let us = |share| quantile(times, share).as_secs_f64() * 1e6;
            format!("p50 {:.0} us, p99 {:.0} us", us(0.5), us(0.99))
        };
        let ratio = quantile(&self.confirms, 0.5).as_secs_f64() / quantile(&self.writes, 0.5).as_secs_f64();
        let one = 1.0 / (self.confirms.iter().sum::<Duration>().as_secs_f64() / self.confirms.len() as f64);
        writeln!(f, "confirm one at a time: {}", line(&self.confirms))?;
        writeln!(f, "synchronous write of {BLOCK_BYTES} bytes: {}", line(&self.writes))?;
        writeln!(f, "ratio of the medians: {ratio:.2}")?;
        let (all, times) = (self.together_per_second, self.together_per_second / one);
        write!(f, "one publisher {one:.0} confirms/s, all together {all:.0} confirms/s: {times:.1} times")
    }
}

/// A file that is overwritten synchronously, block by block.
struct PlainFile {
    file: fs::File,
    path: PathBuf,
    block: Vec<u8>,
    aligned: usize,
    next: usize,
}

impl PlainFile {
    fn new(directory: &Path) -> std::io::Result<PlainFile> {
        let path = directory.join(format!("lepus-bench-{}", std::process::id()));
        fs::write(&path, vec![1; FILE_BLOCKS * BLOCK_BYTES])?;
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let file = OpenOptions::new().write(true).custom_flags(flags).open(&path)?;
        file.sync_all()?;
        let block = vec![2; 2 * BLOCK_BYTES];
        let aligned = block.as_ptr().align_offset(BLOCK_BYTES);
        Ok(PlainFile { file, path, block, aligned, next: 0 })
    }

    fn write(&mut self) -> std::io::Result<Duration> {
        let block = &self.block[self.aligned..self.aligned + BLOCK_BYTES];
        let began = Instant::now();
        self.file.write_all_at(block, (self.next * BLOCK_BYTES) as u64)?;
        self.next = (self.next + 1) % FILE_BLOCKS;
        Ok(began.elapsed())
    }
}

impl Drop for PlainFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A publisher that waits for each confirm.
struct Publisher {
    client: Client,
    frames: Vec<u8>,
}

impl Publisher {
    fn new(run: &Confirms, queue: &str) -> Result<Publisher, ClientError> {
        let mut client = Client::connect(&run.address)?;
        client.declare(queue, true)?;
        client.call(85, 10, &[0], 85, 11)?;
        Ok(Publisher { client, frames: publish(queue, &vec![0; run.body_bytes], true) })
    }

    fn send(&mut self) -> Result<(), ClientError> {
        Ok(self.client.socket.write_all(&self.frames)?)
    }

    fn wait(&mut self) -> Result<(), ClientError> {
        // An ack is one frame of 21 bytes; nothing else comes on this connection.
        let mut ack = [0; 21];
        Ok(self.client.socket.read_exact(&mut ack)?)
    }

    fn publish(&mut self) -> Result<Duration, ClientError> {
        let began = Instant::now();
        self.send()?;
        self.wait()?;
        Ok(began.elapsed())
    }
}

impl Confirms {
    /// Measures. The queue is purged in between.
    ///
    /// # Errors
    /// When the broker is not there, or the directory cannot be written.
    pub fn run(&self) -> Result<ConfirmsReport, ClientError> {
        let queue = "lepus-bench.confirms";
        let mut publisher = Publisher::new(self, queue)?;
        let mut file = PlainFile::new(&self.directory)?;
        let (mut confirms, mut writes) = (Vec::new(), Vec::new());
        for turn in 0..=self.turns {
            for _ in 0..TURN {
                let confirm = publisher.publish()?;
                if turn > 0 {
                    confirms.push(confirm);
                }
            }
            for _ in 0..TURN {
                let write = file.write()?;
                if turn > 0 {
                    writes.push(write);
                }
            }
        }
        confirms.sort_unstable();
        writes.sort_unstable();
        let together_per_second = self.together(queue)?;
        publisher.client.purge(queue)?;
        Ok(ConfirmsReport { confirms, writes, together_per_second })
    }

    /// All publishers, each with one message at a time, on a few threads: a thread for each would
    /// measure the scheduler.
    fn together(&self, queue: &str) -> Result<f64, ClientError> {
        let mut publishers = Vec::new();
        for _ in 0..self.publishers {
            publishers.push(Publisher::new(self, queue)?);
        }
        let share = self.publishers.div_ceil(THREADS);
        let began = Instant::now();
        let counts: Vec<Result<u64, ClientError>> = thread::scope(|scope| {
            let threads: Vec<_> = publishers
                .chunks_mut(share)
                .map(|own| scope.spawn(|| rounds(own, began, self.duration)))
                .collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let total: u64 = counts.into_iter().sum::<Result<u64, _>>()?;
        Ok(total as f64 / began.elapsed().as_secs_f64())
    }
}

fn rounds(publishers: &mut [Publisher], began: Instant, duration: Duration) -> Result<u64, ClientError> {
    let mut count = 0;
    while began.elapsed() < duration {
        for publisher in publishers.iter_mut() {
            publisher.send()?;
        }
        for publisher in publishers.iter_mut() {
            publisher.wait()?;
        }
        count += publishers.len() as u64;
    }
    Ok(count)
}
