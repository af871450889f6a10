//! Whose turn it is: the consumers of a queue that have credit, by priority, round robin among equals.

use std::collections::VecDeque;

/// Consumers that could take a message now, by their slots in the owner's table.
///
/// A consumer without credit is not in it, so serving a queue never looks at those who cannot take
/// anything.
#[derive(Default, Debug)]
pub struct Turns {
    /// Highest priority first; most queues have one level.
    levels: Vec<(i32, VecDeque<u32>)>,
}

impl Turns {
    /// Nobody can take a message.
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(|(_, level)| level.is_empty())
    }

    /// The consumer to serve next.
    pub fn next(&self) -> Option<u32> {
        self.levels.iter().find_map(|(_, level)| level.front().copied())
    }

    /// The consumer that was next has been served and can take more: it goes behind its equals.
    pub fn rotate(&mut self) {
        if let Some((_, level)) = self.levels.iter_mut().find(|(_, level)| !level.is_empty())
            && level.len() > 1
        {
            level.rotate_left(1);
        }
    }

    /// Puts a consumer behind its equals. It must not be in already.
    pub fn add(&mut self, consumer: u32, priority: i32) {
        let at = self.levels.partition_point(|&(level, _)| level > priority);
        match self.levels.get_mut(at) {
            Some((level, consumers)) if *level == priority => consumers.push_back(consumer),
            _ => self.levels.insert(at, (priority, VecDeque::from([consumer]))),
        }
    }

    /// Takes a consumer out. Cheap for the one that is next.
    pub fn remove(&mut self, consumer: u32, priority: i32) {
        let Some(at) = self.levels.iter().position(|&(level, _)| level == priority) else { return };
        let level = &mut self.levels[at].1;
        if level.front() == Some(&consumer) {
            level.pop_front();
        } else {
            level.retain(|&other| other != consumer);
        }
        if level.is_empty() && self.levels.len() > 1 {
            self.levels.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_take_turns_and_higher_priorities_go_first() {
        let mut turns = Turns::default();
        turns.add(1, 0);
        turns.add(2, 0);
        turns.add(3, 5);
        assert_eq!(turns.next(), Some(3));
        turns.rotate();
        assert_eq!(turns.next(), Some(3), "alone on its level");
        turns.remove(3, 5);
        let mut served = Vec::new();
        for _ in 0..4 {
            served.push(turns.next().unwrap());
            turns.rotate();
        }
        assert_eq!(served, [1, 2, 1, 2]);
        turns.remove(2, 0);
        turns.remove(1, 0);
        assert!(turns.is_empty());
        assert_eq!(turns.next(), None);
    }
}
