//! The broker is killed while clients publish with confirms and consume with acks, again and again.
//!
//! What the clients know is kept in a [`Book`]; at the end everything is drained and the book must balance: no
//! confirmed message is missing, none comes back that was acked and known to be, what was seen before is marked
//! when it comes again, and counts agree. `LEPUS_CRASH_LIVES` sets how often (10 by default, 200 in a long run).

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lepus_storage::log::{DirectoryFiles, list_segments, recover};
use lepus_tests::process::DataDir;
use lepus_tests::wire::{method_frame, publish_frames};
use lepus_tests::{Arguments, Broker, Event, Method, Properties, Setup, Wire};

const QUEUES: [&str; 4] = ["crash.a", "crash.b", "crash.c", COLD];
/// Nobody consumes from this one.
const COLD: &str = "crash.cold";
const FANOUT: &str = "crash.fanout";
/// Publishes that may be unconfirmed.
const WINDOW: u64 = 100;
const PREFETCH: u16 = 50;

#[derive(Default, Clone, Copy)]
struct Fate {
    confirmed: bool,
    /// A client has had it.
    seen: bool,
    /// An ack was sent for it.
    acked: bool,
    /// ... and an answer came that the queue's owner gave after it.
    settled: bool,
}

/// What is known of each message in each queue.
#[derive(Default)]
struct Book {
    fates: Mutex<HashMap<(usize, u64), Fate>>,
    next: AtomicU64,
}

impl Book {
    fn note(&self, queues: &[usize], message: u64, change: impl Fn(&mut Fate)) {
        let mut fates = self.fates.lock().expect("no client panics with the book in hand");
        queues.iter().for_each(|&queue| change(fates.entry((queue, message)).or_default()));
    }

    /// A client has got a message.
    fn seen(&self, queue: usize, message: u64, redelivered: bool) {
        let mut fates = self.fates.lock().expect("no client panics with the book in hand");
        let fate = fates.entry((queue, message)).or_default();
        assert!(!fate.settled, "message {message} was settled in {} and comes again", QUEUES[queue]);
        assert!(!fate.seen || redelivered, "message {message} of {} comes again unmarked", QUEUES[queue]);
        fate.seen = true;
    }
}

/// The number in front, and as much behind it as asked for, which depends on the number.
fn body(message: u64, bytes: usize) -> Vec<u8> {
    let mut body = message.to_be_bytes().to_vec();
    body.resize(8 + bytes, message as u8);
    body
}

fn number(body: &[u8]) -> u64 {
    let number = u64::from_be_bytes(body[..8].try_into().expect("bodies begin with a number"));
    assert!(body[8..].iter().all(|&byte| byte == number as u8), "the body of message {number} has changed");
    number
}

/// What a publisher sends, and to which queues it goes.
struct Publisher {
    wire: Wire,
    exchange: &'static str,
    queues: &'static [usize],
    sizes: &'static [usize],
    window: u64,
}

impl Publisher {
    fn new(
        broker: &Broker,
        exchange: &'static str,
        queues: &'static [usize],
        sizes: &'static [usize],
    ) -> Self {
        let mut wire = broker.channel();
        wire.select_confirms(1);
        Publisher { wire, exchange, queues, sizes, window: WINDOW }
    }

    /// Few messages, spread over many segments.
    fn one_by_one(self) -> Publisher {
        Publisher { window: 1, ..self }
    }

    /// Publishes until the broker is gone.
    fn run(mut self, book: &Book) {
        let (mut sent, mut confirmed): (Vec<u64>, u64) = (Vec::new(), 0);
        let key = if self.exchange.is_empty() { QUEUES[self.queues[0]] } else { "" };
        loop {
            while (sent.len() as u64) < confirmed + self.window {
                let message = book.next.fetch_add(1, Ordering::Relaxed);
                let body = body(message, self.sizes[message as usize % self.sizes.len()]);
                let properties = Properties::persistent();
                sent.push(message);
                let frames = publish_frames(131_072, 1, self.exchange, key, false, &properties, &body);
                if !self.wire.try_send(&frames) {
                    break;
                }
            }
            match self.wire.event() {
                Event::Ack(1, tag, multiple) => {
                    let from = if multiple { confirmed + 1 } else { tag };
                    for tag in from..=tag {
                        book.note(self.queues, sent[tag as usize - 1], |fate| fate.confirmed = true);
                    }
                    confirmed = confirmed.max(tag);
                }
                // connection.blocked: confirms come in time.
                Event::Method(0, (10, 60 | 61), _) => {}
                Event::End => return,
                other => panic!("a publisher got {other:?}"),
            }
        }
    }
}

