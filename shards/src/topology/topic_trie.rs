//! The patterns of one topic exchange, as a trie by words.
//!
//! Part of every replica. Patterns and routing keys are words separated by dots; the empty string has
//! no word, `a.` has two of which the second is empty. In a pattern `*` stands for one word and `#`
//! for none or more (<https://www.rabbitmq.com/tutorials/amqp-concepts#exchange-topic>).
//!
//! Matching walks all fitting nodes together, one word of the routing key after another, and meets a
//! node at most once per word. Its cost depends on the patterns that fit so far: patterns that part
//! from the routing key early are never looked at, and stacked `#`s do not multiply.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use slab::Slab;
use smallvec::SmallVec;

use super::bucket::{BindingIndex, Bucket, Entry};

const ROOT: u32 = 0;
/// Stands for "no such child".
const NONE: u32 = u32::MAX;

/// The trie. Invariant: every node but the root has a child or an entry.
#[derive(Clone, Debug)]
pub(super) struct TopicTrie {
    nodes: Slab<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    /// Clients choose the words: hence the keyed hash.
    words: HashMap<Box<[u8]>, u32>,
    /// The child by `*`.
    any_word: u32,
    /// The child by `#`.
    any_words: u32,
    /// Reached by `#`: stays matched whatever the next word is.
    repeats: bool,
    /// Bindings whose pattern ends here.
    bucket: Bucket,
}

/// What a match needs beside the trie, kept between matches so that none allocates.
#[derive(Debug, Default)]
pub(super) struct TopicScratch {
    current: Vec<u32>,
    next: Vec<u32>,
    /// By node: the step that last entered it.
    entered: Vec<u64>,
    /// Counts steps over all matches and tries that this scratch serves.
    step: u64,
    /// Counts nodes entered, for tests and measurements.
    pub nodes_visited: u64,
}

impl TopicTrie {
    pub fn new() -> TopicTrie {
        let mut nodes = Slab::new();
        let root = nodes.insert(Node::new(false));
        debug_assert_eq!(root as u32, ROOT);
        TopicTrie { nodes }
    }

    /// Adds an entry under a pattern and returns its position in the pattern's bucket.
    pub fn add(&mut self, pattern: &[u8], entry: Entry) -> u32 {
        let mut node = ROOT;
        for word in words(pattern) {
            node = match self.child(node, word) {
                NONE => self.grow(node, word),
                child => child,
            };
        }
        self.nodes[node as usize].bucket.add(entry)
    }

    /// Removes the entry at `position` of a pattern's bucket, and the nodes that then lead nowhere.
    /// Returns the binding that was moved to `position`, if one was.
    pub fn remove(&mut self, pattern: &[u8], position: u32) -> Option<BindingIndex> {
        let mut path: SmallVec<[(u32, &[u8]); 16]> = SmallVec::new();
        let mut node = ROOT;
        for word in words(pattern) {
            path.push((node, word));
            node = self.child(node, word);
        }
        let moved = self.nodes[node as usize].bucket.remove(position);
        for (parent, word) in path.into_iter().rev() {
            if !self.nodes[node as usize].leads_nowhere() {
                break;
            }
            self.nodes.remove(node as usize);
            self.cut(parent, word);
            node = parent;
        }
        moved
    }

    /// Calls `found` with the bucket of every pattern that matches the routing key, each once.
    pub fn matches(&self, routing_key: &[u8], scratch: &mut TopicScratch, mut found: impl FnMut(&Bucket)) {
        if scratch.entered.len() < self.nodes.capacity() {
            scratch.entered.resize(self.nodes.capacity(), 0);
        }
        scratch.next.clear();
        scratch.step += 1;
        self.enter(ROOT, scratch);
        for word in words(routing_key) {
            std::mem::swap(&mut scratch.current, &mut scratch.next);
            scratch.next.clear();
            scratch.step += 1;
            for position in 0..scratch.current.len() {
                self.advance(scratch.current[position], word, scratch);
            }
            if scratch.next.is_empty() {
                return;
            }
        }
        for &node in &scratch.next {
            let bucket = &self.nodes[node as usize].bucket;
            if !bucket.is_empty() {
                found(bucket);
            }
        }
    }

