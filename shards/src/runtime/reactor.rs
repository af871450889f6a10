//! What tasks wait for: descriptors and time.
//!
//! A descriptor is watched from its first wait on, by one poll that gives a result whenever something comes
//! (input, or the end of it). So nothing is asked anew for each read; in exchange, who waits has to say when
//! there is nothing left ([`Interest::took_all`], [`Interest::used_up`]), and the next wait ends at the next result. A result that
//! tells of something that has been read already ends a wait too early: then a read finds nothing, and the
//! task waits again.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use slab::Slab;

use super::executor::yield_now;
use super::ring::Ring;

/// Events of poll(2); the end and errors come unasked.
const INPUT: u32 = libc::POLLIN as u32 | libc::POLLRDHUP as u32;
const OUTPUT: u32 = libc::POLLOUT as u32;

/// Giving the CPU up takes less if nobody wants it but the kernel's own threads for a moment.
const YIELD_LOST: Duration = Duration::from_micros(60);

/// See the module. One for each shard.
pub(super) struct Reactor {
    ring: RefCell<Ring>,
    /// How long to look around before sleeping, if lately something came within that time; the longest time
    /// there is: always, and for as long as it takes.
    spin_before_park: Duration,
    /// How long the last waits were.
    waited: Cell<Duration>,
    watched: RefCell<Slab<Rc<Watched>>>,
    timers: RefCell<Timers>,
}

/// One direction of a descriptor.
#[derive(Default)]
struct Watched {
    ready: Cell<bool>,
    /// No further result need come: the end, or an error, is there to be read.
    ended: Cell<bool>,
    /// The kernel has the poll.
    armed: Cell<bool>,
    /// Nobody waits any more: forgotten with the poll's last result.
    abandoned: Cell<bool>,
    waiter: RefCell<Option<Waker>>,
}

#[derive(Default)]
struct Timers {
    /// By time; the number tells those of one time apart.
    waiters: BTreeMap<(Instant, u64), Waker>,
    count: u64,
}

impl Reactor {
    /// With so many entries for submissions.
    ///
    /// # Errors
    /// Those of [`Ring::new`].
    pub fn new(entries: u32, spin_before_park: Duration) -> io::Result<Rc<Reactor>> {
        Ok(Rc::new(Reactor {
            ring: RefCell::new(Ring::new(entries)?),
            spin_before_park,
            waited: Cell::new(spin_before_park),
            watched: RefCell::default(),
            timers: RefCell::default(),
        }))
    }

    /// Wakes whoever has something to do by now. Enters the kernel only if there is something to fetch or to
    /// hand over.
    pub fn look(&self) {
        self.hand_over();
        self.wake();
    }

    fn hand_over(&self) {
        let mut ring = self.ring.borrow_mut();
        if ring.wants_entering() {
            ring.enter(None);
        }
    }

    /// The same, after waiting for it if there is nothing yet.
    pub fn wait(&self) {
        let begun = Instant::now();
        let spins = self.spin_before_park == Duration::MAX || self.waited.get() < self.spin_before_park;
        if spins && !self.spin_before_park.is_zero() {
            self.hand_over();
            let undisturbed = self
                .look_around(|now| now - begun >= self.spin_before_park || self.timers.borrow().is_due(now));
            if !undisturbed {
                self.note_wait(Duration::MAX);
            } else if self.has_news() {
                self.note_wait(begun.elapsed());
                return self.look();
            }
        }
        let longest = self.timers.borrow().next().map(|due| due.saturating_duration_since(Instant::now()));
        self.ring.borrow_mut().enter(Some(longest));
        self.note_wait(begun.elapsed());
        self.wake();
    }

    /// Each wait counts for a quarter. What is beyond twice the time that is worth spinning says no more than
    /// that it was not.
    fn note_wait(&self, waited: Duration) {
        if self.spin_before_park != Duration::MAX {
            let waited = waited.min(self.spin_before_park * 2);
            self.waited.set((self.waited.get() * 3 + waited) / 4);
        }
    }

    /// Looks around until there is something to wake a task for, or until `over`; true then. False when the
    /// CPU was wanted by somebody else: then it is better to sleep, since being woken gets it back sooner.
    pub fn look_around(&self, mut over: impl FnMut(Instant) -> bool) -> bool {
        let mut now = Instant::now();
        while !self.has_news() && !over(now) {
            // Threads of the kernel that a completion needs may have to run on this CPU.
            std::thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            if now - before > YIELD_LOST {
                return false;
            }
        }
        true
    }

