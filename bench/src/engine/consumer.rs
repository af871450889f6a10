//! A connection that consumes, acks as it is told, and takes the time of bodies that carry one.

use std::sync::Arc;

use hdrhistogram::Histogram;

use super::counters::Counters;
use super::histograms::{Histograms, latencies, record};
use super::producer::take_notice;
use super::{Moment, Phase, Role};
use crate::clock::Nanos;
use crate::error::BenchError;
use crate::limits::STAMP_BYTES;
use crate::wire::encode::put_ack;
use crate::wire::scan::{Event, Frames};

/// How deliveries are acked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Not at all: `no-ack`.
    None,
    /// Each by itself.
    Each,
    /// All that one read brought, by one `multiple` ack.
    Batch,
    /// So many by one `multiple` ack.
    Every(u64),
}

/// The name of publish-to-deliver latencies.
pub const DELIVER: &str = "deliver";

/// A connection that consumes.
#[derive(Debug)]
pub struct Consumer {
    acks: Acks,
    counters: Arc<Counters>,
    output: Vec<u8>,
    /// Bytes of the current body that are still to come.
    body_left: u64,
    body_started: bool,
    tag: u64,
    /// Of the last delivery that is whole: nothing behind it may be acked.
    whole_tag: u64,
    /// Deliveries since the last ack.
    unacked: u64,
    /// Acked in the output: counted when all of that is sent, so that a run does not end before.
    acked: u64,
    /// Since when bodies are timed, if at all, and the times.
    timed: Option<(Nanos, Histogram<u64>)>,
}

#[derive(Default)]
struct Batch {
    delivered: u64,
    redelivered: u64,
    body_bytes: u64,
}

impl Consumer {
    /// One that does not look at bodies.
    pub fn new(acks: Acks, counters: Arc<Counters>) -> Consumer {
        Consumer {
            acks,
            counters,
            output: Vec::new(),
            body_left: 0,
            body_started: false,
            tag: 0,
            whole_tag: 0,
            unacked: 0,
            acked: 0,
            timed: None,
        }
    }

    /// Takes the times in bodies that were due from `from` on.
    pub fn timed(mut self, from: Nanos) -> Consumer {
        self.timed = Some((from, latencies()));
        self
    }

    #[inline]
    fn body(&mut self, part: &[u8], now: Nanos, batch: &mut Batch) -> Result<(), BenchError> {
        let Some(left) = self.body_left.checked_sub(part.len() as u64) else {
            return Err(BenchError::Unexpected("a body is longer than its header says".to_owned()));
        };
        if !self.body_started {
            self.body_started = true;
            if let Some((from, histogram)) = &mut self.timed
                && let Some(stamp) = part.first_chunk::<STAMP_BYTES>()
            {
                let intended = Nanos(u64::from_be_bytes(*stamp));
                if intended >= *from {
                    record(histogram, now.since(intended));
                }
            }
        }
        batch.body_bytes += part.len() as u64;
        self.body_left = left;
        if left == 0 {
            self.complete(batch);
        }
        Ok(())
    }

    #[inline]
    fn complete(&mut self, batch: &mut Batch) {
        batch.delivered += 1;
        self.whole_tag = self.tag;
        match self.acks {
            Acks::None => {}
            Acks::Each => {
                put_ack(&mut self.output, self.tag, false);
                self.acked += 1;
            }
            Acks::Batch => self.unacked += 1,
            Acks::Every(count) => {
                self.unacked += 1;
                if self.unacked >= count {
                    self.ack_all();
                }
            }
        }
    }

    fn ack_all(&mut self) {
        if self.unacked > 0 {
            put_ack(&mut self.output, self.whole_tag, true);
            self.acked += std::mem::take(&mut self.unacked);
        }
    }
}

impl Role for Consumer {
    fn take(&mut self, frames: &mut Frames<'_>, at: Moment) -> Result<(), BenchError> {
        let mut batch = Batch::default();
        while let Some(event) = frames.next_event()? {
            match event {
                Event::Deliver(deliver) => {
                    self.tag = deliver.tag;
                    batch.redelivered += u64::from(deliver.redelivered);
                }
                Event::Header(size) => {
                    self.body_left = size;
                    self.body_started = false;
                    if size == 0 {
                        self.complete(&mut batch);
                    }
                }
                Event::Body(part) => self.body(part, at.now, &mut batch)?,
                Event::Other(payload) => take_notice("to consume", payload, &self.counters)?,
                Event::Ack(..) | Event::Nack(..) | Event::Return | Event::Heartbeat => {}
            }
        }
        if self.acks == Acks::Batch {
            self.ack_all();
        }
        self.counters.delivered.add(batch.delivered);
        self.counters.redelivered.add(batch.redelivered);
        self.counters.body_bytes.add(batch.body_bytes);
        Ok(())
    }

