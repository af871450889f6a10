//! Makes the shards and waits for their end. Runs on the main thread, except for [`shard_main`].

use std::cell::RefCell;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lepus_shards::mesh::{Bell, Mesh, MeshPort};
use lepus_shards::runtime::{
    Doorbell, DoorbellWaiter, Listener, Placement, RuntimeError, ShardOptions, sleep, spawn, spawn_shards,
    spin, yield_now,
};
use lepus_shards::shard::{Batch, Shard, ShardConfig, WRITER};
use lepus_shards::topology::{Change, TopologyError, Writer};
use lepus_shards::{Durability, ShardId};
use lepus_storage::{StoreError, TopologyStore};

use super::accept::{self, Handovers};
use super::connection;
use super::drain::{Drain, DrainShared};
use super::limits::HANDOVERS_MAX;
use super::message_log::{Clocks, LogSeed, MessageLog};
use super::protocol::Protocol;
use super::recovery::{self, LogError};
use super::store::Persistence;
use super::surroundings::Surroundings;
use super::timings::Loudness;
use super::worker::{Handover, Home, WorkerParts};
use crate::boot::{Inquiry, Pulse, ShutdownSignal};

/// Why the server did not run, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The shards' threads.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A doorbell needs a descriptor.
    #[error("cannot make the shards' doorbells: {0}; raise the limit of open files (ulimit -n)")]
    Doorbell(io::Error),
    /// The stored topology is not one.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Rows of the topology could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The shards' logs cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A shard could not take over its sockets, or something broke later.
    #[error("{0}")]
    Failed(String),
}

/// Everything that a broker starts from, free of any protocol.
pub struct Broker {
    /// One shard for each.
    pub shards: Vec<Placement>,
    /// How their executors behave.
    pub options: ShardOptions,
    /// Bound and listening.
    pub listeners: Vec<TcpListener>,
    /// The topology to begin with.
    pub changes: Vec<Change>,
    /// Decides about changes of the topology.
    pub writer: Writer,
    /// Where durable changes go.
    pub store: TopologyStore,
    /// What messages in durable queues outlive unless the queue says otherwise.
    pub(super) durability: Durability,
    /// The shards' logs, read; without them nothing outlives the process.
    pub(super) logs: Vec<LogSeed>,
    /// Counts the starts of the broker.
    pub epoch: u32,
    /// Bytes of messages on one shard from which on publishers are blocked.
    pub memory_per_shard_bytes: u64,
    /// How long a delivery may stay unacked, where its queue does not say; 0 is for ever.
    pub consumer_timeout_ms: u64,
    /// How long a connection may leave output unread.
    pub write_stall_timeout_ms: u64,
    /// Turns that take longer than so many milliseconds are logged; 0: none is.
    pub stall_report_ms: u64,
    /// Asks for a drain and a stop.
    pub shutdown: Arc<ShutdownSignal>,
    /// Where each shard notes that it turns.
    pub pulse: Arc<Pulse>,
    /// Asks each shard to log its timings.
    pub inquiry: Arc<Inquiry>,
    /// Called once, when all shards run and connections are accepted.
    pub on_ready: Box<dyn FnOnce() + Send>,
}

/// Runs once, when the last of several has arrived.
struct Startup {
    missing: AtomicUsize,
    on_ready: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Startup {
    fn arrived(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            let on_ready = self.on_ready.lock().unwrap_or_else(PoisonError::into_inner).take();
            on_ready.expect("only one is the last")();
        }
    }
}

/// What all shards start from.
struct Common {
    startup: Startup,
    changes: Vec<Change>,
    drain: Arc<DrainShared>,
    pulse: Arc<Pulse>,
    inquiry: Arc<Inquiry>,
    stall_report_ms: u64,
    started: Instant,
    open: Arc<AtomicUsize>,
    shards: usize,
    epoch: u32,
    memory_per_shard_bytes: u64,
    durability: Durability,
    consumer_timeout_ms: u64,
    write_stall_timeout_ms: u64,
}

/// What one shard starts from. Made on the main thread, used up on the shard's.
struct Seed {
    common: Arc<Common>,
    port: MeshPort<Batch>,
    doorbell: Arc<Doorbell>,
    handovers: rtrb::Consumer<Handover>,
    log: Option<LogSeed>,
    /// On the accepting and writing shard.
    first: Option<FirstSeed>,
}

