//! What survives the process, and what the files of a stopped broker say.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lepus_tests::process::{DataDir, binary};
use lepus_tests::wire::queue_declare;
use lepus_tests::{Arguments, Broker, Event, Properties, Setup, Wire};

const PERSISTENT: fn() -> Properties = Properties::persistent;

/// Publishes these numbers, persistent, and waits for the confirms.
fn publish_numbers(broker: &Broker, exchange: &str, key: &str, numbers: std::ops::Range<u64>) {
    let mut wire = broker.channel();
    wire.select_confirms(1);
    let count = numbers.end - numbers.start;
    for number in numbers {
        wire.publish_as(1, exchange, key, false, &PERSISTENT(), number.to_string().as_bytes());
    }
    wire.confirmed(count);
    wire.close();
}

fn numbers(wire: &mut Wire, queue: &str) -> Vec<u64> {
    let drained = wire.drain(1, queue);
    drained.iter().map(|got| String::from_utf8_lossy(&got.body).parse().expect("a number")).collect()
}

/// Both ends that a broker can have.
fn end(broker: Broker, kill: bool) -> DataDir {
    match kill {
        true => broker.kill(),
        false => broker.stop().expect("a broker of our own"),
    }
}

#[test]
fn persistent_messages_survive_with_their_order_their_state_and_nothing_else_does() {
    for kill in [false, true] {
        let Some(broker) = Broker::own(Setup::new()) else { return };
        let mut wire = broker.channel();
        let (queue, transient) = (broker.name("durable"), broker.name("transient"));
        wire.declare(1, &queue);
        wire.declare_as(1, &transient, [false; 5], &Arguments::new());
        publish_numbers(&broker, "", &queue, 0..100);
        publish_numbers(&broker, "", &transient, 0..5);
        wire.publish(1, "", &queue, b"not persistent");
        // Acked: gone. Held: comes back, marked. Given back: comes back in its place, marked.
        let got: Vec<_> = (0..30).map(|_| wire.get(1, &queue, false).expect("there are 100")).collect();
        for delivery in &got[..10] {
            wire.ack(1, delivery.tag, false);
        }
        wire.nack(1, got[20].tag, false, true);
        assert_eq!(wire.look(1, &queue).0, 100 + 1 - 30 + 1);
        let data = end(broker, kill);
        let broker = Setup::new().start_in(data);
        let mut wire = broker.channel();
        assert_eq!(wire.look(1, &queue), (90, 0), "kill: {kill}");
        let rest = wire.drain(1, &queue);
        let bodies: Vec<String> =
            rest.iter().map(|got| String::from_utf8_lossy(&got.body).into_owned()).collect();
        assert_eq!(bodies, (10..100).map(|number| number.to_string()).collect::<Vec<_>>());
        let marked = rest.iter().filter(|got| got.redelivered).count();
        assert!(
            rest[..20].iter().all(|got| got.redelivered) && marked == 20,
            "kill: {kill}, {marked} marked"
        );
        assert!(rest.iter().all(|got| got.properties == PERSISTENT() && got.routing_key == queue));
        wire.send_method(
            1,
            &queue_declare(&transient, [true, false, false, false, false], &Arguments::new()),
        );
        assert_eq!(wire.closed().code, 404, "a transient queue ends with the process");
    }
}

#[test]
fn what_was_settled_or_dropped_does_not_come_back() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let mut wire = broker.channel();
    // More than a shard carries off at once.
    const MANY: u64 = 2_000;
    let names: Vec<String> = ["acked", "purged", "deleted", "rejected"].map(|name| broker.name(name)).into();
    for name in &names {
        wire.declare(1, name);
        publish_numbers(&broker, "", name, 0..MANY);
    }
    let last =
        (0..MANY).map(|_| wire.get(1, &names[0], false).expect("there are so many")).last().expect("one");
    wire.ack(1, last.tag, true);
    assert_eq!(wire.purge(1, &names[1]), MANY as u32);
    assert_eq!(wire.delete_queue(1, &names[2]), MANY as u32);
    let last =
        (0..MANY).map(|_| wire.get(1, &names[3], false).expect("there are so many")).last().expect("one");
    wire.nack(1, last.tag, true, false);
    // Declared again, it is another queue.
    wire.declare(1, &names[2]);
    assert_eq!(wire.look(1, &names[0]).0, 0);
    let broker = Setup::new().start_in(broker.kill());
    let mut wire = broker.channel();
    for name in &names {
        assert_eq!(wire.look(1, name).0, 0, "{name}");
    }
}

