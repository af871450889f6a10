//! The threads that shards run on: one executor each, pinned to its CPU; tasks and timers on it.
//!
//! What the executor library does otherwise, and what is done about it here:
//!
//! - While some task stays runnable it looks at sockets and timers only when its preemption timer
//!   fires; and if the timer has fired by the time it begins to run tasks - the kernel had given the CPU
//!   to somebody else for so long - it goes to sleep with tasks runnable, and nothing wakes it. A
//!   short timer therefore costs wake-ups on a busy host: with 0.3 ms, a shard was seen to sleep for ten
//!   minutes. So the timer is long ([`PREEMPT_TIMER`]), and no task may stay runnable: one that has more
//!   to do waits for something that the kernel reports, a socket or its own [`super::Doorbell`].
//! - It runs a new task's first step inside the call that spawns it, where the spawning task may hold
//!   a `RefCell`: [`spawn`] puts the task in line instead.
//! - A dropped task handle cancels its task: [`spawn`] detaches.
//! - An executor that cannot be made shows only when its thread is joined: [`spawn_shards`] makes all
//!   executors first, returns the first error, and only then lets any shard start.
#![forbid(unsafe_code)]

use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use glommio::{LocalExecutor, LocalExecutorBuilder};

/// Where a shard's thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On this CPU only.
    Cpu(usize),
    /// Wherever the kernel puts it. Such a shard does not spin before it sleeps.
    Anywhere,
}

/// Longer than any time for which a thread does not get its CPU.
const PREEMPT_TIMER: Duration = Duration::from_secs(1);

/// How the executors behave.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// How long a shard that has nothing to do looks around before it sleeps; zero sleeps at once.
    pub spin_before_park: Duration,
    /// Entries of each of the executor's submission rings (the completion rings have twice as many).
    /// Bounds what is handed to the kernel at once, and not how many sockets are awaited.
    pub ring_depth: usize,
    /// Registered memory for disk I/O of the executor, in bytes; it takes 64 KiB at least.
    pub io_memory_bytes: usize,
}

impl Default for ShardOptions {
    fn default() -> ShardOptions {
        ShardOptions { spin_before_park: Duration::ZERO, ring_depth: 512, io_memory_bytes: 64 * 1024 }
    }
}

/// Why shards could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// No thread.
    #[error("cannot start a thread for shard {shard}: {source}; raise the limit on processes (ulimit -u)")]
    Thread {
        /// Counted from 0.
        shard: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// No executor: the CPU is not available, io_uring is not, or too little memory may be locked.
    #[error("cannot start shard {shard} on {placement:?}: {source}")]
    Executor {
        /// Counted from 0.
        shard: usize,
        /// Where it should have run.
        placement: Placement,
        /// What the executor or the kernel said.
        source: io::Error,
    },
}

/// The running shards.
#[derive(Debug)]
pub struct ShardThreads<T> {
    threads: Vec<thread::JoinHandle<Option<T>>>,
}

impl<T> ShardThreads<T> {
    /// Blocks until all shards have ended and returns what they returned, in their order.
    ///
    /// # Panics
    /// When a shard has panicked: with its panic.
    pub fn join(self) -> Vec<T> {
        self.threads
            .into_iter()
            .filter_map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    }
}

/// Starts one thread for each seed and runs `start(seed)` on its executor until it returns. What it
/// has spawned and not awaited is dropped then.
///
/// # Errors
/// When one of the executors cannot be made; then no shard has started.
pub fn spawn_shards<S, T, F, R>(
    seeds: Vec<(Placement, S)>,
    options: &ShardOptions,
    start: F,
) -> Result<ShardThreads<T>, RuntimeError>
where
    S: Send + 'static,
    T: Send + 'static,
    F: FnOnce(S) -> R + Clone + Send + 'static,
    R: Future<Output = T> + 'static,
{
    let (made_in, made) = mpsc::channel();
    let mut threads = Vec::with_capacity(seeds.len());
    let mut starters = Vec::with_capacity(seeds.len());
    for (shard, (placement, seed)) in seeds.into_iter().enumerate() {
        let (starter, started) = mpsc::channel::<S>();
        let (made_in, options, start) = (made_in.clone(), options.clone(), start.clone());
        let run = move || {
            let executor = executor(placement, &options);
            let failed = executor.as_ref().err().map(|error| io::Error::new(error.kind(), error.to_string()));
            // The other side waits for one message from each thread before it goes away.
            let _ = made_in.send((shard, placement, failed));
            // No seed comes when another shard's executor could not be made.
            let (executor, seed) = (executor.ok()?, started.recv().ok()?);
            Some(executor.run(start(seed)))
        };
        let thread = thread::Builder::new()
            .name(format!("shard-{shard}"))
            .spawn(run)
            .map_err(|source| RuntimeError::Thread { shard, source })?;
        threads.push(thread);
        starters.push((starter, seed));
    }
    for _ in &threads {
        let (shard, placement, failed) = made.recv().expect("every thread sends one message");
        if let Some(source) = failed {
            // The starters go out of scope, and with them the threads that wait for a seed.
            return Err(RuntimeError::Executor { shard, placement, source });
        }
    }
    for (starter, seed) in starters {
        assert!(starter.send(seed).is_ok(), "the thread has said that it waits for its seed");
    }
    Ok(ShardThreads { threads })
}

fn executor(placement: Placement, options: &ShardOptions) -> io::Result<LocalExecutor> {
    let place = match placement {
        Placement::Cpu(cpu) => glommio::Placement::Fixed(cpu),
        Placement::Anywhere => glommio::Placement::Unbound,
    };
    let executor = LocalExecutorBuilder::new(place)
        .preempt_timer(PREEMPT_TIMER)
        .spin_before_park(options.spin_before_park)
        .ring_depth(options.ring_depth)
        .io_memory(options.io_memory_bytes)
        .make()?;
    Ok(executor)
}

/// Runs a task on this shard, from its next turn on, until it ends or the shard does.
///
/// # Panics
/// Outside of a shard.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    let executor = glommio::executor();
    executor
        .spawn_local_into(task, executor.current_task_queue())
        .expect("the queue that runs this task exists")
        .detach();
}

/// Returns no sooner than this, on the executor's one timer wheel.
pub async fn sleep(duration: Duration) {
    glommio::timer::Timer::new(duration).await;
}

/// Lets every other task of the shard that can run do so before this one goes on. Sockets are not looked
/// at meanwhile: not for a task that does it again and again.
pub async fn yield_now() {
    glommio::executor().yield_now().await;
}