type PlacedSeed = (Placement, Seed);

struct FirstSeed {
    listeners: Vec<TcpListener>,
    handovers: Handovers,
    writer: Writer,
    store: TopologyStore,
}

impl Broker {
    /// Runs the broker with this protocol, made anew on each shard, until it has been asked to stop
    /// and has drained.
    ///
    /// # Errors
    /// [`ServerError`]; no shard runs any more then.
    pub fn run<P, F>(self, protocol: F) -> Result<(), ServerError>
    where
        P: Protocol,
        F: FnOnce(ShardId) -> P + Clone + Send + 'static,
    {
        let shutdown = Arc::clone(&self.shutdown);
        let options = self.options.clone();
        let (seeds, common) = self.seeds()?;
        let drain = Arc::clone(&common.drain);
        let threads = spawn_shards(seeds, &options, move |seed: Seed| {
            let front = protocol(seed.port.id());
            shard_main(seed, front)
        })?;
        let (bells, too) = (Arc::clone(&drain), Arc::clone(&drain));
        shutdown.on_request(Box::new(move || bells.ring_all()));
        common.inquiry.on_ask(Box::new(move || too.ring_all()));
        let open = Arc::clone(&common.open);
        shutdown.report_remaining(Box::new(move || match open.load(Ordering::Relaxed) {
            1 => "1 connection".to_owned(),
            count => format!("{count} connections"),
        }));
        threads.join();
        match drain.failure() {
            None => Ok(()),
            Some(reason) => Err(ServerError::Failed(reason)),
        }
    }

    fn seeds(self) -> Result<(Vec<PlacedSeed>, Arc<Common>), ServerError> {
        let shards = self.shards.len();
        let doorbells: Vec<Arc<Doorbell>> = (0..shards)
            .map(|_| Doorbell::new().map(Arc::new))
            .collect::<io::Result<_>>()
            .map_err(ServerError::Doorbell)?;
        let bells = doorbells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Bell>).collect();
        let ports = Mesh::build::<Batch>(bells);
        let (ways, ends): (Vec<_>, Vec<_>) = doorbells
            .iter()
            .map(|doorbell| {
                let (way, end) = rtrb::RingBuffer::new(HANDOVERS_MAX);
                ((way, Arc::clone(doorbell)), end)
            })
            .unzip();
        let common = Arc::new(Common {
            startup: Startup { missing: AtomicUsize::new(shards), on_ready: Mutex::new(Some(self.on_ready)) },
            changes: self.changes,
            drain: Arc::new(DrainShared::new(self.shutdown, doorbells.clone())),
            pulse: self.pulse,
            inquiry: self.inquiry,
            stall_report_ms: self.stall_report_ms,
            started: Instant::now(),
            open: Arc::new(AtomicUsize::new(0)),
            shards,
            epoch: self.epoch,
            memory_per_shard_bytes: self.memory_per_shard_bytes,
            durability: self.durability,
            consumer_timeout_ms: self.consumer_timeout_ms,
            write_stall_timeout_ms: self.write_stall_timeout_ms,
        });
        let mut first = Some(FirstSeed {
            listeners: self.listeners,
            handovers: Handovers::new(ways),
            writer: self.writer,
            store: self.store,
        });
        let mut logs = self.logs.into_iter();
        let ends = ports.into_iter().zip(doorbells).zip(ends).zip(self.shards);
        let seeds = ends.map(|(((port, doorbell), handovers), placement)| {
            let first = if port.id() == WRITER { first.take() } else { None };
            (
                placement,
                Seed { common: Arc::clone(&common), port, doorbell, handovers, log: logs.next(), first },
            )
        });
        let seeds = seeds.collect();
        Ok((seeds, common))
    }
}

/// One shard, from its start to its end.
async fn shard_main<P: Protocol>(seed: Seed, front: P) {
    let common = Arc::clone(&seed.common);
    let shared = Arc::clone(&common.drain);
    match start(seed, front) {
        Ok(home) => {
            common.startup.arrived();
            pump(home).await;
        }
        Err(error) => {
            Drain::new(shared).give_up(format!("a shard cannot take over its sockets and its log: {error}"))
        }
    }
}

