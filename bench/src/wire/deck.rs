//! A deck of messages, encoded once and sent round and round: any run of messages in it is one slice, so that
//! sending costs a write and nothing else.

use std::fmt;

use crate::limits::{
    BODY_BYTES_MAX, DECK_BYTES_MAX, DECK_BYTES_MIN, DECK_MIXED_MESSAGES, DECKS_BYTES_MAX, WRITE_BYTES_MAX,
};
use crate::wire::encode::Envelope;

/// Sizes of bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodySizes {
    /// All alike.
    Fixed(usize),
    /// From, to, both included, all as likely.
    Uniform(usize, usize),
    /// Sizes and their weights.
    Weighted(Vec<(usize, u32)>),
}

impl BodySizes {
    /// Draws one.
    pub fn draw(&self, random: &mut fastrand::Rng) -> usize {
        match self {
            BodySizes::Fixed(size) => *size,
            BodySizes::Uniform(from, to) => random.usize(*from..=*to),
            BodySizes::Weighted(sizes) => {
                let mut left = random.u64(0..sizes.iter().map(|(_, weight)| u64::from(*weight)).sum());
                for (size, weight) in sizes {
                    match left.checked_sub(u64::from(*weight)) {
                        Some(rest) => left = rest,
                        None => return *size,
                    }
                }
                unreachable!("the draw is below the sum of the weights")
            }
        }
    }
}

/// As it is read.
impl fmt::Display for BodySizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodySizes::Fixed(size) => write!(f, "{size}"),
            BodySizes::Uniform(from, to) => write!(f, "{from}-{to}"),
            BodySizes::Weighted(sizes) => {
                for (number, (size, weight)) in sizes.iter().enumerate() {
                    write!(f, "{}{size}:{weight}", if number > 0 { "," } else { "" })?;
                }
                Ok(())
            }
        }
    }
}

impl serde::Serialize for BodySizes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// `1024`, `100-2000`, or `16:90,65536:10` for sizes with weights; `k` and `m` stand for KiB and MiB.
impl std::str::FromStr for BodySizes {
    type Err = String;

