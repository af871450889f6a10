//! The main promise: everybody competes for one queue, consumers vanish in the middle of it, and each message is
//! settled exactly once.
//!
//! Four lapin producers with confirms; four consumers that drop their socket at random with messages unacked;
//! two pollers with `basic.get`, one of them lapin. Their connections are spread over all shards.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lapin::options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use lepus_tests::limits::competing_messages;
use lepus_tests::{Broker, Delivery, Wire};

const PRODUCERS: usize = 4;
const CONSUMERS: usize = 4;
const PREFETCH: u16 = 100;
/// Publishes of one producer that are not yet confirmed.
const WINDOW: usize = 500;
/// A run without any settlement for this long hangs.
const STALL: Duration = Duration::from_secs(60);
/// A consumer that gets nothing for this long holds nothing back.
const LULL: Duration = Duration::from_millis(50);
const END: &[u8] = b"end";

/// What the test knows of each message.
#[derive(Clone, Copy, Default)]
struct Known {
    seen: bool,
    /// Acked on a connection that heard a later answer: never to be seen again.
    settled: bool,
    /// Acked on a connection that was dropped at once: the ack may have been lost with it.
    maybe: bool,
}

struct Book {
    messages: Mutex<Vec<Known>>,
    done: AtomicUsize,
    over: AtomicBool,
}

impl Book {
    fn new(count: usize) -> Book {
        Book {
            messages: Mutex::new(vec![Known::default(); count]),
            done: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        }
    }

    fn seen(&self, message: usize, redelivered: bool) {
        let known = &mut self.messages.lock().expect("no panic")[message];
        assert!(!known.settled, "message {message} was delivered after it was settled");
        assert!(!known.seen || redelivered, "message {message} was seen twice without redelivered");
        known.seen = true;
    }

    fn settled(&self, messages: impl IntoIterator<Item = usize>, certain: bool) {
        let mut all = self.messages.lock().expect("no panic");
        for message in messages {
            let known = &mut all[message];
            assert!(known.seen && !known.settled, "message {message} was settled twice");
            if !known.maybe {
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            known.settled = certain;
            known.maybe = true;
        }
    }

    fn is_complete(&self) -> bool {
        self.done.load(Ordering::Relaxed) == self.messages.lock().expect("no panic").len()
    }
}

fn number(delivery: &Delivery) -> usize {
    std::str::from_utf8(&delivery.body).ok().and_then(|text| text.parse().ok()).expect("the body is a number")
}

#[test]
fn everybody_competes_and_each_message_is_settled_exactly_once() {
    let broker = Broker::start();
    let total = competing_messages();
    let book = Book::new(total);
    let queue = broker.name("compete");
    let mut wire = broker.channel();
    wire.declare(1, &queue);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let url = broker.url();
    thread::scope(|scope| {
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|seed| {
                scope.spawn({
                    let (broker, queue, book) = (&broker, &queue, &book);
                    move || consume(broker, queue, book, seed as u64)
                })
            })
            .collect();
        let poller = scope.spawn(|| poll(&broker, &queue, &book));
        let lapin = scope.spawn(|| {
            runtime.block_on(async {
                let share = total.div_ceil(PRODUCERS);
                let producers =
                    (0..PRODUCERS).map(|at| (at * share).min(total)..((at + 1) * share).min(total));
                let producers: Vec<_> = producers
                    .map(|numbers| tokio::spawn(produce(url.clone(), queue.clone(), numbers)))
                    .collect();
                poll_with_lapin(&url, &queue, &book).await;
                for producer in producers {
                    producer.await.expect("the producer is served");
                }
            });
        });
        // Also when an assertion ends this: the pollers look at it.
        let over = OverWhenDropped(&book.over);
        wait_for_all(&book);
        drop(over);
        poller.join().expect("the poller is served");
        lapin.join().expect("lapin is served");
        // An end for each consumer, now that nobody else takes any.
        for _ in 0..CONSUMERS {
            wire.publish(1, "", &queue, END);
        }
        let vanished: usize =
            consumers.into_iter().map(|consumer| consumer.join().expect("the consumer is served")).sum();
        assert!(vanished >= CONSUMERS, "only {vanished} connections were dropped");
    });
    // What is left can only be what was acked on a connection that was dropped at once.
    let messages = book.messages.into_inner().expect("no panic");
    for delivery in wire.drain(1, &queue) {
        if delivery.body != END {
            let message = number(&delivery);
            assert!(!messages[message].settled && delivery.redelivered, "message {message} is still there");
        }
    }
    assert!(messages.iter().all(|known| known.seen && (known.settled || known.maybe)), "a message was lost");
}

struct OverWhenDropped<'a>(&'a AtomicBool);