/// Makes the shard and starts its tasks, all but the pump.
fn start<P: Protocol>(seed: Seed, front: P) -> io::Result<Rc<Home<P>>> {
    let Seed { common, port, doorbell, handovers, log, first } = seed;
    let waiter = DoorbellWaiter::new(Arc::clone(&doorbell));
    let own_doorbell = Arc::clone(&doorbell);
    let (mut writer, mut persistence, mut accepting) = (None, None, None);
    if let Some(first) = first {
        let listeners: io::Result<Vec<Listener>> = first.listeners.into_iter().map(Listener::adopt).collect();
        writer = Some(first.writer);
        let store = Persistence::new(first.store);
        store.notify(Arc::new(move || doorbell.ring()));
        persistence = Some(store);
        accepting = Some((listeners?, first.handovers));
    }
    let config = ShardConfig {
        id: port.id(),
        shards: common.shards,
        epoch: common.epoch,
        memory_budget_bytes: common.memory_per_shard_bytes,
        durability: common.durability,
        consumer_timeout_ms: common.consumer_timeout_ms,
    };
    let mut shard = Shard::new(config, &common.changes, writer);
    let log = log.map(|seed| {
        let mut queues = recovery::durable_queues(&common.changes);
        queues.retain(|_, queue| queue.owner() == shard.id());
        let with_records = queues.values().copied().filter(|&queue| shard.needs_records(queue)).collect();
        // What is left of a message's time begins now.
        let clocks = Clocks::now(common.started);
        shard.set_time(clocks.shard_ms);
        MessageLog::start(seed, own_doorbell.as_fd(), &queues, &with_records, clocks, |restored| {
            shard.restore(&front, restored);
        })
    });
    let home = Home::new(WorkerParts {
        shard,
        surroundings: Surroundings::new(front, common.shards, persistence, log.transpose()?),
        port,
        handovers,
        started: common.started,
        write_stall_timeout_ms: common.write_stall_timeout_ms,
        open: Arc::clone(&common.open),
        drain: Drain::new(Arc::clone(&common.drain)),
        pulse: Arc::clone(&common.pulse),
        inquiry: Arc::clone(&common.inquiry),
        stall_report_ms: common.stall_report_ms,
    });
    spawn(answer_bell(waiter, Rc::clone(&home)));
    spawn(tick(Rc::clone(&home)));
    if let Some((listeners, handovers)) = accepting {
        let handovers = Rc::new(RefCell::new(handovers));
        for listener in listeners {
            let listener = Rc::new(listener);
            home.worker.borrow_mut().add_listener(Rc::clone(&listener));
            spawn(accept::accept(Rc::clone(&home), listener, Rc::clone(&handovers)));
        }
    }
    Ok(home)
}

/// Turn after turn while there is something to do, then sleep. Ends with the broker.
async fn pump<P: Protocol>(home: Rc<Home<P>>) {
    loop {
        let turn = home.worker.borrow_mut().turn();
        for connection in turn.arrived {
            spawn(connection::read(Rc::clone(&home), connection));
        }
        for connection in turn.write_blocked {
            spawn(connection::write_when_possible(Rc::clone(&home), connection));
        }
        for due_in in turn.due_in.into_iter().flatten() {
            spawn(wake_after(due_in, Rc::clone(&home)));
        }
        if turn.ended {
            home.worker.borrow_mut().tell_timings(Loudness::Unasked);
            return;
        }
        if turn.again {
            // Sockets that can be read are read first, and what was read is in the next turn.
            yield_now().await;
        } else if turn.commit_ends_soon && spin(|| !home.worker.borrow_mut().waits_for_commit()).await {
        } else if home.worker.borrow_mut().try_park() {
            home.wake.notified().await;
            home.worker.borrow_mut().unpark();
        }
    }
}

async fn wake_after<P: Protocol>(time: Duration, home: Rc<Home<P>>) {
    sleep(time).await;
    home.wake.notify();
}

async fn answer_bell<P: Protocol>(waiter: DoorbellWaiter, home: Rc<Home<P>>) {
    loop {
        waiter.wait().await.expect("an eventfd that is open can be read");
        home.wake.notify();
    }
}

async fn tick<P: Protocol>(home: Rc<Home<P>>) {
    loop {
        let pause = home.worker.borrow_mut().tick();
        home.wake.notify();
        sleep(pause).await;
    }
}
