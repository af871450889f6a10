//! Many publishers, each with one message at a time, and beside them as many requests at a time over as many
//! connections to a thread that only answers: what loopback and two threads of the generator leave for a broker.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::loopback::connection;
use super::parties::properties;
use crate::client::{Client, Confirm};
use crate::error::BenchError;
use crate::stop::Stop;
use crate::threads::join;
use crate::uri::BrokerUri;
use crate::wire::encode::{CHANNEL, Envelope};

/// A thread for each party would measure the scheduler.
const THREADS: usize = 2;
/// Bytes of the frame that confirms a message.
const ANSWER_BYTES: usize = 21;

/// Some requests at a time over one connection.
pub trait Party: Send {
    /// Sends the first ones.
    ///
    /// # Errors
    /// When the socket fails.
    fn begin(&mut self) -> Result<(), BenchError>;

    /// Waits for some answers, and sends the next request for each. Gives how many they were.
    ///
    /// # Errors
    /// When the socket fails, or a request is refused.
    fn go_on(&mut self) -> Result<u64, BenchError>;
}

/// Answers a second that all of them get together.
///
/// # Errors
/// The first one of a party.
pub fn per_second<P: Party>(parties: &mut [P], time: Duration, stop: &Stop) -> Result<f64, BenchError> {
    let share = parties.len().div_ceil(THREADS);
    let began = Instant::now();
    let on = || began.elapsed() < time && !stop.is_set();
    let counts: Vec<Result<u64, BenchError>> = thread::scope(|scope| {
        let threads: Vec<_> =
            parties.chunks_mut(share).map(|own| scope.spawn(move || rounds(own, on))).collect();
        threads.into_iter().map(join).collect()
    });
    let total: u64 = counts.into_iter().sum::<Result<u64, _>>()?;
    Ok(total as f64 / began.elapsed().as_secs_f64())
}

fn rounds(parties: &mut [impl Party], on: impl Fn() -> bool) -> Result<u64, BenchError> {
    parties.iter_mut().try_for_each(Party::begin)?;
    let mut count = 0;
    while on() {
        for party in parties.iter_mut() {
            count += party.go_on()?;
        }
    }
    Ok(count)
}

/// Shares publishers out, as evenly as can be: how many each connection has.
pub fn shares(publishers: u32, connections: u32) -> impl Iterator<Item = u16> {
    (0..connections).map(move |number| {
        let share = publishers / connections + u32::from(number < publishers % connections);
        u16::try_from(share).expect("a connection has fewer channels than that")
    })
}

/// Publishers on channels of one connection. Each waits for the confirm of its message before it sends the next.
pub struct Publishers {
    client: Client,
    /// The frames of a message, by channel, from channel 1 on.
    frames: Vec<Vec<u8>>,
    awaited: Awaited,
    confirms: Vec<Confirm>,
    output: Vec<u8>,
}

impl Publishers {
    /// Connects. Each message goes to this queue.
    ///
    /// # Errors
    /// When the broker refuses.
    pub fn new(
        uri: &BrokerUri,
        queue: &str,
        body_bytes: usize,
        count: u16,
    ) -> Result<Publishers, BenchError> {
        let mut client = Client::connect_with_channel(uri)?;
        let mut frames = Vec::new();
        for channel in CHANNEL..CHANNEL + count {
            if channel > CHANNEL {
                client.open_channel(channel)?;
            }
            client.select_confirms_on(channel)?;
            let mut message = Vec::new();
            let envelope = Envelope::new("", false, &properties(true)).on(channel);
            envelope.put(&mut message, queue, &vec![0; body_bytes], client.frame_max);
            frames.push(message);
        }
        let awaited = Awaited::first(count);
        Ok(Publishers { client, frames, awaited, confirms: Vec::new(), output: Vec::new() })
    }

    /// Bytes of one message.
    pub fn message_bytes(&self) -> usize {
        self.frames[0].len()
    }

    /// All of them send a message, and wait for its confirm. How long it took.
    ///
    /// # Errors
    /// As [`Party`].
    pub fn publish(&mut self) -> Result<Duration, BenchError> {
        let began = Instant::now();
        self.begin()?;
        let mut confirmed = 0;
        while confirmed < self.frames.len() {
            self.client.confirmed(&mut self.confirms)?;
            for confirm in &self.confirms {
                self.awaited.confirm(confirm)?;
                confirmed += 1;
            }
        }
        Ok(began.elapsed())
    }

    /// Closes the connection.
    pub fn close(self) {
        self.client.close();
    }
}

impl Party for Publishers {
    fn begin(&mut self) -> Result<(), BenchError> {
        self.output.clear();
        self.frames.iter().for_each(|message| self.output.extend_from_slice(message));
        self.client.send_raw(&self.output)
    }

    fn go_on(&mut self) -> Result<u64, BenchError> {
        self.client.confirmed(&mut self.confirms)?;
        self.output.clear();
        for confirm in &self.confirms {
            let publisher = self.awaited.confirm(confirm)?;
            self.output.extend_from_slice(&self.frames[publisher]);
        }
        self.client.send_raw(&self.output)?;
        Ok(self.confirms.len() as u64)
    }
}

/// The tag that each publisher of a connection waits for, by channel, from channel 1 on. Without it a confirm that
/// comes twice, or late, would let a publisher have two messages at a time.
struct Awaited(Vec<u64>);

impl Awaited {
    /// Nobody has got a confirm yet.
    fn first(publishers: u16) -> Awaited {
        Awaited(vec![1; usize::from(publishers)])
    }