    /// There is something to wake a task for.
    fn has_news(&self) -> bool {
        self.ring.borrow_mut().has_results()
    }

    fn wake(&self) {
        loop {
            let Some(result) = self.ring.borrow_mut().next() else { break };
            let key = usize::try_from(result.token).expect("tokens are keys");
            let watched = Rc::clone(&self.watched.borrow()[key]);
            watched.armed.set(result.goes_on);
            watched.ready.set(true);
            watched.ended.set(watched.ended.get() | result.ended);
            if watched.abandoned.get() && !result.goes_on {
                self.watched.borrow_mut().remove(key);
            }
            if let Some(waiter) = watched.waiter.borrow_mut().take() {
                waiter.wake();
            }
        }
        if !self.timers.borrow().waiters.is_empty() {
            let now = Instant::now();
            while let Some(waiter) = self.timers.borrow_mut().take_due(now) {
                waiter.wake();
            }
        }
    }

    /// Returns no sooner than this.
    pub fn sleep(self: Rc<Self>, time: Duration) -> impl Future<Output = ()> {
        let count = self.timers.borrow().count;
        self.timers.borrow_mut().count += 1;
        Sleep { reactor: self, due: (Instant::now() + time, count) }
    }
}

impl Timers {
    fn next(&self) -> Option<Instant> {
        self.waiters.keys().next().map(|&(due, _)| due)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.next().is_some_and(|due| due <= now)
    }

    fn take_due(&mut self, now: Instant) -> Option<Waker> {
        if self.is_due(now) { self.waiters.pop_first().map(|(_, waiter)| waiter) } else { None }
    }
}

struct Sleep {
    reactor: Rc<Reactor>,
    due: (Instant, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.due.0 <= Instant::now() {
            return Poll::Ready(());
        }
        self.reactor.timers.borrow_mut().waiters.insert(self.due, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.reactor.timers.borrow_mut().waiters.remove(&self.due);
    }
}

/// What a descriptor is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// Watched as long as the interest lives.
    Input,
    /// Asked for at each wait.
    Output,
}

/// One task's interest in a descriptor, which stays open as long as this lives.
pub(super) struct Interest {
    reactor: Rc<Reactor>,
    watched: Rc<Watched>,
    key: usize,
    fd: RawFd,
    direction: Direction,
}

impl Interest {
    pub fn new(reactor: Rc<Reactor>, fd: RawFd, direction: Direction) -> Interest {
        let watched = Rc::new(Watched::default());
        // Nothing is known of it yet: a look is free.
        watched.ready.set(direction == Direction::Input);
        let key = reactor.watched.borrow_mut().insert(Rc::clone(&watched));
        Interest { reactor, watched, key, fd, direction }
    }

    /// What was there is taken: the next wait ends when something more comes. The end may have come before it was
    /// taken, and have been told of.
    pub fn took_all(&self) {
        self.watched.ready.set(self.watched.ended.get());
    }

    /// There is nothing: the next wait ends when something comes.
    pub fn used_up(&self) {
        self.watched.ended.set(false);
        self.watched.ready.set(false);
    }

    /// Waits until there may be something. Lets others run also if there is, so that nobody keeps them
    /// waiting.
    pub async fn ready(&self) {
        match self.direction {
            Direction::Output => self.watched.ready.set(false),
            Direction::Input if self.watched.ready.get() => return yield_now().await,
            Direction::Input => {}
        }
        poll_fn(|context| self.poll_ready(context)).await;
    }

    fn poll_ready(&self, context: &Context<'_>) -> Poll<()> {
        if self.watched.ready.get() {
            return Poll::Ready(());
        }
        let mut waiter = self.watched.waiter.borrow_mut();
        match &mut *waiter {
            Some(known) => known.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        if !self.watched.armed.replace(true) {
            let (events, once) = match self.direction {
                Direction::Input => (INPUT, false),
                Direction::Output => (OUTPUT, true),
            };
            self.reactor.ring.borrow_mut().poll(self.fd, events, once, self.key as u64);
        }
        Poll::Pending
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interest")
            .field("fd", &self.fd)
            .field("direction", &self.direction)
            .finish_non_exhaustive()
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        if self.watched.armed.get() {
            self.watched.abandoned.set(true);
            self.reactor.ring.borrow_mut().cancel(self.key as u64);
        } else {
            self.reactor.watched.borrow_mut().remove(self.key);
        }
    }
}