#[test]
fn one_message_in_many_queues_is_settled_in_each_by_itself() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let mut wire = broker.channel();
    let queues: Vec<String> = (0..5).map(|_| broker.name("fanned")).collect();
    for queue in &queues {
        wire.declare(1, queue);
        wire.bind(1, queue, "amq.fanout", "", &Arguments::new());
    }
    publish_numbers(&broker, "amq.fanout", "", 0..20);
    for queue in &queues[..2] {
        assert_eq!(wire.drain(1, queue).len(), 20);
    }
    let broker = Setup::new().start_in(broker.kill());
    let mut wire = broker.channel();
    for (index, queue) in queues.iter().enumerate() {
        let expected: Vec<u64> = if index < 2 { Vec::new() } else { (0..20).collect() };
        assert_eq!(numbers(&mut wire, queue), expected);
    }
}

#[test]
fn the_number_of_shards_may_change() {
    let Some(broker) = Broker::own(Setup::new().set("shards=3")) else { return };
    let mut wire = broker.channel();
    let queues: Vec<String> = (0..6).map(|_| broker.name("moves")).collect();
    for queue in &queues {
        wire.declare(1, queue);
        wire.bind(1, queue, "amq.fanout", "", &Arguments::new());
    }
    publish_numbers(&broker, "amq.fanout", "", 0..20);
    let held = wire.get(1, &queues[2], false).expect("there are 20");
    assert!(!held.redelivered);
    let mut data = broker.kill();
    let mut end = 20;
    for shards in [1, 2, 4, 1] {
        let setup = Setup::new().set(&format!("shards={shards}"));
        let broker = setup.start_in(data);
        let mut wire = broker.channel();
        for queue in &queues {
            assert_eq!(u64::from(wire.look(1, queue).0), end, "{shards} shards");
        }
        publish_numbers(&broker, "amq.fanout", "", end..end + 5);
        end += 5;
        data = broker.kill();
    }
    let broker = Setup::new().start_in(data);
    let mut wire = broker.channel();
    let first = wire.get(1, &queues[2], true).expect("there are some");
    assert!(first.redelivered, "it was delivered before, on another shard");
    assert_eq!(numbers(&mut wire, &queues[2]), (1..end).collect::<Vec<_>>());
    for queue in queues.iter().filter(|queue| **queue != queues[2]) {
        assert_eq!(numbers(&mut wire, queue), (0..end).collect::<Vec<_>>());
    }
}

/// The properties of a persistent message that came back this often, and so often by a failure.
fn came_back(all: i64, failures: i64) -> Properties {
    let long = |value: i64| [&b"l"[..], &value.to_be_bytes()].concat();
    let mut headers = Arguments::new().field("x-acquired-count", &long(all));
    if failures > 0 {
        headers = headers.field("x-delivery-count", &long(failures));
    }
    let Properties(mut wire) = Properties::headers(&headers);
    wire[0] |= 0x10;
    wire.push(2);
    Properties(wire)
}