struct Consumer {
    wire: Wire,
    queue: usize,
    /// Acked, and not known to be settled.
    acked: Vec<u64>,
    /// How many of these the question that is under way covers.
    asked: Option<usize>,
}

impl Consumer {
    fn new(broker: &Broker, queue: usize) -> Consumer {
        let mut wire = broker.channel();
        wire.qos(1, PREFETCH, false);
        wire.consume(1, QUEUES[queue], "t", false);
        Consumer { wire, queue, acked: Vec::new(), asked: None }
    }

    /// Consumes and acks until the broker is gone.
    fn run(mut self, book: &Book) {
        let (mut count, mut last) = (0, None);
        loop {
            match self.wire.event() {
                Event::Deliver(delivery) => {
                    let message = number(&delivery.body);
                    book.seen(self.queue, message, delivery.redelivered);
                    // One publisher uses the default exchange, and numbers its messages upwards.
                    if !delivery.redelivered && delivery.exchange.is_empty() {
                        assert!(last < Some(message), "{message} after {last:?} in {}", QUEUES[self.queue]);
                        last = Some(message);
                    }
                    count += 1;
                    // Some are kept, so that there is always something unacked.
                    if count % 7 != 0 {
                        self.ack(book, delivery.tag, message);
                    }
                }
                Event::Method(1, (50, 11), _) => {
                    let asked = self.asked.take().expect("an answer to a question");
                    for message in self.acked.drain(..asked) {
                        book.note(&[self.queue], message, |fate| fate.settled = true);
                    }
                }
                Event::End => return,
                other => panic!("a consumer got {other:?}"),
            }
        }
    }

    /// A broker that is gone is noticed by reading.
    fn ack(&mut self, book: &Book, tag: u64, message: u64) {
        book.note(&[self.queue], message, |fate| fate.acked = true);
        self.acked.push(message);
        self.wire.try_send(&method_frame(1, &Method::new(60, 80).longlong(tag).octet(0)));
        if self.acked.len() >= 20 && self.asked.is_none() {
            self.asked = Some(self.acked.len());
            // A passive declare asks the queue's owner, behind the acks.
            let ask =
                Method::new(50, 10).short(0).shortstr(QUEUES[self.queue]).octet(1).table(&Arguments::new());
            self.wire.try_send(&method_frame(1, &ask));
        }
    }
}

fn declare(wire: &mut Wire) {
    let durable_exchange =
        Method::new(40, 10).short(0).shortstr(FANOUT).shortstr("fanout").octet(2).table(&Arguments::new());
    wire.call(1, durable_exchange);
    for queue in QUEUES {
        wire.declare(1, queue);
        if queue != COLD {
            wire.bind(1, queue, FANOUT, "", &Arguments::new());
        }
    }
}

/// One life: clients at work, and a kill in the middle of it.
fn life(broker: Broker, book: &Book, ms: u64, publishers: impl Fn(&Broker) -> Vec<Publisher>) -> DataDir {
    let publishers = publishers(&broker);
    let consumers = [0, 0, 1, 2].map(|queue| Consumer::new(&broker, queue));
    thread::scope(|scope| {
        publishers.into_iter().for_each(|publisher| drop(scope.spawn(move || publisher.run(book))));
        consumers.into_iter().for_each(|consumer| drop(scope.spawn(move || consumer.run(book))));
        thread::sleep(Duration::from_millis(ms));
        broker.kill_now();
    });
    broker.kill()
}