    fn from_str(text: &str) -> Result<BodySizes, String> {
        let sizes = if text.contains(':') {
            let parts = text.split(',').map(|part| {
                let (size, weight) =
                    part.split_once(':').ok_or("each size needs a weight: SIZE:WEIGHT,...")?;
                let weight: u32 = weight.parse().map_err(|_| format!("'{weight}' is not a weight"))?;
                Ok::<_, String>((bytes(size)?, weight))
            });
            BodySizes::Weighted(parts.collect::<Result<_, _>>()?)
        } else if let Some((from, to)) = text.split_once('-') {
            BodySizes::Uniform(bytes(from)?, bytes(to)?)
        } else {
            BodySizes::Fixed(bytes(text)?)
        };
        match &sizes {
            BodySizes::Uniform(from, to) if from > to => Err(format!("{from} is more than {to}")),
            BodySizes::Weighted(all) if all.iter().all(|(_, weight)| *weight == 0) => {
                Err("all weights are 0".to_owned())
            }
            _ => Ok(sizes),
        }
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let size = size(text)?;
    match usize::try_from(size).ok().filter(|size| *size <= BODY_BYTES_MAX) {
        Some(size) => Ok(size),
        None => Err(format!("a body has at most {BODY_BYTES_MAX} bytes")),
    }
}

/// A number of bytes, with `k`, `m` or `g` for powers of 1024.
///
/// # Errors
/// When it is none.
pub fn size(text: &str) -> Result<u64, String> {
    let shift = match text.bytes().last().map(|last| last.to_ascii_lowercase()) {
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let number: Option<u64> = digits.parse().ok();
    number.and_then(|number| number.checked_mul(1 << shift)).ok_or_else(|| format!("'{text}' is not a size"))
}

/// Encoded messages, one behind the other.
#[derive(Debug)]
pub struct Deck {
    bytes: Vec<u8>,
    /// Where each message ends.
    ends: Vec<usize>,
    body_bytes: u64,
}

/// A message but for its body: what it carries, and its routing key.
pub type Addressed = (Envelope, String);

impl Deck {
    /// Messages to these addresses in turn, and bodies of these sizes. `seed` makes decks differ, or not; memory is
    /// for so many `decks`.
    pub fn new(to: &[Addressed], sizes: &BodySizes, frame_max: usize, seed: u64, decks: usize) -> Deck {
        let mut random = fastrand::Rng::with_seed(seed);
        let mixed = to.len() > 1 || !matches!(sizes, BodySizes::Fixed(_));
        // Whole rounds of the addresses, so that each gets the same share.
        let messages_min = if mixed { DECK_MIXED_MESSAGES.next_multiple_of(to.len()) } else { 1 };
        let bytes_min = (DECK_BYTES_MAX / decks).clamp(DECK_BYTES_MIN / 16, DECK_BYTES_MIN);
        let bytes_max = (DECKS_BYTES_MAX / decks).clamp(DECK_BYTES_MIN, DECK_BYTES_MAX);
        let mut deck = Deck { bytes: Vec::new(), ends: Vec::new(), body_bytes: 0 };
        let mut body = Vec::new();
        loop {
            for (envelope, key) in to {
                let size = sizes.draw(&mut random);
                body.resize(size, b'x');
                envelope.put(&mut deck.bytes, key, &body[..size], frame_max);
                deck.ends.push(deck.bytes.len());
                deck.body_bytes += size as u64;
            }
            let enough = deck.ends.len() >= messages_min && deck.bytes.len() >= bytes_min;
            if enough || deck.bytes.len() >= bytes_max {
                return deck;
            }
        }
    }

    /// Number of messages.
    #[cfg(test)]
    pub fn messages(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of a body, on average.
    pub fn mean_body_bytes(&self) -> f64 {
        self.body_bytes as f64 / self.ends.len() as f64
    }
}

/// A place in a deck: what has been sent of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    message: usize,
    byte: usize,
}

impl Place {
    /// Whether a message is sent in part.
    pub fn is_within(self, deck: &Deck) -> bool {
        self.message.checked_sub(1).map_or(0, |before| deck.ends[before]) != self.byte
    }

    /// The bytes of up to `messages` messages from here on, as many as one write takes. A message that is
    /// sent in part counts as one; nothing else is cut, unless a message alone is too large for a write.
    pub fn slice(self, deck: &Deck, messages: u64) -> &[u8] {
        if messages == 0 {
            return &[];
        }
        let left = deck.ends.len() - self.message;
        let count = usize::try_from(messages).unwrap_or(usize::MAX).min(left);
        let ends = &deck.ends[self.message..self.message + count];
        let fit = ends.partition_point(|end| end - self.byte <= WRITE_BYTES_MAX);
        let end = match fit.checked_sub(1) {
            Some(last) => ends[last],
            None => self.byte + WRITE_BYTES_MAX,
        };
        &deck.bytes[self.byte..end]
    }

    /// Notes that so many bytes are sent. Gives the number of messages that are whole now.
    pub fn advance(&mut self, deck: &Deck, bytes: usize) -> u64 {
        self.byte += bytes;
        let mut whole = 0;
        while self.message < deck.ends.len() && deck.ends[self.message] <= self.byte {
            self.message += 1;
            whole += 1;
        }
        if self.message == deck.ends.len() {
            *self = Place::default();
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use amq_protocol::protocol::basic::AMQPProperties;

    use super::*;
    use crate::wire::scan::{Event, Frames, publish_route};

    fn deck(keys: &[&str], sizes: &str) -> Deck {
        let envelope = Envelope::new("", false, &AMQPProperties::default());
        let to: Vec<Addressed> = keys.iter().map(|key| (envelope.clone(), (*key).to_owned())).collect();
        Deck::new(&to, &sizes.parse().unwrap(), 4096, 1, 1)
    }

    /// Keys and body sizes of all messages in a stream.
    fn messages(bytes: &[u8]) -> Vec<(String, u64)> {
        let mut frames = Frames::new(bytes);
        let (mut messages, mut key) = (Vec::new(), String::new());
        while let Some(event) = frames.next_event().unwrap() {
            match event {
                Event::Other(publish) => {
                    key = String::from_utf8(publish_route(publish).unwrap().1.to_vec()).unwrap();
                }
                Event::Header(size) => messages.push((key.clone(), size)),
                _ => {}
            }
        }
        assert_eq!(frames.consumed(), bytes.len());
        messages
    }

    #[test]
    fn sizes_are_read_in_all_three_forms() {
        assert_eq!("2k".parse(), Ok(BodySizes::Fixed(2048)));
        assert_eq!("0-9".parse(), Ok(BodySizes::Uniform(0, 9)));
        assert_eq!("16:90,1m:10".parse(), Ok(BodySizes::Weighted(vec![(16, 90), (1 << 20, 10)])));
        for shown in ["2048", "0-9", "16:90,64:10"] {
            assert_eq!(shown.parse::<BodySizes>().unwrap().to_string(), shown);
        }
        for wrong in ["", "x", "9-1", "1:0", "1:1,2", "-1", "129m", "99999999999g", "k"] {
            assert!(wrong.parse::<BodySizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_distribution_keeps_to_its_bounds_and_weights() {
        let mut random = fastrand::Rng::with_seed(7);
        let uniform = BodySizes::Uniform(3, 5);
        assert!((0..1000).all(|_| (3..=5).contains(&uniform.draw(&mut random))));
        let weighted = BodySizes::Weighted(vec![(1, 9), (2, 0), (3, 1)]);
        let drawn: Vec<usize> = (0..10_000).map(|_| weighted.draw(&mut random)).collect();
        let ones = drawn.iter().filter(|size| **size == 1).count();
        assert!((8_500..9_500).contains(&ones) && !drawn.contains(&2), "{ones}");
    }

    #[test]
    fn each_key_has_the_same_share() {
        let deck = deck(&["a", "b", "c"], "10");
        let messages = messages(&deck.bytes);
        assert_eq!(messages.len(), deck.messages());
        for key in ["a", "b", "c"] {
            assert_eq!(messages.iter().filter(|(of, _)| of == key).count() * 3, deck.messages());
        }
    }

    #[test]
    fn any_writes_send_every_message_whole_and_in_turn() {
        let deck = deck(&["a", "b"], "0-20000");
        let (mut place, mut sent, mut stream) = (Place::default(), 0, Vec::new());
        let mut random = fastrand::Rng::with_seed(3);
        let target = deck.messages() as u64 * 2 + 5;
        while sent < target {
            let slice = place.slice(&deck, (target - sent).min(random.u64(1..50)));
            assert!(!slice.is_empty() && slice.len() <= WRITE_BYTES_MAX);
            let taken = random.usize(1..=slice.len());
            stream.extend_from_slice(&slice[..taken]);
            sent += place.advance(&deck, taken);
        }
        assert!(!place.is_within(&deck));
        let messages = messages(&stream);
        assert_eq!(messages.len() as u64, sent);
        assert!(messages.iter().enumerate().all(|(n, (key, _))| key == ["a", "b"][n % deck.messages() % 2]));
    }

    #[test]
    fn a_message_larger_than_a_write_goes_out_in_pieces() {
        let deck = deck(&["a"], "1m");
        let mut place = Place::default();
        assert_eq!(place.advance(&deck, place.slice(&deck, 1).len()), 0);
        assert!(place.is_within(&deck));
        let mut whole = 0;
        while whole == 0 {
            whole = place.advance(&deck, place.slice(&deck, 1).len());
        }
        assert!(whole == 1 && !place.is_within(&deck));
    }

    #[test]
    fn nothing_is_sent_when_nothing_may() {
        assert!(Place::default().slice(&deck(&["a"], "10"), 0).is_empty());
    }
}