#[test]
fn how_often_a_message_came_back_is_kept_and_a_restart_with_it_in_hand_is_a_failure() {
    let Some(broker) = Broker::own(Setup::new().set("shards=3")) else { return };
    let mut wire = broker.channel();
    let (queue, dead) = (broker.name("counted"), broker.name("dead"));
    wire.declare(1, &dead);
    let limited = Arguments::new()
        .int("x-delivery-limit", 3)
        .text("x-dead-letter-exchange", "")
        .text("x-dead-letter-routing-key", &dead);
    wire.declare_as(1, &queue, [false, true, false, false, false], &limited);
    wire.select_confirms(1);
    for name in ["put back", "failed", "held", "untouched"] {
        wire.publish_as(1, "", &queue, false, &PERSISTENT(), name.as_bytes());
    }
    wire.confirmed(4);
    let got: Vec<_> = (0..3).map(|_| wire.get(1, &queue, false).expect("there are four")).collect();
    wire.nack(1, got[0].tag, false, true);
    wire.reject(1, got[1].tag, true);
    assert_eq!(wire.look(1, &queue).0, 3);
    let mut data = broker.kill();
    for (life, (shards, kill)) in (1..).zip([(1, true), (2, false), (4, true)]) {
        let broker = Setup::new().set(&format!("shards={shards}")).start_in(data);
        let mut wire = broker.channel();
        let untouched = if life == 1 { PERSISTENT() } else { came_back(life - 1, 0) };
        let expected = [came_back(life, 0), came_back(life, 1), came_back(life, life), untouched];
        let got: Vec<_> = (0..4).map(|_| wire.get(1, &queue, false).expect("there are four")).collect();
        let properties: Vec<_> = got.iter().map(|got| got.properties.clone()).collect();
        assert_eq!(properties, expected, "life {life}");
        assert!(wire.get(1, &queue, false).is_none());
        [0, 1, 3].into_iter().for_each(|index| wire.nack(1, got[index].tag, false, true));
        assert_eq!(wire.look(1, &queue).0, 3);
        data = end(broker, kill);
    }
    let broker = Setup::new().start_in(data);
    let mut wire = broker.channel();
    wire.consume(1, &dead, "letters", true);
    assert_eq!(wire.delivery().body, b"held", "it has failed four times");
    assert_eq!(wire.look(1, &queue), (3, 0));
}

fn check_store(directory: &Path) -> Output {
    let mut command = Command::new(binary());
    command.arg("check-store").arg(directory).stdin(Stdio::null()).output().expect("the binary runs")
}

fn segments(data: &DataDir) -> Vec<PathBuf> {
    let shards =
        fs::read_dir(data.path()).expect("the data directory").map(|entry| entry.expect("an entry").path());
    let logs = shards.filter(|path| path.is_dir());
    let files =
        logs.flat_map(|log| fs::read_dir(log).expect("a log").map(|entry| entry.expect("an entry").path()));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).collect()
}

#[test]
fn a_stopped_brokers_files_are_checked_and_damage_is_named_and_survived() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let mut wire = broker.channel();
    let queue = broker.name("checked");
    wire.declare(1, &queue);
    // A commit each.
    for number in 0..10 {
        publish_numbers(&broker, "", &queue, number..number + 1);
    }
    let held = wire.get(1, &queue, false);
    assert!(held.is_some());
    let running = check_store(broker.data_path());
    assert_eq!(running.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&running.stderr).contains("in use"), "{running:?}");
    let data = broker.kill();
    let whole = check_store(data.path());
    let text = String::from_utf8_lossy(&whole.stdout).into_owned();
    assert_eq!(whole.status.code(), Some(0), "{whole:?}");
    assert!(text.contains(&format!("queue '{queue}': 10 messages, 1 of them delivered before")), "{text}");
    assert!(text.ends_with("no damage\n"), "{text}");
    // One byte in the third commit.
    let log = segments(&data)
        .into_iter()
        .max_by_key(|path| fs::read(path).expect("a segment").iter().filter(|&&byte| byte != 0).count())
        .expect("a segment");
    let file = OpenOptions::new().read(true).write(true).open(&log).expect("a segment");
    file.write_all_at(b"?", 3 * 4096 + 60).expect("a segment is written");
    let damaged = check_store(data.path());
    let text = String::from_utf8_lossy(&damaged.stdout).into_owned();
    assert_eq!(damaged.status.code(), Some(1), "{text}");
    assert!(text.contains("DAMAGED: segment 1, offset 12288: 1 commits"), "{text}");
    let broker = Setup::new().start_in(data);
    let mut wire = broker.channel();
    assert_eq!(numbers(&mut wire, &queue), [0, 1, 3, 4, 5, 6, 7, 8, 9]);
    assert!(broker.log().contains("the log is damaged: segment 1, offset 12288"), "{}", broker.log());
}