/// Drains all queues and sees that the book balances.
fn balance(broker: &Broker, book: Book) {
    let mut wire = broker.channel();
    for (queue, name) in QUEUES.into_iter().enumerate() {
        let (ready, consumers) = wire.look(1, name);
        assert_eq!(consumers, 0);
        let rest = wire.drain(1, name);
        assert_eq!(ready as usize, rest.len(), "{name}: the count against what is there");
        for delivery in rest {
            book.seen(queue, number(&delivery.body), delivery.redelivered);
        }
    }
    let fates = book.fates.into_inner().expect("no client has panicked");
    let lost: Vec<_> = fates.iter().filter(|(_, fate)| fate.confirmed && !fate.seen).collect();
    assert!(lost.is_empty(), "{} confirmed messages are lost, the first {:?}", lost.len(), lost[0].0);
    let confirmed = fates.values().filter(|fate| fate.confirmed).count();
    let settled = fates.values().filter(|fate| fate.settled).count();
    println!("{} published, {confirmed} confirmed, {settled} known to be settled", fates.len());
    assert!(confirmed > 1000, "hardly anything happened");
}

/// Lives of a broker with these publishers, with a balance after every tenth; `after_life` sees what each life
/// leaves behind. False if the broker under test is not ours to kill.
fn lives(
    setup: impl Fn() -> Setup,
    publishers: impl Fn(&Broker) -> Vec<Publisher>,
    after_life: impl Fn(&DataDir),
) -> bool {
    const LIVES_PER_BOOK: u64 = 10;
    let lives: u64 = std::env::var("LEPUS_CRASH_LIVES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let Some(mut broker) = Broker::own(setup()) else { return false };
    declare(&mut broker.channel());
    let mut book = Book::default();
    for life_number in 1..=lives {
        // From hardly started to well under way.
        let data = life(broker, &book, 1 + (life_number * 137) % 700, &publishers);
        after_life(&data);
        broker = setup().start_in(data);
        if life_number % LIVES_PER_BOOK == 0 || life_number == lives {
            let next = AtomicU64::new(book.next.load(Ordering::Relaxed));
            let done = std::mem::replace(&mut book, Book { next, ..Book::default() });
            balance(&broker, done);
        }
    }
    broker.stop();
    true
}

#[test]
fn nothing_confirmed_is_lost_and_nothing_acked_comes_back_however_often_it_is_killed() {
    let publishers = |broker: &Broker| {
        vec![
            Publisher::new(broker, "", &[0], &[10, 3_000, 100, 20_000]),
            Publisher::new(broker, FANOUT, &[0, 1, 2], &[10, 500, 40_000]),
            Publisher::new(broker, "", &[1], &[100, 100, 300_000, 5 << 20]),
        ]
    };
    lives(Setup::new, publishers, |_| {});
}

/// Messages that stay lie between such that go, so that segments are emptied into new ones all the time.
#[test]
fn nor_is_it_when_it_is_killed_while_sparse_segments_are_compacted() {
    let publishers = |broker: &Broker| {
        vec![
            Publisher::new(broker, "", &[3], &[100, 2_000]).one_by_one(),
            Publisher::new(broker, "", &[0], &[20_000]),
            Publisher::new(broker, FANOUT, &[0, 1, 2], &[10_000, 40_000]),
        ]
    };
    let moved = AtomicU64::new(0);
    let count = |data: &DataDir| {
        moved.fetch_add(moved_messages(data), Ordering::Relaxed);
    };
    if lives(|| Setup::new().set("segment_mib=1"), publishers, count) {
        println!("{moved:?} messages were found moved");
        assert!(moved.into_inner() > 0, "nothing was compacted");
    }
}

/// Live messages that lie behind younger ones: compaction has appended them again.
fn moved_messages(data: &DataDir) -> u64 {
    let shards = (0..).map(|shard| (shard, data.path().join(format!("shard-{shard}"))));
    let shards = shards.take_while(|(_, directory)| directory.exists());
    let moved = shards.map(|(shard, directory)| {
        let files = DirectoryFiles { directory: &directory, summaries: true };
        let segments = list_segments(&directory).expect("it can be read");
        let recovered =
            recover(shard, &segments, &files).expect("a killed broker leaves a log that can be read");
        let (mut places, mut lowest, mut moved) = (Vec::new(), u64::MAX, 0);
        recovered.each_live(&files, |message| places.push(message.segment)).expect("nobody writes");
        for segment in places.into_iter().rev() {
            moved += u64::from(segment > lowest);
            lowest = lowest.min(segment);
        }
        moved
    });
    moved.sum()
}
