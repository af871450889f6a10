//! SIGTERM and SIGINT: the first drains, the second ends the process at once. SIGUSR1: shards log their timings.
//!
//! A thread of its own waits for signals. The first one starts a second thread that ends the process when
//! draining takes longer than [`DRAIN_MAX`]. Neither touches a message.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level;
use tracing::{error, info};

use super::inquiry::Inquiry;
use super::shutdown::ShutdownSignal;

/// How long a broker may take from the first signal to its end.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Waits for signals until it is stopped.
pub(super) struct SignalThread {
    handle: Handle,
    thread: JoinHandle<()>,
    /// Closed when the broker has stopped.
    running: Sender<()>,
}

/// A signal this soon after the first one is the same.
const SAME_SIGNAL: Duration = Duration::from_millis(200);

impl SignalThread {
    /// Takes over SIGTERM, SIGINT and SIGUSR1.
    pub fn start(shutdown: &Arc<ShutdownSignal>, inquiry: &Arc<Inquiry>) -> io::Result<SignalThread> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1])?;
        let (shutdown, inquiry) = (Arc::clone(shutdown), Arc::clone(inquiry));
        let handle = signals.handle();
        let (running, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("lepus-signals".to_owned())
            .spawn(move || wait_for_signals(&mut signals, &shutdown, &inquiry, stopped))?;
        Ok(SignalThread { handle, thread, running })
    }

    /// The broker has stopped: nothing is left to be ended.
    pub fn stop(self) {
        drop(self.running);
        self.handle.close();
        if self.thread.join().is_err() {
            error!("the signal thread panicked");
        }
    }
}

fn wait_for_signals(
    signals: &mut Signals,
    shutdown: &Arc<ShutdownSignal>,
    inquiry: &Inquiry,
    stopped: Receiver<()>,
) {
    let mut arrived = signals.forever().filter(|&signal| {
        if signal == SIGUSR1 {
            inquiry.ask();
        }
        signal != SIGUSR1
    });
    let Some(signal) = arrived.next() else { return };
    let name = low_level::signal_name(signal).unwrap_or("a signal");
    info!("{name}: draining for at most {} s; a second signal ends the broker at once", DRAIN_MAX.as_secs());
    let late = Arc::clone(shutdown);
    let limit = thread::Builder::new().name("lepus-drain".to_owned()).spawn(move || {
        if let Some(text) = overdue(&stopped, DRAIN_MAX, &late) {
            error!("{text}");
            low_level::exit(1);
        }
    });
    if let Err(error) = limit {
        error!("draining is not limited in time: {error}");
    }
    shutdown.request();
    let first = Instant::now();
    // Some supervisors send the same signal to the process and to its group: that is one.
    if arrived.any(|_| first.elapsed() >= SAME_SIGNAL) {
        error!("second signal: ended without draining");
        low_level::exit(1);
    }
}

/// Waits until the broker has stopped. If that takes too long, says what remains.
fn overdue(stopped: &Receiver<()>, limit: Duration, shutdown: &ShutdownSignal) -> Option<String> {
    match stopped.recv_timeout(limit) {
        Err(RecvTimeoutError::Timeout) => {
            let remaining = shutdown.remaining().unwrap_or_else(|| "shards that have not ended".to_owned());
            Some(format!("draining took longer than {} s; ended with {remaining}", limit.as_secs()))
        }
        Ok(()) | Err(RecvTimeoutError::Disconnected) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_signal_requests_the_shutdown_and_another_asks_the_shards() {
        let shutdown = Arc::new(ShutdownSignal::new());
        let (asked, was_asked) = mpsc::channel();
        shutdown.on_request(Box::new(move || asked.send(()).unwrap()));
        let inquiry = Arc::new(Inquiry::new());
        let (curious, was_curious) = mpsc::channel();
        let curious = Mutex::new(curious);
        inquiry.on_ask(Box::new(move || curious.lock().unwrap().send(()).unwrap()));
        let thread = SignalThread::start(&shutdown, &inquiry).unwrap();
        low_level::raise(SIGUSR1).unwrap();
        was_curious.recv().unwrap();
        assert_eq!((inquiry.count(), shutdown.is_requested()), (1, false));
        low_level::raise(SIGTERM).unwrap();
        was_asked.recv().unwrap();
        assert!(shutdown.is_requested());
        thread.stop();
    }

    #[test]
    fn what_remains_is_named_when_draining_takes_too_long() {
        let shutdown = ShutdownSignal::new();
        let (_running, stopped) = mpsc::channel();
        let text = overdue(&stopped, Duration::ZERO, &shutdown).unwrap();
        assert!(text.contains("shards"), "{text}");
        shutdown.report_remaining(Box::new(|| "3 connections".to_owned()));
        let text = overdue(&stopped, Duration::ZERO, &shutdown).unwrap();
        assert!(text.ends_with("ended with 3 connections"), "{text}");
    }

    #[test]
    fn a_broker_that_stops_in_time_is_not_ended() {
        let (running, stopped) = mpsc::channel::<()>();
        drop(running);
        assert_eq!(overdue(&stopped, Duration::from_secs(3600), &ShutdownSignal::new()), None);
    }
}
