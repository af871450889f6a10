//! Transactions as clients see them, and as a killed broker leaves them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use lepus_storage::log::{DirectoryFiles, list_segments, recover};
use lepus_tests::process::DataDir;
use lepus_tests::wire::{Close, method_frame, publish_frames};
use lepus_tests::{Arguments, Broker, Event, Method, Properties, Setup, Wire};

fn select(wire: &mut Wire) {
    wire.call(1, Method::new(90, 10));
}

fn commit(wire: &mut Wire) {
    wire.call(1, Method::new(90, 20));
}

fn roll_back(wire: &mut Wire) {
    wire.call(1, Method::new(90, 30));
}

fn bodies(wire: &mut Wire, queue: &str) -> Vec<String> {
    wire.drain(1, queue).iter().map(|got| String::from_utf8_lossy(&got.body).into_owned()).collect()
}

/// Durable queues; declared one after another, they are on both shards by turns.
fn queues<const N: usize>(broker: &Broker, wire: &mut Wire) -> [String; N] {
    std::array::from_fn(|_| {
        let name = broker.name("tx");
        wire.declare(1, &name);
        name
    })
}

#[test]
fn transactions_and_confirms_exclude_each_other_and_need_their_select() {
    let broker = Broker::start();
    let (tx, confirm) = (Method::new(90, 10), Method::new(85, 10).bits(&[false]));
    let not = "PRECONDITION_FAILED - channel is not transactional";
    for (before, method, text, ids) in [
        (Some(&confirm), tx.clone(), "PRECONDITION_FAILED - cannot switch from confirm to tx mode", (90, 10)),
        (Some(&tx), confirm.clone(), "PRECONDITION_FAILED - cannot switch from tx to confirm mode", (85, 10)),
        (None, Method::new(90, 20), not, (90, 20)),
        (None, Method::new(90, 30), not, (90, 30)),
        (Some(&confirm), Method::new(90, 20), not, (90, 20)),
    ] {
        let mut wire = broker.channel();
        if let Some(before) = before {
            wire.call(1, before.clone());
        }
        wire.send_method(1, &method);
        assert_eq!(wire.closed(), Close { channel: 1, code: 406, text: text.to_owned(), ids });
        // The connection lives, and the channel can begin anew.
        wire.close_ok(1);
        wire.open(1);
        select(&mut wire);
        select(&mut wire);
        commit(&mut wire);
        roll_back(&mut wire);
        wire.close();
    }
}

#[test]
fn what_is_published_is_there_with_the_commit_and_not_with_a_rollback() {
    let broker = Broker::start();
    let (mut wire, mut other) = (broker.channel(), broker.channel());
    let [a, b] = queues(&broker, &mut wire);
    select(&mut wire);
    wire.publish(1, "", &a, b"never");
    roll_back(&mut wire);
    for body in ["0", "1"] {
        wire.publish_as(1, "", &a, false, &Properties::persistent(), body.as_bytes());
        wire.publish(1, "", &b, body.as_bytes());
    }
    wire.round_trip(1);
    assert_eq!((other.look(1, &a).0, other.look(1, &b).0), (0, 0));
    assert_eq!(wire.get(1, &a, true), None, "nor for the channel itself");
    commit(&mut wire);
    for queue in [a, b] {
        assert_eq!(bodies(&mut other, &queue), ["0", "1"]);
    }
}