    /// Gives the publisher that may send its next message.
    fn confirm(&mut self, confirm: &Confirm) -> Result<usize, BenchError> {
        let publisher = usize::from(confirm.channel).checked_sub(usize::from(CHANNEL));
        let awaited = publisher.and_then(|publisher| Some((publisher, self.0.get_mut(publisher)?)));
        match awaited {
            Some((publisher, tag)) if confirm.tag == *tag || (confirm.multiple && confirm.tag == 0) => {
                *tag += 1;
                Ok(publisher)
            }
            _ => Err(BenchError::Unexpected(format!("nobody waits for {confirm:?}"))),
        }
    }
}

/// As [`Publishers`], to a thread that answers.
pub struct Requests {
    socket: TcpStream,
    request: Vec<u8>,
    at_a_time: usize,
    /// Bytes of answers that have come and were not counted.
    rest: usize,
}

impl Party for Requests {
    fn begin(&mut self) -> Result<(), BenchError> {
        Ok(self.socket.write_all(&self.request.repeat(self.at_a_time))?)
    }

    fn go_on(&mut self) -> Result<u64, BenchError> {
        let mut bytes = [0; 16 * 1024];
        let count = self.socket.read(&mut bytes)?;
        if count == 0 {
            return Err(BenchError::Closed("without a word"));
        }
        let answers = (self.rest + count) / ANSWER_BYTES;
        self.rest = (self.rest + count) % ANSWER_BYTES;
        self.socket.write_all(&self.request.repeat(answers))?;
        Ok(answers as u64)
    }
}

/// A thread that answers requests, and does nothing else. It ends when its requests are dropped.
pub struct Answerer {
    requests: Vec<Requests>,
    thread: JoinHandle<io::Result<()>>,
}

impl Answerer {
    /// Connects as often as there are shares; each has so many requests of so many bytes at a time.
    ///
    /// # Errors
    /// When there is no loopback.
    pub fn start(shares: impl Iterator<Item = u16>, request_bytes: usize) -> Result<Answerer, BenchError> {
        let (mut requests, mut far_ends) = (Vec::new(), Vec::new());
        for share in shares {
            let (socket, far) = connection()?;
            far.set_nonblocking(true)?;
            let request = vec![0; request_bytes];
            requests.push(Requests { socket, request, at_a_time: usize::from(share), rest: 0 });
            far_ends.push(far);
        }
        let thread = thread::spawn(move || answer(far_ends, request_bytes));
        Ok(Answerer { requests, thread })
    }

    /// Answers a second.
    ///
    /// # Errors
    /// When loopback fails.
    pub fn per_second(mut self, time: Duration, stop: &Stop) -> Result<f64, BenchError> {
        let rate = per_second(&mut self.requests, time, stop);
        drop(self.requests);
        let ended = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rate.and_then(|rate| ended.map(|()| rate).map_err(BenchError::from))
    }
}

/// Answers each request, until all connections are closed.
fn answer(mut sockets: Vec<TcpStream>, request_bytes: usize) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, socket) in sockets.iter().enumerate() {
        epoll::add(&epoll, socket, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
    }
    let mut rests = vec![0; sockets.len()];
    let mut open = sockets.len();
    let mut bytes = vec![0; 256 * 1024];
    let mut events = Vec::with_capacity(sockets.len());
    while open > 0 {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        for event in &events {
            let number = event.data.u64() as usize;
            let socket = &mut sockets[number];
            match socket.read(&mut bytes) {
                Ok(count) if count > 0 => {
                    let answers = (rests[number] + count) / request_bytes;
                    rests[number] = (rests[number] + count) % request_bytes;
                    // The other end has no more requests at a time than the socket has room for answers.
                    socket.write_all(&[0; ANSWER_BYTES].repeat(answers))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Closed, or reset over answers that nobody read.
                _ => {
                    epoll::delete(&epoll, &*socket)?;
                    open -= 1;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_are_shared_out_evenly() {
        assert_eq!(shares(100, 100).collect::<Vec<_>>(), [1; 100]);
        assert_eq!(shares(10, 4).collect::<Vec<_>>(), [3, 3, 2, 2]);
        assert_eq!(shares(3, 1).collect::<Vec<_>>(), [3]);
    }

    fn of(channel: u16, tag: u64, multiple: bool) -> Confirm {
        Confirm { channel, tag, multiple }
    }

    #[test]
    fn a_confirm_is_that_of_its_channel_alone() {
        let mut awaited = Awaited::first(3);
        assert_eq!(awaited.confirm(&of(2, 1, false)).unwrap(), 1);
        assert_eq!(awaited.confirm(&of(2, 2, true)).unwrap(), 1);
        assert_eq!(awaited.confirm(&of(3, 0, true)).unwrap(), 2);
        assert_eq!(awaited.0, [1, 3, 2]);
    }

    #[test]
    fn a_confirm_that_nobody_waits_for_is_an_error() {
        let mut awaited = Awaited::first(2);
        awaited.confirm(&of(1, 1, false)).unwrap();
        for nobodys in [
            of(1, 1, false),
            of(1, 1, true),
            of(2, 2, true),
            of(2, 0, false),
            of(0, 1, false),
            of(3, 1, false),
        ] {
            awaited.confirm(&nobodys).unwrap_err();
        }
        assert_eq!(awaited.0, [2, 1]);
    }

    #[test]
    fn as_many_answers_come_as_requests_were_made() {
        let mut answerer = Answerer::start(shares(5, 2), 1000).unwrap();
        let before: Vec<usize> = answerer.requests.iter().map(|requests| requests.at_a_time).collect();
        assert_eq!(before, [3, 2]);
        for requests in &mut answerer.requests {
            requests.begin().unwrap();
            let mut answered = 0;
            while answered < 50 {
                answered += requests.go_on().unwrap();
            }
        }
        let Answerer { requests, thread } = answerer;
        drop(requests);
        thread.join().unwrap().unwrap();
    }
}