    /// Everything that `word` leads to from `node`.
    fn advance(&self, node: u32, word: &[u8], scratch: &mut TopicScratch) {
        let from = &self.nodes[node as usize];
        if from.repeats {
            self.enter(node, scratch);
        }
        if from.any_word != NONE {
            self.enter(from.any_word, scratch);
        }
        if !from.words.is_empty()
            && let Some(&child) = from.words.get(word)
        {
            self.enter(child, scratch);
        }
    }

    /// Puts a node among the next step's, and with it what `#` reaches from there by no word.
    fn enter(&self, node: u32, scratch: &mut TopicScratch) {
        let mut node = node;
        while node != NONE {
            let entered = &mut scratch.entered[node as usize];
            if *entered == scratch.step {
                return;
            }
            *entered = scratch.step;
            scratch.nodes_visited += 1;
            scratch.next.push(node);
            node = self.nodes[node as usize].any_words;
        }
    }

    /// The child of a node by a word of a pattern, or [`NONE`].
    fn child(&self, node: u32, word: &[u8]) -> u32 {
        let node = &self.nodes[node as usize];
        match word {
            b"*" => node.any_word,
            b"#" => node.any_words,
            word => node.words.get(word).copied().unwrap_or(NONE),
        }
    }

    fn grow(&mut self, parent: u32, word: &[u8]) -> u32 {
        let child = self.nodes.insert(Node::new(word == b"#")) as u32;
        let parent = &mut self.nodes[parent as usize];
        match word {
            b"*" => parent.any_word = child,
            b"#" => parent.any_words = child,
            word => {
                parent.words.insert(word.into(), child);
            }
        }
        child
    }

    fn cut(&mut self, parent: u32, word: &[u8]) {
        let parent = &mut self.nodes[parent as usize];
        match word {
            b"*" => parent.any_word = NONE,
            b"#" => parent.any_words = NONE,
            word => {
                parent.words.remove(word);
            }
        }
    }
}

impl Node {
    fn new(repeats: bool) -> Node {
        Node { words: HashMap::new(), any_word: NONE, any_words: NONE, repeats, bucket: Bucket::default() }
    }

    fn leads_nowhere(&self) -> bool {
        self.bucket.is_empty() && self.words.is_empty() && self.any_word == NONE && self.any_words == NONE
    }
}

