//! Messages that wait for their confirm. Brokers confirm in any order, one by one or several at a time; each
//! message counts once.

use std::collections::VecDeque;

use crate::error::BenchError;

/// Tags count up from 1: those below `base` are settled, those from `next` on are not sent.
#[derive(Debug)]
pub struct Outstanding {
    base: u64,
    next: u64,
    /// From `base` on: what was settled out of turn. The first is never settled.
    ahead: VecDeque<bool>,
    /// How many of these are settled.
    settled_ahead: u64,
}

impl Default for Outstanding {
    fn default() -> Outstanding {
        Outstanding { base: 1, next: 1, ahead: VecDeque::new(), settled_ahead: 0 }
    }
}

impl Outstanding {
    /// Messages that wait.
    pub fn len(&self) -> u64 {
        self.next - self.base - self.settled_ahead
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// So many more are sent.
    pub fn send(&mut self, count: u64) {
        self.next += count;
    }

    /// The broker has settled a message, or all up to it. `each` gets the tags that it settles, in their order;
    /// the result is their number.
    ///
    /// # Errors
    /// When the tag was never sent, or was settled before.
    #[inline]
    pub fn settle(&mut self, tag: u64, multiple: bool, mut each: impl FnMut(u64)) -> Result<u64, BenchError> {
        if tag < self.base || tag >= self.next {
            return Err(wrong(tag));
        }
        let place = usize::try_from(tag - self.base).expect("what waits fits into memory");
        if multiple {
            return Ok(self.settle_up_to(tag, each));
        }
        if place == 0 && self.ahead.is_empty() {
            self.base += 1;
        } else {
            if self.ahead.len() <= place {
                self.ahead.resize(place + 1, false);
            }
            if std::mem::replace(&mut self.ahead[place], true) {
                return Err(wrong(tag));
            }
            self.settled_ahead += 1;
            self.advance();
        }
        each(tag);
        Ok(1)
    }

    fn settle_up_to(&mut self, tag: u64, mut each: impl FnMut(u64)) -> u64 {
        let mut count = 0;
        while self.base <= tag {
            match self.ahead.pop_front() {
                Some(true) => self.settled_ahead -= 1,
                _ => {
                    each(self.base);
                    count += 1;
                }
            }
            self.base += 1;
        }
        self.advance();
        count
    }

    fn advance(&mut self) {
        while self.ahead.front() == Some(&true) {
            self.ahead.pop_front();
            self.base += 1;
            self.settled_ahead -= 1;
        }
    }
}

#[cold]
fn wrong(tag: u64) -> BenchError {
    BenchError::Unexpected(format!("a confirm of message {tag}, which does not wait for one"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn settled(outstanding: &mut Outstanding, tag: u64, multiple: bool) -> Vec<u64> {
        let mut tags = Vec::new();
        let count = outstanding.settle(tag, multiple, |tag| tags.push(tag)).unwrap();
        assert_eq!(count, tags.len() as u64);
        tags
    }

    #[test]
    fn each_message_is_settled_once_whatever_the_order() {
        let mut outstanding = Outstanding::default();
        outstanding.send(6);
        assert_eq!(settled(&mut outstanding, 1, false), [1]);
        assert_eq!(settled(&mut outstanding, 4, false), [4]);
        assert_eq!(outstanding.len(), 4);
        assert_eq!(settled(&mut outstanding, 5, true), [2, 3, 5]);
        assert_eq!(settled(&mut outstanding, 6, false), [6]);
        assert!(outstanding.is_empty());
    }

    #[test]
    fn a_confirm_of_what_does_not_wait_is_an_error() {
        let mut outstanding = Outstanding::default();
        outstanding.send(3);
        settled(&mut outstanding, 1, false);
        settled(&mut outstanding, 3, false);
        for tag in [0, 1, 3, 4] {
            assert!(outstanding.settle(tag, false, |_| ()).is_err(), "{tag}");
        }
    }

    #[test]
    fn it_agrees_with_a_set() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut outstanding, mut set, mut next) = (Outstanding::default(), BTreeSet::new(), 1);
        for _ in 0..20_000 {
            if random.bool() {
                outstanding.send(1);
                set.insert(next);
                next += 1;
            } else if let Some(tag) = set.iter().nth(random.usize(0..set.len().max(1))).copied() {
                let multiple = random.u8(..) < 10;
                let expected: Vec<u64> = match multiple {
                    true => set.iter().copied().filter(|other| *other <= tag).collect(),
                    false => vec![tag],
                };
                assert_eq!(settled(&mut outstanding, tag, multiple), expected);
                set.retain(|other| !expected.contains(other));
            }
            assert_eq!(outstanding.len(), set.len() as u64);
        }
    }
}