    fn offer(&mut self, at: Moment) -> &[u8] {
        // At the end nothing stays unacked, however few they are.
        if at.phase != Phase::Running {
            self.ack_all();
        }
        &self.output
    }

    fn sent(&mut self, bytes: usize, _: Moment) {
        self.output.drain(..bytes);
        if self.output.is_empty() {
            self.counters.acked.add(std::mem::take(&mut self.acked));
        }
    }

    fn wake(&self, _: Moment) -> Option<Nanos> {
        None
    }

    fn histograms(&mut self) -> Histograms {
        self.timed.take().map_or_else(Histograms::default, |(_, times)| Histograms::one(DELIVER, times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::encode::put_delivery;

    const AT: Moment = Moment { now: Nanos(1000), phase: Phase::Running };
    const END: Moment = Moment { now: Nanos(1000), phase: Phase::Draining };

    fn deliveries(tags: std::ops::RangeInclusive<u64>, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for tag in tags {
            let mut header = vec![0, 60, 0, 0];
            header.extend((body.len() as u64).to_be_bytes());
            header.extend([0, 0]);
            put_delivery(&mut bytes, b"c", tag, b"", b"q", &header, body);
        }
        bytes
    }

    /// Tags and `multiple` of all acks that it wants to send.
    fn acks(consumer: &mut Consumer, at: Moment) -> Vec<(u64, bool)> {
        let bytes = consumer.offer(at).to_vec();
        consumer.sent(bytes.len(), at);
        let (mut frames, mut acks) = (Frames::new(&bytes), Vec::new());
        while let Some(event) = frames.next_event().unwrap() {
            let Event::Ack(tag, multiple) = event else { panic!("{event:?}") };
            acks.push((tag, multiple));
        }
        acks
    }

    fn take(consumer: &mut Consumer, bytes: &[u8]) -> usize {
        let mut frames = Frames::new(bytes);
        consumer.take(&mut frames, AT).unwrap();
        frames.consumed()
    }

    #[test]
    fn each_ack_mode_acks_what_it_should() {
        let bytes = deliveries(1..=5, b"body");
        for (mode, now, at_the_end) in [
            (Acks::None, vec![], vec![]),
            (Acks::Each, (1..=5).map(|tag| (tag, false)).collect(), vec![]),
            (Acks::Batch, vec![(5, true)], vec![]),
            (Acks::Every(2), vec![(2, true), (4, true)], vec![(5, true)]),
        ] {
            let mut consumer = Consumer::new(mode, Arc::default());
            take(&mut consumer, &bytes);
            assert_eq!(acks(&mut consumer, AT), now, "{mode:?}");
            assert_eq!(acks(&mut consumer, END), at_the_end, "{mode:?}");
            let totals = consumer.counters.totals();
            assert_eq!((totals.delivered, totals.body_bytes), (5, 20));
            assert_eq!(totals.acked, if mode == Acks::None { 0 } else { 5 });
        }
    }

    #[test]
    fn a_delivery_that_is_not_whole_is_not_acked() {
        let bytes = deliveries(1..=3, b"body");
        for mode in [Acks::Batch, Acks::Every(9)] {
            // Without its body's end, without its body, without its header.
            for missing in [1, 12, 34] {
                let mut consumer = Consumer::new(mode, Arc::default());
                let consumed = take(&mut consumer, &bytes[..bytes.len() - missing]);
                assert_eq!(acks(&mut consumer, END), [(2, true)], "{mode:?} {missing}");
                take(&mut consumer, &bytes[consumed..]);
                assert_eq!(acks(&mut consumer, END), [(3, true)], "{mode:?} {missing}");
            }
        }
    }

    #[test]
    fn bodies_are_timed_from_the_time_that_they_carry() {
        let mut consumer = Consumer::new(Acks::None, Arc::default()).timed(Nanos(300));
        take(&mut consumer, &deliveries(1..=1, &299u64.to_be_bytes()));
        take(&mut consumer, &deliveries(2..=2, &400u64.to_be_bytes()));
        let times = consumer.histograms().0.remove(DELIVER).unwrap();
        assert_eq!((times.len(), times.max()), (1, 600));
    }

    #[test]
    fn an_empty_body_counts() {
        let header = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut bytes = Vec::new();
        put_delivery(&mut bytes, b"c", 1, b"", b"q", &header, b"");
        // Brokers send no body frame for it.
        bytes.truncate(bytes.len() - 8);
        let mut consumer = Consumer::new(Acks::Each, Arc::default());
        take(&mut consumer, &bytes);
        assert_eq!(acks(&mut consumer, AT), [(1, false)]);
    }
}