impl Drop for OverWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits as long as there is progress.
fn wait_for_all(book: &Book) {
    let (mut last, mut since) = (0, Instant::now());
    while !book.is_complete() {
        thread::sleep(Duration::from_millis(20));
        let now = book.done.load(Ordering::Relaxed);
        if now > last {
            (last, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < STALL, "nothing was settled for {STALL:?}; {last} were before");
    }
}

/// Consumes over many connections, each dropped with messages unacked. Says how many were.
fn consume(broker: &Broker, queue: &str, book: &Book, seed: u64) -> usize {
    let mut random = fastrand::Rng::with_seed(0xACE + seed);
    for vanished in 0.. {
        let mut wire = broker.channel();
        wire.qos(1, PREFETCH, false);
        wire.consume(1, queue, "t", false);
        let (mut held, mut acked) = (Vec::new(), Vec::new());
        for _ in 0..random.usize(200..4000) {
            let delivery = wire.delivery_within(LULL);
            let is_end = delivery.as_ref().is_some_and(|delivery| delivery.body == END);
            let Some(delivery) = delivery.filter(|_| !is_end) else {
                // Nothing more may come while this consumer holds what is left: it lets go of all.
                wire.ack(1, 0, true);
                acked.extend(held.drain(..).map(|(_, message)| message));
                settle(&mut wire, book, &mut acked);
                if is_end {
                    wire.close();
                    return vanished;
                }
                continue;
            };
            let message = number(&delivery);
            book.seen(message, delivery.redelivered);
            held.push((delivery.tag, message));
            // Acks in any order, some held back for long.
            while held.len() > random.usize(1..usize::from(PREFETCH)) {
                let (tag, message) = held.swap_remove(random.usize(..held.len()));
                wire.ack(1, tag, false);
                acked.push(message);
            }
            if acked.len() > 300 {
                settle(&mut wire, book, &mut acked);
            }
        }
        if random.bool() {
            settle(&mut wire, book, &mut acked);
        } else {
            book.settled(acked.drain(..), false);
        }
        wire.vanish();
    }
    unreachable!("the loop has no end of its own")
}

/// After an answer that came behind the acks, they have been taken.
fn settle(wire: &mut Wire, book: &Book, acked: &mut Vec<usize>) {
    wire.round_trip(1);
    book.settled(acked.drain(..), true);
}

fn poll(broker: &Broker, queue: &str, book: &Book) {
    let mut wire = broker.channel();
    while !book.over.load(Ordering::Acquire) {
        if let Some(delivery) = wire.get(1, queue, false) {
            book.seen(number(&delivery), delivery.redelivered);
            wire.ack(1, delivery.tag, false);
            book.settled([number(&delivery)], true);
        }
    }
    wire.close();
}

async fn connect(url: &str) -> (Connection, lapin::Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("lapin connects");
    let channel = connection.create_channel().await.expect("lapin opens a channel");
    (connection, channel)
}

async fn poll_with_lapin(url: &str, queue: &str, book: &Book) {
    let (connection, channel) = connect(url).await;
    while !book.over.load(Ordering::Acquire) {
        let got = channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("get is answered");
        if let Some(got) = got {
            let message = std::str::from_utf8(&got.delivery.data).ok().and_then(|text| text.parse().ok());
            let message = message.expect("the body is a number");
            book.seen(message, got.delivery.redelivered);
            got.delivery.acker.ack(BasicAckOptions::default()).await.expect("ack is sent");
            book.settled([message], true);
        }
    }
    connection.close(200, "OK".into()).await.expect("lapin closes");
}

async fn produce(url: String, queue: String, numbers: std::ops::Range<usize>) {
    let (connection, channel) = connect(&url).await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms are on");
    let mut window = std::collections::VecDeque::with_capacity(WINDOW);
    for number in numbers {
        if window.len() == WINDOW {
            confirm(window.pop_front()).await;
        }
        let body = number.to_string();
        let sent = channel.basic_publish(
            "".into(),
            queue.as_str().into(),
            BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() },
            body.as_bytes(),
            BasicProperties::default(),
        );
        window.push_back(sent.await.expect("publish is sent"));
    }
    while !window.is_empty() {
        confirm(window.pop_front()).await;
    }
    connection.close(200, "OK".into()).await.expect("lapin closes");
}

async fn confirm(confirm: Option<impl Future<Output = lapin::Result<lapin::Confirmation>>>) {
    let confirmation = confirm.expect("the window is not empty").await.expect("the broker confirms");
    assert!(confirmation.is_ack(), "{confirmation:?}");
    assert!(confirmation.take_message().is_none(), "a routed message was returned");
}
