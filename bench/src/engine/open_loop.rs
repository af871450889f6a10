//! A publisher in open loop: each message has a time at which it is due, fixed before the run, and carries it in its
//! body. What the broker (or this process) delays counts for every message that had to wait for it, so that no
//! stall hides behind messages which were never sent (no coordinated omission).

use std::sync::Arc;

use hdrhistogram::Histogram;

use super::counters::Counters;
use super::histograms::{Histograms, latencies, record};
use super::outstanding::Outstanding;
use super::pace::Pace;
use super::producer::take_confirms;
use super::{Moment, Phase, Role};
use crate::clock::Nanos;
use crate::error::BenchError;
use crate::limits::{STAMP_BYTES, WRITE_BYTES_MAX};
use crate::wire::encode::Envelope;
use crate::wire::scan::Frames;

/// The name of publish-to-confirm latencies.
pub const CONFIRM: &str = "confirm";

/// The name of the generator's own lateness: between the time that a message is due and its write.
pub const SEND_LAG: &str = "send-lag";

/// A message that is encoded but for the time that it carries.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Vec<u8>,
    stamp_at: usize,
}

impl Template {
    /// Encodes it. The body has at least [`STAMP_BYTES`].
    pub fn new(envelope: &Envelope, routing_key: &str, body_bytes: usize, frame_max: usize) -> Template {
        let mut bytes = Vec::new();
        let body = vec![b'x'; body_bytes.max(STAMP_BYTES)];
        let stamp_at = envelope.put(&mut bytes, routing_key, &body, frame_max);
        Template { bytes, stamp_at }
    }

    /// Appends it with this time.
    pub fn put(&self, out: &mut Vec<u8>, stamp: Nanos) {
        let at = out.len() + self.stamp_at;
        out.extend_from_slice(&self.bytes);
        out[at..at + STAMP_BYTES].copy_from_slice(&stamp.0.to_be_bytes());
    }
}

/// A connection that publishes in open loop.
#[derive(Debug)]
pub struct OpenLoop {
    /// One for each routing key, in turn.
    templates: Vec<Template>,
    pace: Pace,
    confirms: bool,
    /// Messages in all. A broker that falls behind still gets every one: those that wait longest would be missing
    /// in the times otherwise.
    messages: u64,
    /// Messages that are due from here on are counted.
    measured_from: Nanos,
    counters: Arc<Counters>,
    /// Encoded, and not sent.
    output: Vec<u8>,
    /// Messages encoded so far.
    encoded: u64,
    /// Bytes of all whole messages that are sent; what a message takes is all the same.
    sent_bytes: u64,
    sent: u64,
    outstanding: Outstanding,
    confirm_times: Histogram<u64>,
    send_lag: Histogram<u64>,
    finished: bool,
}

impl OpenLoop {
    /// All templates have the same length: their keys do.
    pub fn new(
        templates: Vec<Template>,
        pace: Pace,
        messages: u64,
        confirms: bool,
        measured_from: Nanos,
        counters: Arc<Counters>,
    ) -> OpenLoop {
        assert!(templates.windows(2).all(|pair| pair[0].bytes.len() == pair[1].bytes.len()));
        OpenLoop {
            templates,
            pace,
            messages,
            confirms,
            measured_from,
            counters,
            output: Vec::new(),
            encoded: 0,
            sent_bytes: 0,
            sent: 0,
            outstanding: Outstanding::default(),
            confirm_times: latencies(),
            send_lag: latencies(),
            finished: false,
        }
    }

    fn note_finished(&mut self, at: Moment) {
        let no_more = at.phase != Phase::Running || self.encoded == self.messages;
        if no_more && self.output.is_empty() && self.outstanding.is_empty() && !self.finished {
            self.finished = true;
            self.counters.finished.add(1);
        }
    }

    fn encode_due(&mut self, at: Moment) {
        let due = self.pace.due(at.now).min(self.messages);
        while self.encoded < due && self.output.len() < WRITE_BYTES_MAX {
            let number = usize::try_from(self.encoded).expect("a run's messages can be counted");
            let intended = self.pace.due_at(self.encoded);
            self.templates[number % self.templates.len()].put(&mut self.output, intended);
            if intended >= self.measured_from {
                record(&mut self.send_lag, at.now.since(intended));
            }
            self.encoded += 1;
        }
    }
}

impl Role for OpenLoop {
    fn take(&mut self, frames: &mut Frames<'_>, at: Moment) -> Result<(), BenchError> {
        let (pace, from, times) = (self.pace, self.measured_from, &mut self.confirm_times);
        take_confirms(frames, &mut self.outstanding, &self.counters, |tag| {
            // Tags count from 1, messages from 0.
            let intended = pace.due_at(tag - 1);
            if intended >= from {
                record(times, at.now.since(intended));
            }
        })?;
        self.note_finished(at);
        Ok(())
    }

