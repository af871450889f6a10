//! A fixed rate: when which message is due.

use std::time::Duration;

use crate::clock::Nanos;

/// Messages at a fixed distance, from a start on.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    start: Nanos,
    per_second: f64,
}

impl Pace {
    /// The first message is due at `start`.
    pub fn new(start: Nanos, per_second: f64) -> Pace {
        Pace { start, per_second }
    }

    /// When message `number` is due, counted from 0.
    #[inline]
    pub fn due_at(&self, number: u64) -> Nanos {
        Nanos(self.start.0 + (number as f64 * 1e9 / self.per_second) as u64)
    }

    /// How many messages are due by now, those that are sent included.
    #[inline]
    pub fn due(&self, now: Nanos) -> u64 {
        if now < self.start {
            return 0;
        }
        let estimate = (now.since(self.start) as f64 * self.per_second / 1e9) as u64;
        // The estimate may be off by one for rounding: agree with `due_at`.
        let mut due = estimate.saturating_sub(1);
        while self.due_at(due) <= now {
            due += 1;
        }
        due
    }

    /// When to send next, if messages may wait a little to go out together.
    pub fn next_step(&self, sent: u64, now: Nanos, step: Duration) -> Nanos {
        self.due_at(sent).max(now.after(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_due_when_its_time_has_come_and_not_before() {
        for per_second in [0.3, 1.0, 7.0, 20_000.0, 333_333.3] {
            let pace = Pace::new(Nanos(1_000), per_second);
            for number in [0, 1, 2, 3, 10, 999, 1_000_000] {
                let at = pace.due_at(number);
                assert_eq!(pace.due(at), number + 1, "{per_second} {number}");
                assert_eq!(pace.due(Nanos(at.0 - 1)), number, "{per_second} {number}");
            }
        }
    }

    #[test]
    fn what_waits_for_others_still_goes_out_at_the_rate() {
        let pace = Pace::new(Nanos(0), 100_000.0);
        let step = pace.next_step(5, Nanos(50_000), Duration::from_millis(1));
        assert_eq!(step, Nanos(1_050_000));
        assert_eq!(pace.due(step), 106);
        let slow = Pace::new(Nanos(0), 10.0);
        assert_eq!(slow.next_step(1, Nanos(5), Duration::from_millis(1)), Nanos(100_000_000));
    }
}
