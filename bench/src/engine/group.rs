//! A group of connections on one thread, driven by epoll.
//!
//! Events are edge-triggered: a socket is read until a read comes back short, and written until it takes no
//! more, so that waiting for room costs no system call of its own. All connections share one read buffer;
//! what is left of a frame is kept with its connection. A turn costs what has happened, not what there is:
//! a thousand silent connections cost nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::{Moment, Phase, Role};
use crate::client::Link;
use crate::clock::{Clock, Nanos};
use crate::error::BenchError;
use crate::limits::{GROUP_SLEEP_MAX, READ_BYTES};
use crate::wire::scan::Frames;

/// What groups and the run's own thread share.
#[derive(Debug)]
pub struct State {
    /// The run's clock.
    pub clock: Clock,
    phase: AtomicU8,
}

impl State {
    /// At the start of a run.
    pub fn new(clock: Clock) -> State {
        State { clock, phase: AtomicU8::new(0) }
    }

    /// Where the run stands.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Ended,
        }
    }

    /// Goes on to a later phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    fn moment(&self) -> Moment {
        Moment { now: self.clock.now(), phase: self.phase() }
    }
}

/// A connection and what it does.
pub struct Member {
    link: Link,
    role: Box<dyn Role>,
    /// The socket took less than it was offered.
    blocked: bool,
    /// The last read was not short: there may be more.
    readable: bool,
    /// Is in the list of those to serve.
    queued: bool,
    /// The earliest timer that is set.
    wake: Option<Nanos>,
}

impl Member {
    /// One that has done nothing.
    pub fn new(link: Link, role: impl Role + 'static) -> Member {
        Member { link, role: Box::new(role), blocked: false, readable: true, queued: false, wake: None }
    }

    /// The connection and its role.
    pub fn into_parts(self) -> (Link, Box<dyn Role>) {
        (self.link, self.role)
    }

    /// Offers once. Whether there is more to send at once.
    fn write(&mut self, at: Moment, state: &State) -> Result<bool, BenchError> {
        if self.blocked {
            return Ok(false);
        }
        let offered = self.role.offer(at);
        if offered.is_empty() {
            return Ok(false);
        }
        let count = offered.len();
        match self.link.socket.write(offered) {
            Ok(sent) => {
                self.role.sent(sent, at);
                self.blocked = sent < count;
                Ok(!self.blocked)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.blocked = true;
                Ok(false)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => self.explain(state, error.into()),
        }
    }

    /// A broker that closes a connection says why before: that is worth more than a broken pipe.
    fn explain(&mut self, state: &State, error: BenchError) -> Result<bool, BenchError> {
        let mut last = vec![0; READ_BYTES];
        while self.read(&mut last, state)? {}
        Err(error)
    }

    /// Reads once. Whether there may be more.
    fn read(&mut self, buffer: &mut [u8], state: &State) -> Result<bool, BenchError> {
        let kept = self.link.rest.len();
        buffer[..kept].copy_from_slice(&self.link.rest);
        let room = buffer.len() - kept;
        let read = match self.link.socket.read(&mut buffer[kept..]) {
            Ok(0) => return Err(BenchError::Closed("without a word")),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        let whole = kept + read;
        let mut frames = Frames::new(&buffer[..whole]);
        // The time of a delivery is when its read is over, not when the turn began.
        self.role.take(&mut frames, state.moment())?;
        let consumed = frames.consumed();
        self.link.rest.clear();
        self.link.rest.extend_from_slice(&buffer[consumed..whole]);
        Ok(read == room)
    }

    /// What came before the connection was ours.
    fn take_rest(&mut self, at: Moment) -> Result<(), BenchError> {
        let rest = std::mem::take(&mut self.link.rest);
        let mut frames = Frames::new(&rest);
        self.role.take(&mut frames, at)?;
        self.link.rest.extend_from_slice(&rest[frames.consumed()..]);
        Ok(())
    }
}

/// Runs a group until the run has ended. Gives the members back.
///
/// # Errors
/// When one of its connections fails.
pub fn run(members: Vec<Member>, state: &State) -> Result<Vec<Member>, BenchError> {
    let mut group = Group::new(members)?;
    for member in &mut group.members {
        member.take_rest(state.moment())?;
    }
    let mut phase = None;
    loop {
        let at = state.moment();
        if at.phase == Phase::Ended {
            return Ok(group.members);
        }
        if phase.replace(at.phase) != Some(at.phase) {
            (0..group.members.len()).for_each(|index| group.queue(index));
        }
        group.queue_due(at.now);
        group.serve(state)?;
        group.wait(state)?;
    }
}

struct Group {
    members: Vec<Member>,
    epoll: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    /// Members to serve in this turn.
    ready: Vec<usize>,
    serving: Vec<usize>,
    timers: BinaryHeap<Reverse<(Nanos, usize)>>,
    buffer: Vec<u8>,
}

impl Group {
    fn new(members: Vec<Member>) -> Result<Group, BenchError> {
        // Sleeps end when they should, and not up to 50 us later: only for this thread.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        for (index, member) in members.iter().enumerate() {
            let interest = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, &member.link.socket, data, interest).map_err(io::Error::from)?;
        }
        Ok(Group {
            events: Vec::with_capacity(members.len().clamp(1, 1024)),
            members,
            epoll,
            ready: Vec::new(),
            serving: Vec::new(),
            timers: BinaryHeap::new(),
            buffer: vec![0; READ_BYTES],
        })
    }

