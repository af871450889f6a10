//! Messages that end at times of their own, all mixed up in one queue: none is missing, none comes twice, and no
//! earlier one is overtaken by a later one that lives as long. How late they are is shown by
//! [`how_late_messages_expire`] and [`how_late_delayed_messages_go_on`], which are run by hand:
//!
//! ```sh
//! cargo test --release -p lepus-tests --test broker how_late -- --ignored --nocapture --test-threads 1
//! ```
//!
//! `LEPUS_EXPIRING_MESSAGES` says how many (a million), `LEPUS_EXPIRING_BESIDE` how many more lie in the queue that do
//! not expire, `LEPUS_EXPIRING_MS` up to when they live (60 s), `LEPUS_EXPIRING_PER_S` how many are published a
//! second, and `LEPUS_EXPIRING_PERSISTENT=1` that they are in the log.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use lepus_tests::limits::number;
use lepus_tests::wire::{exchange_declare, publish_frames};
use lepus_tests::{Arguments, Broker, Properties, Setup, Wire, os};

const DURABLE: [bool; 5] = [false, true, false, false, false];
/// Messages that are sent at once.
const BURST: usize = 200;

/// A queue whose expired messages go to another one, from which somebody consumes.
fn expiring(broker: &Broker) -> (Wire, Wire) {
    let mut wire = broker.channel();
    let arguments =
        Arguments::new().text("x-dead-letter-exchange", "").text("x-dead-letter-routing-key", "ended");
    wire.declare_as(1, "lives", DURABLE, &arguments);
    wire.declare(1, "ended");
    wire.select_confirms(1);
    let mut ended = broker.channel();
    ended.consume(1, "ended", "t", true);
    (wire, ended)
}

/// Delivery mode, and an expiration if there is one.
fn living(ms: Option<u64>, persistent: bool) -> Properties {
    let mode = if persistent { 2 } else { 1 };
    let Some(ms) = ms else { return Properties(vec![0x10, 0, mode]) };
    let text = ms.to_string();
    let mut properties = vec![0x11, 0, mode, text.len() as u8];
    properties.extend(text.as_bytes());
    Properties(properties)
}

/// The first number in a body.
fn first(body: &[u8]) -> u64 {
    u64::from_be_bytes(body[..8].try_into().expect("bodies begin with a number"))
}

#[test]
fn messages_with_times_of_their_own_all_end_once_and_none_overtakes_an_earlier_one_that_ends_before_it() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let count = 4_000u64;
    let mut random = fastrand::Rng::with_seed(7);
    let (mut wire, mut ended) = expiring(&broker);
    let lives: Vec<u64> = (0..count).map(|_| random.u64(1..=1_500)).collect();
    for (message, &ms) in (0u64..).zip(&lives) {
        let properties = living(Some(ms), message % 2 == 0);
        wire.publish_as(1, "", "lives", false, &properties, &message.to_be_bytes());
        // Between them lie some that stay.
        wire.publish_as(1, "", "lives", false, &living(None, message % 2 == 1), b"stays");
    }
    wire.confirmed(2 * count);
    let order: Vec<u64> = ended.deliveries(count as usize).iter().map(|got| first(&got.body)).collect();
    // Of those that have not come, by their time: the earliest one published.
    let mut missing: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (message, &ms) in lives.iter().enumerate().rev() {
        missing.entry(ms).or_default().push(message as u64);
    }
    for message in order {
        let ms = lives[message as usize];
        let same = missing.get_mut(&ms).expect("it has not come before");
        assert_eq!(same.pop(), Some(message), "those of {ms} ms come in their order, each once");
        if same.is_empty() {
            missing.remove(&ms);
        }
        // A millisecond is as exact as times are.
        let overtaken = missing
            .range(..ms.saturating_sub(1))
            .find_map(|(_, them)| them.last().filter(|&&it| it < message));
        assert_eq!(overtaken, None, "it was there before {message} and had less time");
    }
    assert!(missing.is_empty());
    assert_eq!(u64::from(wire.look(1, "lives").0), count, "what does not expire stays");
    assert_eq!(wire.look(1, "ended").0, 0);
    broker.stop();
}

/// How late messages were, in milliseconds.
struct Lateness(Vec<f64>);

impl Lateness {
    fn print(mut self, what: &str) {
        self.0.sort_unstable_by(f64::total_cmp);
        println!("{what}, in ms:");
        for share in [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0] {
            let at = ((self.0.len() - 1) as f64 * share) as usize;
            print!("  p{}: {:.2}", share * 100.0, self.0[at]);
        }
        let over = |ms: f64| self.0.len() - self.0.partition_point(|late| *late <= ms);
        println!("; over 10 ms: {}, over 20 ms: {}, over 100 ms: {}", over(10.0), over(20.0), over(100.0));
    }
}

/// When a message was sent, when its queue's owner was known to have it, and when it came back.
#[derive(Clone, Copy, Default)]
struct Times {
    life: Duration,
    sent: Duration,
    taken: Duration,
    arrived: Duration,
}

