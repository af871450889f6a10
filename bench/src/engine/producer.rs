//! A connection that publishes from a deck: as fast as the socket takes it, or at a rate, or within a window of
//! confirms.

use std::sync::Arc;

use super::counters::Counters;
use super::outstanding::Outstanding;
use super::pace::Pace;
use super::{Moment, Phase, Role};
use crate::client::refusal;
use crate::clock::Nanos;
use crate::error::BenchError;
use crate::limits::PACE_STEP;
use crate::wire::deck::{Deck, Place};
use crate::wire::scan::{Event, Frames};

/// How a producer publishes.
#[derive(Clone, Debug, Default)]
pub struct ProducerPlan {
    /// At most so many messages wait for their confirm; none: no confirms.
    pub window: Option<u64>,
    /// At most at this rate.
    pub pace: Option<Pace>,
    /// So many messages in all.
    pub messages: Option<u64>,
}

/// A connection that publishes.
#[derive(Debug)]
pub struct Producer {
    deck: Arc<Deck>,
    place: Place,
    plan: ProducerPlan,
    counters: Arc<Counters>,
    sent: u64,
    outstanding: Outstanding,
    finished: bool,
}

impl Producer {
    /// One that has sent nothing.
    pub fn new(deck: Arc<Deck>, plan: ProducerPlan, counters: Arc<Counters>) -> Producer {
        let place = Place::default();
        Producer {
            deck,
            place,
            plan,
            counters,
            sent: 0,
            outstanding: Outstanding::default(),
            finished: false,
        }
    }

    /// How many more messages may go out now.
    fn allowed(&self, at: Moment) -> u64 {
        // What is begun must be ended, or the stream makes no sense.
        let begun = u64::from(self.place.is_within(&self.deck));
        if at.phase != Phase::Running {
            return begun;
        }
        let quota = self.plan.messages.map_or(u64::MAX, |all| all - self.sent);
        let window =
            self.plan.window.map_or(u64::MAX, |window| window.saturating_sub(self.outstanding.len()));
        let pace = self.plan.pace.map_or(u64::MAX, |pace| pace.due(at.now).saturating_sub(self.sent));
        quota.min(window).min(pace).max(begun)
    }

    fn note_finished(&mut self, at: Moment) {
        let no_more = at.phase != Phase::Running || self.plan.messages == Some(self.sent);
        let flushed = !self.place.is_within(&self.deck);
        if no_more && flushed && self.outstanding.is_empty() && !self.finished {
            self.finished = true;
            self.counters.finished.add(1);
        }
    }
}

/// Takes what a broker may send to a publisher; gives the tags that it settles to `settled`.
///
/// # Errors
/// When the broker closes the channel or makes no sense.
pub fn take_confirms(
    frames: &mut Frames<'_>,
    outstanding: &mut Outstanding,
    counters: &Counters,
    mut settled: impl FnMut(u64),
) -> Result<(), BenchError> {
    let (mut confirmed, mut nacked, mut returned) = (0, 0, 0);
    while let Some(event) = frames.next_event()? {
        match event {
            Event::Ack(tag, multiple) => confirmed += outstanding.settle(tag, multiple, &mut settled)?,
            Event::Nack(tag, multiple) => nacked += outstanding.settle(tag, multiple, |_| ())?,
            Event::Return => returned += 1,
            Event::Other(payload) => take_notice("a publish", payload, counters)?,
            // Header and body of a return.
            Event::Header(_) | Event::Body(_) | Event::Heartbeat | Event::Deliver(_) => {}
        }
    }
    counters.confirmed.add(confirmed);
    counters.nacked.add(nacked);
    counters.returned.add(returned);
    Ok(())
}

/// Takes a method that is no answer: counts `connection.blocked`.
///
/// # Errors
/// When the broker closes the channel, the connection or the consumer.
pub fn take_notice(what: &str, payload: &[u8], counters: &Counters) -> Result<(), BenchError> {
    if payload.starts_with(&[0, 10, 0, 60]) {
        counters.blocked.add(1);
    }
    refusal(what, payload)?.map_or(Ok(()), Err)
}

impl Role for Producer {
    fn take(&mut self, frames: &mut Frames<'_>, at: Moment) -> Result<(), BenchError> {
        take_confirms(frames, &mut self.outstanding, &self.counters, |_| ())?;
        self.note_finished(at);
        Ok(())
    }