#[test]
fn what_is_settled_is_unacked_until_the_commit_and_after_a_rollback() {
    let broker = Broker::start();
    let (mut wire, mut other) = (broker.channel(), broker.channel());
    let [queue] = queues(&broker, &mut wire);
    for body in ["0", "1", "2", "3"] {
        wire.publish(1, "", &queue, body.as_bytes());
    }
    select(&mut wire);
    for tag in 1..=4 {
        assert_eq!(wire.get(1, &queue, false).map(|got| got.tag), Some(tag));
    }
    wire.ack(1, 2, true);
    wire.nack(1, 3, false, true);
    wire.reject(1, 4, false);
    wire.round_trip(1);
    assert_eq!(other.look(1, &queue).0, 0, "requeued by nobody");
    roll_back(&mut wire);
    assert_eq!(other.look(1, &queue).0, 0, "a rollback requeues nothing");
    // The tags are as good as before.
    wire.ack(1, 1, false);
    wire.nack(1, 4, true, true);
    commit(&mut wire);
    assert_eq!(bodies(&mut other, &queue), ["1", "2", "3"]);
    wire.ack(1, 2, false);
    let text = "PRECONDITION_FAILED - unknown delivery tag 2".to_owned();
    assert_eq!(wire.closed(), Close { channel: 1, code: 406, text, ids: (60, 80) });
}

#[test]
fn a_channel_that_ends_leaves_nothing_of_what_it_had_not_committed() {
    let broker = Broker::start();
    let mut other = broker.channel();
    let [queue] = queues(&broker, &mut other);
    for lost in [false, true] {
        other.publish(1, "", &queue, b"m");
        other.round_trip(1);
        let mut wire = broker.channel();
        select(&mut wire);
        let got = loop {
            if let Some(got) = wire.get(1, &queue, false) {
                break got;
            }
        };
        wire.ack(1, got.tag, false);
        wire.publish(1, "", &queue, b"never");
        match lost {
            true => wire.vanish(),
            false => wire.close_channel(1),
        }
        let again = loop {
            if let Some(got) = other.get(1, &queue, true) {
                break got;
            }
        };
        assert_eq!((again.body.as_slice(), again.redelivered), (&b"m"[..], true));
        assert_eq!(other.get(1, &queue, true), None);
    }
}

#[test]
fn what_nobody_takes_comes_back_with_the_commit() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    select(&mut wire);
    wire.publish_as(1, "", "nowhere", true, &Properties::none(), b"rolled back");
    roll_back(&mut wire);
    wire.publish_as(1, "", "nowhere", true, &Properties::none(), b"m");
    wire.round_trip(1);
    assert!(!wire.returned(), "before the commit");
    wire.send_method(1, &Method::new(90, 20));
    match wire.event() {
        Event::Return(got) => {
            assert_eq!((got.reply, got.body), (Some((312, "NO_ROUTE".to_owned())), b"m".to_vec()));
        }
        other => panic!("the return comes first, not {other:?}"),
    }
    wire.expect(1, (90, 21));
    wire.publish(1, "there is none", "k", b"m");
    assert_eq!(
        (wire.closed().code, wire.returned()),
        (404, false),
        "an unknown exchange is an error at once"
    );
}

#[test]
fn a_full_queue_that_rejects_refuses_the_commit() {
    let broker = Broker::start();
    let (mut wire, mut other) = (broker.channel(), broker.channel());
    let [open] = queues(&broker, &mut wire);
    let full = broker.name("full");
    let arguments = Arguments::new().int("x-max-length", 1).text("x-overflow", "reject-publish");
    wire.declare_as(1, &full, [false, true, false, false, false], &arguments);
    select(&mut wire);
    for body in ["0", "1"] {
        wire.publish(1, "", &open, body.as_bytes());
        wire.publish(1, "", &full, body.as_bytes());
    }
    wire.send_method(1, &Method::new(90, 20));
    let close = wire.closed();
    assert_eq!((close.channel, close.code, close.ids), (1, 406, (90, 20)));
    if broker.is_lepus() {
        // RabbitMQ has committed what it could.
        assert_eq!((other.look(1, &open).0, other.look(1, &full).0), (0, 0));
    }
}

