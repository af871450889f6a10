//! From a configuration to a running broker, and to its end.
//!
//! Runs on the main thread. Everything that can be wrong with host or configuration is found here, before
//! a shard exists, so that it ends in one line that says what to do and not in the middle of something.
//! Invariants: the data directory is held from before the store is opened until after it is closed,
//! and nothing is written into it before it is held.

mod inquiry;
mod listeners;
mod plan;
mod port_holder;
mod pulse;
mod shutdown;
mod signals;
mod supervisor;

use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lepus_storage::{DataDir, DataDirError, StoreError, TopologyStore};
use lepus_tuning::cpus::{self, Cpus, CpusError};
use lepus_tuning::kernel::KernelVersion;
use lepus_tuning::limits::{self, MemlockError};
use lepus_tuning::memory;
use lepus_tuning::uring::{self, UringError};
use thiserror::Error;
use tracing::{info, warn};

use crate::config::{Config, Settings};
pub use inquiry::Inquiry;
pub use listeners::ListenError;
pub use plan::ServerPlan;
pub use pulse::Pulse;
pub use shutdown::ShutdownSignal;
use signals::SignalThread;
pub use supervisor::Supervisor;
use supervisor::Watchdog;

/// Why the broker did not start, or stopped other than by being asked to.
#[derive(Debug, Error)]
pub enum BootError {
    /// No io_uring.
    #[error(transparent)]
    Uring(#[from] UringError),
    /// Not the CPUs that were asked for.
    #[error(transparent)]
    Cpus(#[from] CpusError),
    /// Too little memory may be locked.
    #[error(transparent)]
    Memlock(#[from] MemlockError),
    /// The data directory is not to be had.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// An address is not to be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The stored topology cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// How much memory there is cannot be found out.
    #[error("cannot find out how much memory there is: {0}; give memory_budget in bytes")]
    Memory(io::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals: {0}; check the limits of this process")]
    Signals(io::Error),
    /// The watchdog cannot be fed.
    #[error("cannot start a thread for the watchdog: {0}; raise the limit on processes (ulimit -u)")]
    Watchdog(io::Error),
    /// The server could not start.
    #[error("cannot start the shards: {0}")]
    Start(String),
    /// The server failed after it had started.
    #[error("the broker failed: {0}")]
    Run(String),
}

impl BootError {
    /// What the process exits with: 2 when it did not start, 1 when it failed later.
    pub fn exit_code(&self) -> u8 {
        match self {
            BootError::Run(_) => 1,
            _ => 2,
        }
    }
}

/// Starts a broker and returns when it has stopped because it was asked to.
///
/// `server` runs the shards until the plan's shutdown signal is given and everything is flushed; it
/// is `crate::server::run`, handed in so that booting can be tested without shards.
///
/// # Errors
/// [`BootError`], each text in one line with what to do.
pub fn serve<E: Display>(
    config: &Config,
    supervisor: &Supervisor,
    server: impl FnOnce(ServerPlan) -> Result<(), E>,
) -> Result<(), BootError> {
    let cpus = check_host(config)?;
    let settings = settle(config, cpus.len())?;
    let data_dir = DataDir::open(&config.data_dir)?;
    let listeners = listeners::bind(&config.listen)?;
    let (store, snapshot) = TopologyStore::open(&data_dir)?;
    info!(boot_epoch = snapshot.boot_epoch, rows = snapshot.rows.len(), "topology read");

    let shutdown = Arc::new(ShutdownSignal::new());
    let inquiry = Arc::new(Inquiry::new());
    let signals = SignalThread::start(&shutdown, &inquiry).map_err(BootError::Signals)?;
    let pulse = Arc::new(Pulse::new(cpus.len()));
    let watchdog = Watchdog::new(supervisor, Arc::clone(&pulse)).map_err(BootError::Watchdog)?;
    let (ready_teller, stopping_teller) = (supervisor.clone(), supervisor.clone());
    let start_watchdog = watchdog.starter();
    shutdown.on_request(Box::new(move || stopping_teller.stopping()));
    let line = ready_line(config, &cpus, &addresses(&listeners, &config.listen));
    let ready = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ready);
    let plan = ServerPlan {
        listeners,
        cpus,
        settings: Arc::new(settings),
        data_dir: config.data_dir.clone(),
        store,
        version: snapshot.version,
        boot_epoch: snapshot.boot_epoch,
        rows: snapshot.rows,
        shutdown,
        pulse,
        inquiry,
        on_ready: Box::new(move || {
            seen.store(true, Ordering::Release);
            announce(&line);
            ready_teller.ready();
            start_watchdog();
        }),
    };
    let result = server(plan);
    signals.stop();
    watchdog.stop();
    drop(data_dir);
    match result {
        Ok(()) => {
            info!("stopped");
            Ok(())
        }
        Err(error) if ready.load(Ordering::Acquire) => Err(BootError::Run(error.to_string())),
        Err(error) => Err(BootError::Start(error.to_string())),
    }
}

/// Checks what shards need of the host and says on which CPUs they go.
fn check_host(config: &Config) -> Result<Vec<usize>, BootError> {
    let uring = uring::check()?;
    let kernel = KernelVersion::running().map_or_else(|| "unknown".to_owned(), |version| version.to_string());
    info!(kernel, fast_poll = uring.fast_poll, ext_arg = uring.ext_arg, nodrop = uring.nodrop, "host");
    let cpus = place_shards(config, &Cpus::of_this_process()?)?;
    limits::ensure_memlock(cpus.len())?;
    match limits::raise_nofile() {
        Ok(nofile) => {
            if let Some(text) = nofile.warning() {
                warn!("{text}");
            }
        }
        Err(error) => warn!("cannot raise the limit of open files: {error}"),
    }
    Ok(cpus)
}

/// On which CPUs shards go.
pub(crate) fn place_shards(config: &Config, cpus: &Cpus) -> Result<Vec<usize>, CpusError> {
    match (&config.cpus, config.shards) {
        (Some(wanted), _) => cpus.choose(&wanted.0),
        (None, Some(shards)) => {
            if shards > cpus.allowed.len() {
                warn!(
                    "{shards} shards share {} CPUs, so that they wait for one another; run at most one for each CPU",
                    cpus.allowed.len()
                );
            }
            Ok(cpus.place(shards))
        }
        (None, None) => Ok(cpus.default_placement()),
    }
}

fn settle(config: &Config, shards: usize) -> Result<Settings, BootError> {
    let available = memory::available_bytes().map_err(BootError::Memory)?;
    let settings = config.settings(shards, available);
    if settings.memory_per_shard_bytes < settings.max_message_bytes {
        warn!(
            "one message may have {} bytes, but a shard has {} for all of them; lower amqp.max_message_bytes or raise \
             memory_budget",
            settings.max_message_bytes, settings.memory_per_shard_bytes
        );
    }
    Ok(settings)
}

/// What is really listened on: port 0 has become a number.
fn addresses(listeners: &[TcpListener], asked: &[SocketAddr]) -> Vec<SocketAddr> {
    let pairs = listeners.iter().zip(asked);
    pairs.map(|(listener, asked)| listener.local_addr().unwrap_or(*asked)).collect()
}

fn ready_line(config: &Config, cpus: &[usize], addresses: &[SocketAddr]) -> String {
    let addresses = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ");
    let (shards, cpu_word) = match cpus {
        [_] => ("1 shard".to_owned(), "cpu"),
        _ => (format!("{} shards", cpus.len()), "cpus"),
    };
    format!(
        "lepus {} ready: amqp on {addresses}, {shards} on {cpu_word} {}, durability {}, data in {}",
        env!("CARGO_PKG_VERSION"),
        cpus::format_list(cpus),
        config.durability.name(),
        display(&config.data_dir),
    )
}

/// A path in a line that somebody may take apart.
fn display(path: &Path) -> String {
    path.display().to_string().replace(char::is_control, "?")
}

/// Standard output may be closed or full: the broker runs all the same.
fn announce(line: &str) {
    let mut out = io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        info!("{line}");
    }
}

#[cfg(test)]
mod tests;
