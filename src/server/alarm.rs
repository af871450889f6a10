//! A wake-up at a moment that is asked for again and again while it is still to come.

use std::time::Duration;

/// Remembers for which moment a wake-up was asked last, so that each costs one timer.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Alarm {
    set_us: u64,
}

impl Alarm {
    /// In which time a wake-up is to come, if it is not on its way for this moment. Times are in microseconds.
    pub fn set(&mut self, due_us: u64, now_us: u64) -> Option<Duration> {
        let known = std::mem::replace(&mut self.set_us, due_us) == due_us;
        (!known).then(|| Duration::from_micros(due_us.saturating_sub(now_us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_moment_is_asked_for_once_and_a_past_one_at_once() {
        let mut alarm = Alarm::default();
        assert_eq!(alarm.set(1_500, 1_000), Some(Duration::from_micros(500)));
        assert_eq!(alarm.set(1_500, 1_400), None);
        assert_eq!(alarm.set(2_000, 2_100), Some(Duration::ZERO));
        assert_eq!(alarm.set(1_500, 1_400), Some(Duration::from_micros(100)), "another one came between");
    }
}