    fn offer(&mut self, at: Moment) -> &[u8] {
        self.note_finished(at);
        self.place.slice(&self.deck, self.allowed(at))
    }

    fn sent(&mut self, bytes: usize, at: Moment) {
        let whole = self.place.advance(&self.deck, bytes);
        self.sent += whole;
        if self.plan.window.is_some() {
            self.outstanding.send(whole);
        }
        self.counters.sent.add(whole);
        self.note_finished(at);
    }

    fn wake(&self, at: Moment) -> Option<Nanos> {
        let pace = self.plan.pace?;
        (!self.finished && at.phase == Phase::Running).then(|| pace.next_step(self.sent, at.now, PACE_STEP))
    }
}

#[cfg(test)]
mod tests {
    use amq_protocol::protocol::basic::AMQPProperties;

    use super::*;
    use crate::wire::encode::{Envelope, put_ack};

    const RUNNING: Moment = Moment { now: Nanos(0), phase: Phase::Running };
    const DRAINING: Moment = Moment { now: Nanos(0), phase: Phase::Draining };

    fn producer(plan: ProducerPlan) -> Producer {
        let envelope = Envelope::new("", false, &AMQPProperties::default());
        let sizes = "100".parse().unwrap();
        let deck = Deck::new(&[(envelope, "q".to_owned())], &sizes, 4096, 0, 1);
        Producer::new(Arc::new(deck), plan, Arc::default())
    }

    fn send_all(producer: &mut Producer, at: Moment) {
        loop {
            let offered = producer.offer(at).len();
            if offered == 0 {
                return;
            }
            producer.sent(offered, at);
        }
    }

    fn confirm(producer: &mut Producer, tag: u64, at: Moment) {
        let mut bytes = Vec::new();
        put_ack(&mut bytes, tag, true);
        producer.take(&mut Frames::new(&bytes), at).unwrap();
    }

    #[test]
    fn a_window_is_filled_and_not_passed() {
        let mut producer = producer(ProducerPlan { window: Some(10), ..ProducerPlan::default() });
        send_all(&mut producer, RUNNING);
        assert_eq!(producer.counters.totals().sent, 10);
        confirm(&mut producer, 4, RUNNING);
        send_all(&mut producer, RUNNING);
        let totals = producer.counters.totals();
        assert_eq!((totals.sent, totals.confirmed, totals.finished), (14, 4, 0));
    }

    #[test]
    fn it_is_finished_when_the_last_confirm_is_here() {
        let plan = ProducerPlan { window: Some(10), messages: Some(3), ..ProducerPlan::default() };
        let mut producer = producer(plan);
        send_all(&mut producer, RUNNING);
        assert_eq!((producer.counters.totals().sent, producer.counters.totals().finished), (3, 0));
        confirm(&mut producer, 3, RUNNING);
        confirm_nothing(&mut producer);
        assert_eq!(producer.counters.totals().finished, 1);
    }

    fn confirm_nothing(producer: &mut Producer) {
        producer.take(&mut Frames::new(&[]), RUNNING).unwrap();
    }

    #[test]
    fn at_the_end_the_message_that_is_begun_is_sent_and_no_other() {
        let mut producer = producer(ProducerPlan::default());
        assert!(producer.offer(RUNNING).len() > 1000);
        producer.sent(5, RUNNING);
        let rest = producer.offer(DRAINING).len();
        assert!(rest > 0 && rest < 300, "{rest}");
        producer.sent(rest, DRAINING);
        assert!(producer.offer(DRAINING).is_empty());
        let totals = producer.counters.totals();
        assert_eq!((totals.sent, totals.finished), (1, 1));
    }

    #[test]
    fn a_rate_holds() {
        let pace = Pace::new(Nanos(0), 1000.0);
        let mut producer = producer(ProducerPlan { pace: Some(pace), ..ProducerPlan::default() });
        let at = Moment { now: Nanos(20_500_000), phase: Phase::Running };
        send_all(&mut producer, at);
        assert_eq!(producer.counters.totals().sent, 21);
        assert_eq!(producer.wake(at), Some(Nanos(21_500_000)));
    }
}