#[test]
fn files_of_a_later_version_are_refused_and_left_alone() {
    let Some(broker) = Broker::own(Setup::new()) else { return };
    let mut wire = broker.channel();
    let queue = broker.name("later");
    wire.declare(1, &queue);
    publish_numbers(&broker, "", &queue, 0..3);
    let data = broker.kill();
    let index = segments(&data)[0].with_file_name("unacked.index");
    let before = fs::read(&index).expect("an index");
    let file = OpenOptions::new().write(true).open(&index).expect("an index");
    file.write_all_at(&[9], 8).expect("an index is written");
    let refused =
        Setup::new().command(data.path()).arg("--listen=127.0.0.1:0").output().expect("the binary runs");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("unacked.index"), "{text}");
    file.write_all_at(&before, 0).expect("an index is written");
    let broker = Setup::new().start_in(data);
    assert_eq!(numbers(&mut broker.channel(), &queue), [0, 1, 2]);
}

#[test]
fn a_commit_that_is_held_back_is_confirmed_though_nothing_else_happens() {
    let Some(broker) = Broker::own(Setup::new().set("shards=1").set("commit_delay_max_ms=30")) else {
        return;
    };
    let queue = broker.name("held");
    let mut wire = broker.channel();
    wire.declare(1, &queue);
    wire.select_confirms(1);
    for tag in 1..=5 {
        wire.publish_as(1, "", &queue, false, &PERSISTENT(), b"one at a time");
        wire.confirmed(tag);
    }
    // What is held back when the broker is asked to stop is written too.
    wire.publish_as(1, "", &queue, false, &PERSISTENT(), b"the last one");
    assert_eq!(wire.look(1, &queue).0, 6);
    let data = broker.stop().expect("it is ours");
    let broker = Setup::new().start_in(data);
    assert_eq!(broker.channel().look(1, &queue).0, 6);
}

/// A small file system of its own, for as long as the value lives. None where it cannot be mounted.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(mib: usize) -> Option<SmallDisk> {
        let path = std::env::temp_dir().join(format!("lepus-small-disk-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary directory can be written");
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| SmallDisk(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_full_disk_blocks_publishers_and_loses_nothing() {
    if std::env::var_os("LEPUS_TEST_URL").is_some() {
        return;
    }
    let Some(disk) = SmallDisk::mount(40) else {
        println!("no file system can be mounted here: not shown");
        return;
    };
    let data = DataDir::at(disk.0.join("data"));
    let setup = || Setup::new().set("shards=1").set("disk_free_limit_mib=8").set("segment_mib=1");
    let mut broker = setup().start_in(data);
    let mut wire = broker.channel();
    let queue = broker.name("full");
    wire.declare(1, &queue);
    wire.select_confirms(1);
    let body = vec![7; 100_000];
    let (mut confirmed, mut blocked) = (0, false);
    for sent in 1..=1000 {
        wire.publish_as(1, "", &queue, false, &PERSISTENT(), &body);
        // One at a time, until the broker says that it takes no more.
        while confirmed < sent && !blocked {
            match wire.event() {
                Event::Ack(_, tag, _) => confirmed = tag,
                Event::Method(0, (10, 60), _) => blocked = true,
                other => panic!("{other:?}"),
            }
        }
        if blocked {
            break;
        }
    }
    assert!(blocked && confirmed > 100, "{confirmed} confirmed before the disk was full");
    assert!(broker.is_running());
    // Consumers go on, and what they settle makes room.
    let mut reader = broker.channel();
    let mut got = 0;
    while got < confirmed {
        got += u64::from(reader.get(1, &queue, true).is_some());
    }
    wire.wait_for(|event| matches!(event, Event::Method(0, (10, 61), _)));
    publish_numbers(&broker, "", &queue, 0..10);
    let data = broker.kill();
    let broker = setup().start_in(data);
    assert!(broker.channel().look(1, &queue).0 >= 10);
    drop(broker);
}