#[test]
fn frames_behind_a_commit_wait_for_it() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let [a, b] = queues(&broker, &mut wire);
    select(&mut wire);
    let mut bytes = Vec::new();
    for round in 0..50 {
        for queue in [&a, &b] {
            let body = round.to_string();
            bytes.extend(publish_frames(
                4096,
                1,
                "",
                queue,
                false,
                &Properties::persistent(),
                body.as_bytes(),
            ));
        }
        bytes.extend(method_frame(1, &Method::new(90, 20)));
    }
    bytes.extend(method_frame(1, &Method::new(60, 70).short(0).shortstr(&b).bits(&[true])));
    wire.send(&bytes);
    for _ in 0..50 {
        wire.expect(1, (90, 21));
    }
    match wire.event() {
        Event::GetOk(got) => assert_eq!((got.body.as_slice(), got.left), (&b"0"[..], 49)),
        other => panic!("{other:?}"),
    }
    let rounds: Vec<String> = (0..50).map(|round| round.to_string()).collect();
    assert_eq!(bodies(&mut wire, &a), rounds);
}

#[test]
fn lapin_commits_and_rolls_back() {
    let broker = Broker::start();
    let name = broker.name("lapin");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let url = broker.url();
    runtime.block_on(async {
        let connection = Connection::connect(&url, ConnectionProperties::default());
        let channel = connection.await.expect("lapin connects").create_channel().await.expect("a channel");
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await.expect("declared");
        channel.tx_select().await.expect("transactions");
        for body in ["rolled back", "committed"] {
            let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
            let queue = name.as_str().into();
            let sent = channel.basic_publish("".into(), queue, options, body.as_bytes(), properties).await;
            drop(sent.expect("sent"));
            match body {
                "committed" => channel.tx_commit().await.expect("committed"),
                _ => channel.tx_rollback().await.expect("rolled back"),
            }
        }
    });
    assert_eq!(bodies(&mut broker.channel(), &name), ["committed"]);
}

/// Queues between which tokens move; they are on both shards.
const PLACES: [&str; 4] = ["tx.a", "tx.b", "tx.c", "tx.d"];
const TOKENS: u64 = 100;
const WORKERS: usize = 6;

/// How often each token is known to have moved.
type Book = Mutex<HashMap<u64, u64>>;

fn token(body: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().expect("two numbers"));
    (number(0), number(8))
}

/// Takes tokens and puts them elsewhere, each time in one transaction, until the broker is gone.
fn move_tokens(mut wire: Wire, book: &Book, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let next = |wire: &mut Wire, frames: &[u8]| {
        wire.try_send(frames);
        Some(wire.event()).filter(|event| *event != Event::End)
    };
    loop {
        let [from, to, copy] = std::array::from_fn(|_| PLACES[random.usize(..PLACES.len())]);
        let get = Method::new(60, 70).short(0).shortstr(from).bits(&[false]);
        let got = match next(&mut wire, &method_frame(1, &get)) {
            Some(Event::GetOk(got)) => got,
            Some(Event::Method(1, (60, 72), _)) => continue,
            None => return,
            other => panic!("an answer to get: {other:?}"),
        };
        let (token, moves) = token(&got.body);
        let moved = [token.to_be_bytes(), (moves + 1).to_be_bytes()].concat();
        let rolled_back = random.u8(..6) == 0;
        let mut frames = Vec::new();
        // A transient message elsewhere makes no difference.
        for (queue, properties, body) in
            [(to, Properties::persistent(), &moved[..]), (copy, Properties::none(), &b"transient"[..])]
        {
            let queue = if body.len() < 16 { format!("{queue}.transient") } else { queue.to_owned() };
            frames.extend(publish_frames(4096, 1, "", &queue, false, &properties, body));
        }
        frames.extend(method_frame(1, &Method::new(60, 80).longlong(got.tag).bits(&[false])));
        if rolled_back {
            frames.extend(method_frame(1, &Method::new(90, 30)));
            frames.extend(method_frame(1, &Method::new(60, 90).longlong(got.tag).bits(&[true])));
        }
        frames.extend(method_frame(1, &Method::new(90, 20)));
        if rolled_back {
            match next(&mut wire, &frames) {
                Some(Event::Method(1, (90, 31), _)) => frames.clear(),
                None => return,
                other => panic!("an answer to rollback: {other:?}"),
            }
        }
        match next(&mut wire, &frames) {
            Some(Event::Method(1, (90, 21), _)) => {}
            None => return,
            other => panic!("an answer to commit: {other:?}"),
        }
        if !rolled_back {
            book.lock().expect("no worker panics with the book in hand").insert(token, moves + 1);
        }
    }
}

