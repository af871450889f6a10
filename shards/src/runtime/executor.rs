//! The threads that shards run on: one executor each, pinned to its CPU; tasks and timers on it.
//!
//! An executor runs the tasks that can run, in the order in which they were woken, each once; then it looks
//! what the kernel has, which costs no system call if there is nothing; and so on. It sleeps, in the one call
//! that also hands over and fetches, when no task can run. So a task may stay runnable for as long as it
//! likes, if it only comes back: sockets, timers and other tasks get their turns.
//!
//! - A task is woken on its own thread only; whoever is on another rings a [`super::Doorbell`].
//! - [`spawn`] puts a task in line, and does not run its first step: the spawning task may hold a `RefCell`.
//! - An executor that cannot be made shows before any shard starts: [`spawn_shards`] makes all of them first
//!   and returns the first error.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use async_task::Runnable;
use rustix::thread::{CpuSet, sched_setaffinity};
use slab::Slab;

use super::reactor::Reactor;

/// Where a shard's thread runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On this CPU only.
    Cpu(usize),
    /// Wherever the kernel puts it.
    Anywhere,
}

/// How the executors behave.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// How long a shard that has nothing to do looks around before it sleeps, if lately it did not have to wait
    /// longer: at zero never, at the longest time there is always, and without ever sleeping.
    pub spin_before_park: Duration,
    /// Entries of the executor's submission ring. Bounds what is handed to the kernel at once, and not how many
    /// sockets are awaited.
    pub ring_depth: u32,
}

impl Default for ShardOptions {
    fn default() -> ShardOptions {
        ShardOptions { spin_before_park: Duration::ZERO, ring_depth: 512 }
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
    /// No executor: the CPU is not available, or io_uring is not.
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
            let executor = Executor::new(placement, &options);
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

/// Pins the calling thread.
fn pin(placement: Placement) -> io::Result<()> {
    let Placement::Cpu(cpu) = placement else { return Ok(()) };
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such CPU"));
    }
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    Ok(sched_setaffinity(None, &cpus)?)
}

thread_local! {
    /// The executor that this thread is.
    static CURRENT: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

fn current() -> Rc<Executor> {
    CURRENT.with_borrow(Option::clone).expect("it is called on a shard")
}

/// The reactor of this shard.
pub(super) fn reactor() -> Rc<Reactor> {
    Rc::clone(&current().reactor)
}

/// One shard's.
struct Executor {
    thread: thread::ThreadId,
    reactor: Rc<Reactor>,
    /// Tasks that can run, in the order in which they were woken.
    ready: RefCell<VecDeque<Runnable>>,
    /// Ways to all tasks that have not ended: without them, one that waits for nothing could not be dropped.
    tasks: RefCell<Slab<Waker>>,
}

impl Executor {
    /// On this thread, which is pinned.
    fn new(placement: Placement, options: &ShardOptions) -> io::Result<Rc<Executor>> {
        pin(placement)?;
        Ok(Rc::new(Executor {
            thread: thread::current().id(),
            reactor: Reactor::new(options.ring_depth, options.spin_before_park)?,
            ready: RefCell::default(),
            tasks: RefCell::default(),
        }))
    }

    /// Runs tasks until this one has ended; drops the others then.
    fn run<T: 'static>(self: Rc<Executor>, main: impl Future<Output = T> + 'static) -> T {
        CURRENT.set(Some(Rc::clone(&self)));
        let ended = Rc::new(Cell::new(None));
        let end = Rc::clone(&ended);
        self.spawn(async move { end.set(Some(main.await)) });
        let returned = loop {
            self.run_ready();
            if let Some(returned) = ended.take() {
                break returned;
            }
            if self.ready.borrow().is_empty() {
                self.reactor.wait();
            } else {
                self.reactor.look();
            }
        };
        self.drop_tasks();
        CURRENT.set(None);
        returned
    }

    /// Each task that can run now, once.
    fn run_ready(&self) {
        let count = self.ready.borrow().len();
        for _ in 0..count {
            let task = self.ready.borrow_mut().pop_front();
            task.expect("only this takes tasks out").run();
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let key = self.tasks.borrow().vacant_key();
        let tracked = async move {
            task.await;
            current().tasks.borrow_mut().remove(key);
        };
        let home = self.thread;
        let schedule = move |task: Runnable| {
            assert_eq!(thread::current().id(), home, "a shard's tasks are woken on its own thread");
            // A waker that outlives the executor wakes nobody.
            if let Some(executor) = CURRENT.with_borrow(Option::clone) {
                executor.ready.borrow_mut().push_back(task);
            }
        };
        let (task, handle) = async_task::spawn_local(tracked, schedule);
        self.tasks.borrow_mut().insert(task.waker());
        handle.detach();
        task.schedule();
    }

    /// Tasks may wake, and even spawn, others when they are dropped.
    fn drop_tasks(&self) {
        loop {
            let tasks: Vec<Waker> = self.tasks.borrow_mut().drain().collect();
            tasks.into_iter().for_each(Waker::wake);
            let ready = self.ready.take();
            if ready.is_empty() {
                return;
            }
            drop(ready);
        }
    }
}

/// Runs a task on this shard, from its next turn on, until it ends or the shard does.
///
/// # Panics
/// Outside of a shard.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    current().spawn(task);
}

/// Returns no sooner than this.
///
/// # Panics
/// Outside of a shard.
pub async fn sleep(duration: Duration) {
    reactor().sleep(duration).await;
}

/// Looks around until `over`, or until there is something for another task; true then. False when the CPU was
/// wanted by somebody else: then it is better to sleep, since being woken gets it back sooner.
///
/// # Panics
/// Outside of a shard.
pub async fn spin(over: impl Fn() -> bool) -> bool {
    // What can run, and what the kernel has, comes first.
    yield_now().await;
    let executor = current();
    executor.reactor.look_around(|_| over() || !executor.ready.borrow().is_empty())
}

/// Lets every other task of the shard that can run do so before this one goes on, and looks what the kernel
/// has for them.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