    fn offer(&mut self, at: Moment) -> &[u8] {
        if at.phase == Phase::Running {
            self.encode_due(at);
        }
        self.note_finished(at);
        &self.output
    }

    fn sent(&mut self, bytes: usize, at: Moment) {
        self.output.drain(..bytes);
        self.sent_bytes += bytes as u64;
        let whole = self.sent_bytes / self.templates[0].bytes.len() as u64 - self.sent;
        self.sent += whole;
        if self.confirms {
            self.outstanding.send(whole);
        }
        self.counters.sent.add(whole);
        self.note_finished(at);
    }

    fn wake(&self, at: Moment) -> Option<Nanos> {
        let more = at.phase == Phase::Running && self.encoded < self.messages;
        more.then(|| self.pace.due_at(self.encoded))
    }

    fn histograms(&mut self) -> Histograms {
        let mut all = Histograms::one(SEND_LAG, std::mem::replace(&mut self.send_lag, latencies()));
        if self.confirms {
            all.merge(Histograms::one(CONFIRM, std::mem::replace(&mut self.confirm_times, latencies())));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use amq_protocol::protocol::basic::AMQPProperties;

    use super::*;
    use crate::wire::encode::put_ack;
    use crate::wire::scan::Event;

    fn open_loop(per_second: f64, messages: u64, measured_from: u64) -> OpenLoop {
        let envelope = Envelope::new("", false, &AMQPProperties::default());
        let template = Template::new(&envelope, "q", 20, 4096);
        let pace = Pace::new(Nanos(1000), per_second);
        OpenLoop::new(vec![template], pace, messages, true, Nanos(measured_from), Arc::default())
    }

    fn running(now: u64) -> Moment {
        Moment { now: Nanos(now), phase: Phase::Running }
    }

    fn stamps(bytes: &[u8]) -> Vec<u64> {
        let (mut frames, mut stamps) = (Frames::new(bytes), Vec::new());
        while let Some(event) = frames.next_event().unwrap() {
            if let Event::Body(body) = event {
                stamps.push(u64::from_be_bytes(*body.first_chunk().unwrap()));
            }
        }
        stamps
    }

    #[test]
    fn bodies_carry_the_time_at_which_they_were_due() {
        // One each microsecond; at 4.5 us those of 1, 2, 3 and 4 us are due, however late we are.
        let mut publisher = open_loop(1e6, 100, 0);
        let bytes = publisher.offer(running(4_500)).to_vec();
        assert_eq!(stamps(&bytes), [1000, 2000, 3000, 4000]);
        publisher.sent(bytes.len(), running(4_500));
        assert_eq!(publisher.wake(running(4_500)), Some(Nanos(5_000)));
        assert_eq!(publisher.counters.totals().sent, 4);
        let lag = publisher.histograms().0[SEND_LAG].max();
        assert!((3_500..3_510).contains(&lag), "{lag}");
    }

    #[test]
    fn a_confirm_is_timed_from_when_its_message_was_due() {
        let mut publisher = open_loop(1e6, 100, 2000);
        let count = publisher.offer(running(3_000)).len();
        publisher.sent(count, running(3_000));
        let mut ack = Vec::new();
        put_ack(&mut ack, 3, true);
        publisher.take(&mut Frames::new(&ack), running(5_000)).unwrap();
        // The first message was due before the measurement begins.
        let times = publisher.histograms().0.remove(CONFIRM).unwrap();
        assert_eq!((times.len(), times.min()), (2, 2_000));
        assert!((3_000..3_010).contains(&times.max()), "{}", times.max());
    }

    #[test]
    fn what_was_due_is_sent_however_late_and_then_no_more() {
        let mut publisher = open_loop(1e6, 3, 0);
        let bytes = publisher.offer(running(1_000_000)).to_vec();
        assert_eq!(stamps(&bytes), [1000, 2000, 3000]);
        publisher.sent(bytes.len(), running(1_000_000));
        assert_eq!((publisher.wake(running(1_000_000)), publisher.counters.totals().finished), (None, 0));
        let mut ack = Vec::new();
        put_ack(&mut ack, 3, true);
        publisher.take(&mut Frames::new(&ack), running(1_100_000)).unwrap();
        assert_eq!(publisher.counters.totals().finished, 1);
        assert_eq!(publisher.histograms().0[CONFIRM].len(), 3);
    }

    #[test]
    fn a_message_counts_as_sent_when_all_of_it_is() {
        let mut publisher = open_loop(1e6, 100, 0);
        let count = publisher.offer(running(2_000)).len();
        publisher.sent(count - 1, running(2_000));
        assert_eq!(publisher.counters.totals().sent, 1);
        let at = Moment { now: Nanos(9_000), phase: Phase::Draining };
        assert_eq!(publisher.offer(at).len(), 1);
        publisher.sent(1, at);
        assert_eq!((publisher.counters.totals().sent, publisher.counters.totals().finished), (2, 0));
    }
}