/// Every token is in one place, and has moved at least as often as was answered.
fn check_tokens(broker: &Broker, book: &Book) {
    let mut wire = broker.channel();
    let mut found = HashMap::new();
    for queue in PLACES {
        let count = wire.look(1, queue).0;
        let got: Vec<_> = (0..count).map(|_| wire.get(1, queue, false).expect("it was counted")).collect();
        for got in got {
            let (token, moves) = token(&got.body);
            assert_eq!(found.insert(token, moves), None, "token {token} is in two places");
        }
        assert_eq!(wire.get(1, queue, false), None, "{queue}");
    }
    assert_eq!(found.len() as u64, TOKENS, "tokens are lost");
    let book = book.lock().expect("no worker has panicked");
    for (token, moves) in book.iter() {
        assert!(
            found[token] >= *moves,
            "token {token} has moved {moves} times, and is back at {}",
            found[token]
        );
    }
}

/// Groups of transactions that a killed broker has left prepared, and decisions: the next start ends them.
fn left_open(data: &DataDir) -> (usize, usize) {
    let shards = (0..).map(|shard| (shard, data.path().join(format!("shard-{shard}"))));
    let shards = shards.take_while(|(_, directory)| directory.exists());
    let left = shards.map(|(shard, directory)| {
        let files = DirectoryFiles { directory: &directory, summaries: true };
        let segments = list_segments(&directory).expect("it can be read");
        let recovered =
            recover(shard, &segments, &files).expect("a killed broker leaves a log that can be read");
        (recovered.undecided().count(), recovered.decisions().count())
    });
    left.fold((0, 0), |sum, left| (sum.0 + left.0, sum.1 + left.1))
}

/// `LEPUS_CRASH_LIVES` sets how often (10 by default).
#[test]
fn a_token_that_moves_by_transactions_is_in_one_place_however_often_the_broker_is_killed() {
    let setup = || Setup::new().set("segment_mib=1");
    let Some(mut broker) = Broker::own(setup()) else { return };
    let mut wire = broker.channel();
    for queue in PLACES {
        wire.declare(1, queue);
        wire.declare_as(1, &format!("{queue}.transient"), [false, true, false, false, false], &{
            Arguments::new().int("x-max-length", 10)
        });
    }
    select(&mut wire);
    for token in 0..TOKENS {
        let body = [token.to_be_bytes(), 0u64.to_be_bytes()].concat();
        wire.publish_as(1, "", PLACES[token as usize % 4], false, &Properties::persistent(), &body);
    }
    commit(&mut wire);
    let lives: u64 = std::env::var("LEPUS_CRASH_LIVES").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let (book, mut left) = (Book::default(), (0, 0));
    for life in 1..=lives {
        let data: DataDir = thread::scope(|scope| {
            let book = &book;
            for worker in 0..WORKERS {
                let mut wire = broker.channel();
                select(&mut wire);
                let seed = life * 100 + worker as u64;
                scope.spawn(move || move_tokens(wire, book, seed));
            }
            // From hardly started to well under way.
            thread::sleep(Duration::from_millis(1 + (life * 137) % 700));
            broker.kill_now();
            broker.kill()
        });
        let (undecided, decisions) = left_open(&data);
        left = (left.0 + undecided, left.1 + decisions);
        broker = setup().start_in(data);
        check_tokens(&broker, &book);
    }
    let moves: u64 = book.into_inner().expect("no worker has panicked").values().sum();
    println!("{moves} moves; {} prepared groups and {} decisions were found", left.0, left.1);
    assert!(moves > 20, "hardly anything happened");
    assert!(left.0 > 0 || lives < 10, "no kill came between the two phases of a commit");
}