/// The words of a pattern or routing key; the empty string has none.
fn words(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    key.split(|&byte| byte == b'.').take(if key.is_empty() { 0 } else { usize::MAX })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bucket::{Destination, ExchangeIndex};
    use super::*;

    fn entry(n: u32) -> Entry {
        Entry { destination: Destination::Exchange(ExchangeIndex(n)), binding: BindingIndex(n) }
    }

    fn matched(trie: &TopicTrie, key: &str, scratch: &mut TopicScratch) -> Vec<u32> {
        let mut found = Vec::new();
        trie.matches(key.as_bytes(), scratch, |bucket| {
            found.extend(bucket.entries().iter().map(|entry| entry.binding.0));
        });
        found.sort_unstable();
        found
    }

    fn trie(patterns: &[&str]) -> TopicTrie {
        let mut trie = TopicTrie::new();
        for (n, pattern) in patterns.iter().enumerate() {
            trie.add(pattern.as_bytes(), entry(n as u32));
        }
        trie
    }

    /// The definition, word by word.
    fn fits(pattern: &[&[u8]], key: &[&[u8]]) -> bool {
        match pattern {
            [] => key.is_empty(),
            [b"#", rest @ ..] => (0..=key.len()).any(|skipped| fits(rest, &key[skipped..])),
            [b"*", rest @ ..] => !key.is_empty() && fits(rest, &key[1..]),
            [word, rest @ ..] => key.first() == Some(word) && fits(rest, &key[1..]),
        }
    }

    fn naive(pattern: &str, key: &str) -> bool {
        fits(&words(pattern.as_bytes()).collect::<Vec<_>>(), &words(key.as_bytes()).collect::<Vec<_>>())
    }

    #[test]
    fn star_is_one_word_and_hash_is_any_number() {
        let patterns = ["a.*", "a.#", "#", "*", "", "a.#.c", "*.b.*"];
        let trie = trie(&patterns);
        let mut scratch = TopicScratch::default();
        assert_eq!(matched(&trie, "", &mut scratch), [2, 4]);
        assert_eq!(matched(&trie, "a", &mut scratch), [1, 2, 3]);
        assert_eq!(matched(&trie, "a.b", &mut scratch), [0, 1, 2]);
        assert_eq!(matched(&trie, "a.c", &mut scratch), [0, 1, 2, 5]);
        assert_eq!(matched(&trie, "a.b.c", &mut scratch), [1, 2, 5, 6]);
        assert_eq!(matched(&trie, "a.", &mut scratch), [0, 1, 2], "an empty word is a word");
        assert_eq!(matched(&trie, "*", &mut scratch), [2, 3], "a star in a routing key is a plain word");
    }

    #[test]
    fn removing_the_last_entry_of_a_pattern_prunes_its_branch_only() {
        let mut trie = trie(&["a.b.c", "a.b", "a.*.#"]);
        assert_eq!(trie.nodes.len(), 6);
        trie.remove(b"a.b.c", 0);
        assert_eq!(trie.nodes.len(), 5, "a.b still ends at b");
        trie.remove(b"a.*.#", 0);
        assert_eq!(trie.nodes.len(), 3);
        trie.remove(b"a.b", 0);
        assert_eq!(trie.nodes.len(), 1, "only the root stays");
    }

    #[test]
    fn a_hundred_thousand_patterns_cost_what_fits() {
        let mut trie = TopicTrie::new();
        for n in 0..100_000u32 {
            trie.add(format!("device.{n}.temperature").as_bytes(), entry(n));
        }
        trie.add(b"device.*.temperature", entry(100_000));
        let mut scratch = TopicScratch::default();
        assert_eq!(matched(&trie, "device.77777.temperature", &mut scratch), [77_777, 100_000]);
        assert_eq!(scratch.nodes_visited, 6, "root, device, two middles, two ends");
        scratch.nodes_visited = 0;
        assert!(matched(&trie, "sensor.77777.temperature", &mut scratch).is_empty());
        assert_eq!(scratch.nodes_visited, 1, "nothing fits the first word");
    }

    #[test]
    fn stacked_hashes_cost_words_times_nodes() {
        let trie = trie(&["#.a.#.a.#.a.#.a.#.a.#.a.#.a.#.a.#.b"]);
        let mut scratch = TopicScratch::default();
        let key = vec!["a"; 120].join(".");
        assert!(matched(&trie, &key, &mut scratch).is_empty());
        assert!(scratch.nodes_visited <= 121 * trie.nodes.len() as u64);
    }

    fn word() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["a", "b", "*", "#", "", "cc"]).prop_map(str::to_owned)
    }

    fn key() -> impl Strategy<Value = String> {
        prop::collection::vec(word(), 0..6).prop_map(|words| words.join("."))
    }

    proptest! {
        #[test]
        fn the_trie_agrees_with_the_definition(
            patterns in prop::collection::vec(key(), 0..12),
            removed in prop::collection::vec(any::<bool>(), 12),
            keys in prop::collection::vec(key(), 1..12),
        ) {
            let mut trie = TopicTrie::new();
            let mut position: Vec<u32> =
                patterns.iter().enumerate().map(|(n, pattern)| trie.add(pattern.as_bytes(), entry(n as u32))).collect();
            for (n, pattern) in patterns.iter().enumerate().filter(|(n, _)| removed[*n]) {
                if let Some(moved) = trie.remove(pattern.as_bytes(), position[n]) {
                    position[moved.0 as usize] = position[n];
                }
            }
            let mut scratch = TopicScratch::default();
            for key in &keys {
                // In a routing key the signs are plain words; the definition never gets to see them there.
                let expected: Vec<u32> = (0..patterns.len() as u32)
                    .filter(|&n| !removed[n as usize] && naive(&patterns[n as usize], key))
                    .collect();
                prop_assert_eq!(matched(&trie, key, &mut scratch), expected);
            }
        }
    }
}