/// Publishes so many messages, evenly, each with a time from 1 ms to `up_to_ms`, while another thread consumes what
/// has ended, and says how late that was. The broker took a message in after it was sent and before its queue's
/// owner answered a question that was asked behind it: counted from the one, what was late on the way in is
/// late, too; counted from the other it is not.
fn run(
    wire: &mut Wire,
    queue: &str,
    mut ended: Wire,
    count: u64,
    up_to_ms: u64,
    publish: impl Fn(u64, &[u8]) -> Vec<u8>,
) {
    let per_s = number("LEPUS_EXPIRING_PER_S", 50_000) as u64;
    let epoch = Instant::now();
    let consumer = thread::spawn(move || {
        let arrival = |_| {
            let body = ended.patient_delivery(Duration::from_millis(up_to_ms + 60_000)).body;
            (first(&body) as usize, epoch.elapsed())
        };
        (0..count).map(arrival).collect::<Vec<_>>()
    });
    let mut random = fastrand::Rng::with_seed(3);
    let mut times = vec![Times::default(); count as usize];
    for burst in times.chunks_mut(BURST).zip(0u64..) {
        let ((burst, number), mut bytes) = (burst, Vec::new());
        let first = number * BURST as u64;
        thread::sleep(Duration::from_nanos(first * 1_000_000_000 / per_s).saturating_sub(epoch.elapsed()));
        for (message, times) in (first..).zip(&mut *burst) {
            let ms = random.u64(1..=up_to_ms);
            times.life = Duration::from_millis(ms);
            bytes.extend(publish(ms, &message.to_be_bytes()));
        }
        let sent = epoch.elapsed();
        wire.send(&bytes);
        wire.look(1, queue);
        let taken = epoch.elapsed();
        burst.iter_mut().for_each(|times| (times.sent, times.taken) = (sent, taken));
    }
    println!("{count} published in {:.1} s", epoch.elapsed().as_secs_f64());
    for (message, arrived) in consumer.join().expect("the consumer has got all") {
        times[message].arrived = arrived;
    }
    let late = |from: fn(&Times) -> Duration| {
        let late = |times: &Times| {
            times.arrived.as_secs_f64() * 1e3 - (from(times) + times.life).as_secs_f64() * 1e3
        };
        Lateness(times.iter().map(late).collect())
    };
    late(|times| times.sent).print("late since it was sent");
    late(|times| times.taken).print("late since it was taken in");
}

fn report_cpu(broker: &Broker, before: f64, count: u64) {
    let used = os::cpu_seconds(broker.pid()) - before;
    println!("  broker: {used:.2} s of CPU, {:.2} µs a message", used * 1e6 / count as f64);
    // What the shards themselves say of their turns, and of how late the executor was.
    let before = broker.log().len();
    os::signal(broker.pid(), libc::SIGUSR1);
    thread::sleep(Duration::from_millis(500));
    let log = broker.log();
    println!("{}", &log[before..]);
    let stalls: Vec<&str> = log.lines().filter(|line| line.contains("a turn took")).collect();
    println!("  {} stalls logged: {stalls:#?}", stalls.len());
}

#[test]
#[ignore = "shows figures: run it by hand on a quiet machine"]
fn how_late_messages_expire() {
    let Some(broker) = Broker::own(Setup::new().set("segment_mib=64")) else { return };
    let count = number("LEPUS_EXPIRING_MESSAGES", 1_000_000) as u64;
    let (beside, up_to_ms) = (number("LEPUS_EXPIRING_BESIDE", 0), number("LEPUS_EXPIRING_MS", 60_000));
    let persistent = number("LEPUS_EXPIRING_PERSISTENT", 0) == 1;
    let (mut wire, ended) = expiring(&broker);
    let mut stays = broker.channel();
    let properties = living(None, persistent);
    let frames = publish_frames(131_072, 1, "", "lives", false, &properties, b"sixteen bytes...");
    let many = frames.repeat(1_000);
    for _ in 0..beside / 1_000 {
        stays.send(&many);
        stays.round_trip(1);
    }
    // What the log still has to do is not to be counted.
    thread::sleep(Duration::from_secs(2));
    let before = os::cpu_seconds(broker.pid());
    let mut plain = broker.channel();
    let publish =
        |ms, body: &[u8]| publish_frames(131_072, 1, "", "lives", false, &living(Some(ms), persistent), body);
    println!("expiring beside {beside} that stay:");
    run(&mut plain, "lives", ended, count, up_to_ms as u64, publish);
    report_cpu(&broker, before, count);
    assert_eq!(wire.look(1, "lives").0 as usize, beside / 1_000 * 1_000);
    broker.stop();
}

#[test]
#[ignore = "shows figures: run it by hand on a quiet machine"]
fn how_late_delayed_messages_go_on() {
    let Some(broker) = Broker::own(Setup::new().set("segment_mib=64")) else { return };
    let count = number("LEPUS_EXPIRING_MESSAGES", 1_000_000) as u64;
    let up_to_ms = number("LEPUS_EXPIRING_MS", 60_000) as u64;
    let mode = if number("LEPUS_EXPIRING_PERSISTENT", 0) == 1 { 2 } else { 1 };
    let mut wire = broker.channel();
    let arguments = Arguments::new().text("x-delayed-type", "direct");
    wire.call(1, exchange_declare("later", "x-delayed-message", DURABLE, &arguments));
    wire.declare(1, "q");
    wire.bind(1, "q", "later", "k", &Arguments::new());
    let mut ended = broker.channel();
    ended.consume(1, "q", "t", true);
    let before = os::cpu_seconds(broker.pid());
    let publish = |ms: u64, body: &[u8]| {
        let mut properties = vec![0x30, 0];
        properties.extend(Arguments::new().int("x-delay", ms as i32).wire());
        properties.push(mode);
        publish_frames(131_072, 1, "later", "k", false, &Properties(properties), body)
    };
    run(&mut wire, "amq.delayed.later", ended, count, up_to_ms, publish);
    report_cpu(&broker, before, count);
    broker.stop();
}