    fn queue(&mut self, index: usize) {
        let member = &mut self.members[index];
        if !std::mem::replace(&mut member.queued, true) {
            self.ready.push(index);
        }
    }

    fn queue_due(&mut self, now: Nanos) {
        while let Some(Reverse((at, index))) = self.timers.peek().copied()
            && at <= now
        {
            self.timers.pop();
            if self.members[index].wake == Some(at) {
                self.members[index].wake = None;
                self.queue(index);
            }
        }
    }

    /// Each member that is ready reads once and writes once; who has more to do is ready for the next turn.
    fn serve(&mut self, state: &State) -> Result<(), BenchError> {
        std::mem::swap(&mut self.ready, &mut self.serving);
        for place in 0..self.serving.len() {
            let index = self.serving[place];
            let member = &mut self.members[index];
            member.queued = false;
            if member.readable {
                member.readable = member.read(&mut self.buffer, state)?;
            }
            let at = state.moment();
            let more = member.write(at, state)?;
            if more || member.readable {
                self.queue(index);
            } else if let Some(wake) = member.role.wake(at)
                && !member.blocked
                && member.wake.is_none_or(|set| wake < set)
            {
                member.wake = Some(wake);
                self.timers.push(Reverse((wake, index)));
            }
        }
        self.serving.clear();
        Ok(())
    }

    fn wait(&mut self, state: &State) -> Result<(), BenchError> {
        let sleep_max = GROUP_SLEEP_MAX.as_nanos() as u64;
        let nanos = match self.timers.peek() {
            _ if !self.ready.is_empty() => 0,
            Some(Reverse((at, _))) => at.since(state.clock.now()).min(sleep_max),
            None => sleep_max,
        };
        let timeout = Timespec { tv_sec: 0, tv_nsec: nanos as i64 };
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        for place in 0..self.events.len() {
            let event = self.events[place];
            // Packed by the kernel: fields are copied before they are looked at.
            let (flags, data) = (event.flags, event.data);
            let index = data.u64() as usize;
            let member = &mut self.members[index];
            // Errors and the end are found by reading.
            member.readable |= flags.intersects(
                epoll::EventFlags::IN
                    | epoll::EventFlags::HUP
                    | epoll::EventFlags::ERR
                    | epoll::EventFlags::RDHUP,
            );
            member.blocked &= !flags.contains(epoll::EventFlags::OUT);
            self.queue(index);
        }
        Ok(())
    }
}
