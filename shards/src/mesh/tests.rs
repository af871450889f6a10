use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;

use super::*;

/// A bell that a test thread can sleep on, and that counts.
#[derive(Default)]
struct TestBell {
    rings: Mutex<u64>,
    changed: Condvar,
    total: AtomicU64,
}

impl TestBell {
    fn wait(&self) {
        let mut rings = self.rings.lock().unwrap();
        while *rings == 0 {
            rings = self.changed.wait(rings).unwrap();
        }
        *rings = 0;
    }
}

impl Bell for TestBell {
    fn ring(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
        *self.rings.lock().unwrap() += 1;
        self.changed.notify_one();
    }
}

fn mesh<B: Send>(shards: usize) -> (Vec<MeshPort<B>>, Vec<Arc<TestBell>>) {
    let bells: Vec<Arc<TestBell>> = (0..shards).map(|_| Arc::default()).collect();
    let ports = Mesh::build(bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Bell>).collect());
    (ports, bells)
}

fn drained<B: Send + Clone>(port: &mut MeshPort<B>) -> Vec<(u16, Lane, B)> {
    let mut all = Vec::new();
    port.drain(|from, lane, batch| all.push((from.0, lane, batch.clone())));
    all
}

#[test]
fn a_batch_arrives_at_the_shard_it_was_sent_to_and_names_its_sender() {
    let (mut ports, _) = mesh::<(u16, u16)>(4);
    for from in 0..4u16 {
        for to in (0..4u16).filter(|to| *to != from) {
            ports[usize::from(from)].try_send(ShardId(to), Lane::Forward, (from, to)).unwrap();
        }
    }
    for to in 0..4u16 {
        let got = drained(&mut ports[usize::from(to)]);
        let senders: Vec<u16> = got.iter().map(|(from, ..)| *from).collect();
        assert_eq!(senders, (0..4).filter(|from| *from != to).collect::<Vec<_>>());
        assert!(got.iter().all(|(from, _, batch)| *batch == (*from, to)));
    }
}

#[test]
fn replies_come_first_and_each_lane_keeps_its_order() {
    let (mut ports, _) = mesh::<u32>(2);
    let (first, second) = ports.split_at_mut(1);
    let (sender, receiver) = (&mut first[0], &mut second[0]);
    for (lane, batch) in [(Lane::Forward, 1), (Lane::Reply, 2), (Lane::Forward, 3), (Lane::Reply, 4)] {
        sender.try_send(ShardId(1), lane, batch).unwrap();
    }
    let got: Vec<u32> = drained(receiver).into_iter().map(|(.., batch)| batch).collect();
    assert_eq!(got, [2, 4, 1, 3]);
    assert!(!receiver.has_arrivals());
}

#[test]
fn what_arrives_during_a_drain_waits_for_the_next_one() {
    let (mut ports, _) = mesh::<u32>(2);
    let (first, second) = ports.split_at_mut(1);
    let (sender, receiver) = (&mut first[0], &mut second[0]);
    sender.try_send(ShardId(1), Lane::Reply, 1).unwrap();
    let mut got = Vec::new();
    receiver.drain(|_, lane, batch| {
        let batch = *batch;
        got.push((lane, batch));
        // A later turn of the sender: its Forward batch must not pass its Reply batch.
        let _ = sender.try_send(ShardId(1), Lane::Reply, batch + 1);
        let _ = sender.try_send(ShardId(1), Lane::Forward, batch + 2);
    });
    assert_eq!(got, [(Lane::Reply, 1)]);
    assert!(receiver.has_arrivals());
    let got: Vec<u32> = drained(receiver).into_iter().map(|(.., batch)| batch).collect();
    assert_eq!(got, [2, 3]);
}

#[test]
fn a_full_ring_gives_the_batch_back_and_does_not_touch_the_other_lane() {
    let (mut ports, _) = mesh::<usize>(2);
    for batch in 0..RING_BATCHES {
        ports[0].try_send(ShardId(1), Lane::Forward, batch).unwrap();
    }
    assert_eq!(ports[0].try_send(ShardId(1), Lane::Forward, 777), Err(777));
    assert_eq!(ports[0].try_send(ShardId(1), Lane::Reply, 888), Ok(()));
    let got = drained(&mut ports[1]);
    assert_eq!(got.len(), RING_BATCHES + 1);
    assert_eq!(got[0], (0, Lane::Reply, 888));
    assert!(got[1..].iter().enumerate().all(|(index, (.., batch))| *batch == index));
    assert_eq!(ports[0].try_send(ShardId(1), Lane::Forward, 777), Ok(()));
}

#[test]
fn a_sender_that_found_a_ring_full_is_woken_when_there_is_room() {
    let (mut ports, bells) = mesh::<usize>(2);
    let to = ShardId(1);
    let full = (0..).find(|batch| ports[0].try_send(to, Lane::Forward, *batch).is_err()).unwrap();
    assert_eq!(full, RING_BATCHES);
    assert!(!ports[0].has_room(to, Lane::Forward) && ports[0].has_room(to, Lane::Reply));
    assert!(ports[0].try_park(|port| port.has_room(to, Lane::Forward)));
    drained(&mut ports[1]);
    assert_eq!(bells[0].total.load(Ordering::Relaxed), 1);
    assert!(!ports[0].try_park(|port| port.has_room(to, Lane::Forward)));
    // Nobody is woken for room that nobody asked for.
    assert!(ports[0].try_park(|_| false));
    ports[0].try_send(to, Lane::Forward, 0).unwrap();
    drained(&mut ports[1]);
    assert_eq!(bells[0].total.load(Ordering::Relaxed), 1);
}

#[test]
fn an_emptied_batch_returns_to_its_sender() {
    let (mut ports, _) = mesh::<Vec<u8>>(2);
    let send = |ports: &mut Vec<MeshPort<Vec<u8>>>| {
        ports[0].try_send(ShardId(1), Lane::Forward, vec![1; 100]).unwrap();
        ports[1].drain(|_, _, batch| batch.clear());
    };
    assert_eq!(ports[0].take_spent(ShardId(1)), None);
    send(&mut ports);
    let batch = ports[0].take_spent(ShardId(1)).unwrap();
    assert!(batch.is_empty() && batch.capacity() >= 100);
    // Nobody takes them: no more than a ring full is kept.
    (0..2 * RING_BATCHES).for_each(|_| send(&mut ports));
    let returned = std::iter::from_fn(|| ports[0].take_spent(ShardId(1))).count();
    assert_eq!(returned, RING_BATCHES);
}

#[test]
fn the_bell_rings_once_for_a_parked_shard_and_never_for_an_awake_one() {
    let (mut ports, bells) = mesh::<u32>(3);
    let rings = || bells[2].total.load(Ordering::Relaxed);
    ports[0].try_send(ShardId(2), Lane::Forward, 1).unwrap();
    ports[0].announce_sent();
    assert_eq!(rings(), 0);
    assert!(!ports[2].try_park(|_| false), "something has arrived");
    drained(&mut ports[2]);
    assert!(!ports[2].try_park(|_| true), "something waits elsewhere");
    ports[0].announce_sent();
    assert_eq!(rings(), 0);
    assert!(ports[2].try_park(|_| false));
    for sender in [0, 1] {
        ports[sender].try_send(ShardId(2), Lane::Reply, 2).unwrap();
        ports[sender].announce_sent();
    }
    assert_eq!(rings(), 1);
    ports[2].unpark();
    ports[2].parking().wake();
    assert_eq!(rings(), 1);
}

/// Ends the senders when an assertion of the receiver fails.
struct SetOnDrop<'a>(&'a AtomicBool, &'a [Arc<TestBell>]);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.iter().for_each(|bell| bell.ring());
    }
}

/// Three senders against one receiver that sleeps on its bell whenever it finds nothing: a lost
/// wake-up leaves it asleep for ever, and the test with it.
#[test]
fn under_stress_nothing_is_lost_reordered_or_left_asleep() {
    const TURNS: u64 = 30_000;
    const SENDERS: u16 = 3;
    let (ports, bells) = mesh::<(u64, Lane)>(usize::from(SENDERS) + 1);
    let mut ports: Vec<_> = ports.into_iter().map(Some).collect();
    let mut receiver = ports[usize::from(SENDERS)].take().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (over, bell) = (&over, &bells[usize::from(sender)]);
            let mut port = ports[usize::from(sender)].take().unwrap();
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(sender) + 1);
                for turn in 0..TURNS {
                    // Reply before Forward, and no Forward while a Reply is outstanding.
                    for lane in [Lane::Reply, Lane::Forward] {
                        let mut batch = (turn, lane);
                        while let Err(back) = port.try_send(ShardId(SENDERS), lane, batch) {
                            if over.load(Ordering::Relaxed) {
                                return;
                            }
                            batch = back;
                            port.announce_sent();
                            if port.try_park(|port| port.has_room(ShardId(SENDERS), lane)) {
                                bell.wait();
                                port.unpark();
                            }
                        }
                    }
                    if random.u8(..) < 128 {
                        port.announce_sent();
                    }
                    if random.u8(..) < 16 {
                        thread::yield_now();
                    }
                }
                port.announce_sent();
            });
        }
        let _over = SetOnDrop(&over, &bells[..usize::from(SENDERS)]);
        let bell = &bells[usize::from(SENDERS)];
        let mut announced = 0;
        let mut next = vec![[0u64; 2]; usize::from(SENDERS)];
        while next.iter().any(|lanes| *lanes != [TURNS; 2]) {
            let taken = receiver.drain(|from, lane, &mut (turn, sent_on)| {
                assert_eq!(lane, sent_on);
                let lanes = &mut next[from.index()];
                let expected = &mut lanes[lane as usize];
                assert_eq!(turn, *expected, "lost or out of order on {lane:?} from {from}");
                *expected += 1;
                assert!(lanes[Lane::Forward as usize] <= lanes[Lane::Reply as usize], "overtaken");
            });
            if taken == 0 {
                announced += 1;
                if receiver.try_park(|_| false) {
                    bell.wait();
                    receiver.unpark();
                }
            }
        }
        let rings = bell.total.load(Ordering::Relaxed);
        assert!(rings <= announced, "{rings} rings, although it only announced sleep {announced} times");
    });
}

/// One batch at a time, back and forth: each side announces its sleep at the very moment at which the
/// other one sends, which is where a wake-up could be lost.
#[test]
fn a_batch_sent_while_its_receiver_falls_asleep_wakes_it() {
    const ROUNDS: u32 = 50_000;
    let (ports, bells) = mesh::<u32>(2);
    thread::scope(|scope| {
        for (mut port, bell) in ports.into_iter().zip(&bells) {
            scope.spawn(move || {
                let peer = ShardId(1 - port.id().0);
                let mut next = (port.id() == ShardId(0)).then_some(0);
                loop {
                    if let Some(round) = next.take() {
                        port.try_send(peer, Lane::Forward, round).unwrap();
                        port.announce_sent();
                        if round >= ROUNDS {
                            break;
                        }
                    }
                    if port.try_park(|_| false) {
                        bell.wait();
                        port.unpark();
                    }
                    port.drain(|_, _, round| next = Some(*round + 1));
                    if next.is_some_and(|round| round > ROUNDS) {
                        break;
                    }
                }
            });
        }
    });
}

/// The parking protocol as a machine of atomic steps, walked through in every possible order.
mod model {
    use super::*;

    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum Receiver {
        Drain,
        Announce,
        Look,
        Sleep,
        Done,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum Sender {
        Push,
        Load,
        Swap,
        Ring,
        Done,
    }

    #[derive(Clone, PartialEq, Eq, Hash, Debug)]
    struct State {
        receiver: Receiver,
        senders: [(Sender, u8); 2],
        parked: bool,
        queued: u8,
        received: u8,
        bell: bool,
    }

    const PUSHES: u8 = 2;

    /// How the steps before sleeping are ordered; the wrong one shows that the walk finds a loss.
    #[derive(Clone, Copy, PartialEq)]
    enum Order {
        AnnounceThenLook,
        LookThenAnnounce,
    }

    fn receiver_step(state: &State, order: Order) -> Option<State> {
        let mut next = state.clone();
        let (first, second) = match order {
            Order::AnnounceThenLook => (Receiver::Announce, Receiver::Look),
            Order::LookThenAnnounce => (Receiver::Look, Receiver::Announce),
        };
        let after = |step| if step == first { second } else { Receiver::Sleep };
        match state.receiver {
            Receiver::Drain => {
                next.received += next.queued;
                next.queued = 0;
                next.receiver = if next.received == 2 * PUSHES { Receiver::Done } else { first };
            }
            Receiver::Announce => {
                next.parked = true;
                next.receiver = after(Receiver::Announce);
            }
            Receiver::Look if state.queued > 0 => {
                next.parked = false;
                next.receiver = Receiver::Drain;
            }
            Receiver::Look => next.receiver = after(Receiver::Look),
            Receiver::Sleep if state.bell => {
                next.bell = false;
                next.parked = false;
                next.receiver = Receiver::Drain;
            }
            Receiver::Sleep | Receiver::Done => return None,
        }
        Some(next)
    }

    fn sender_step(state: &State, sender: usize) -> Option<State> {
        let mut next = state.clone();
        let (step, pushed) = &mut next.senders[sender];
        let finished = |pushed| if pushed == PUSHES { Sender::Done } else { Sender::Push };
        match *step {
            Sender::Push => {
                *pushed += 1;
                *step = Sender::Load;
                next.queued += 1;
            }
            Sender::Load => *step = if next.parked { Sender::Swap } else { finished(*pushed) },
            Sender::Swap => {
                *step = if next.parked { Sender::Ring } else { finished(*pushed) };
                next.parked = false;
            }
            Sender::Ring => {
                *step = finished(*pushed);
                next.bell = true;
            }
            Sender::Done => return None,
        }
        Some(next)
    }

    /// All states from which nobody can go on although not everything was received.
    fn stuck(order: Order) -> usize {
        let start = State {
            receiver: Receiver::Drain,
            senders: [(Sender::Push, 0); 2],
            parked: false,
            queued: 0,
            received: 0,
            bell: false,
        };
        let (mut seen, mut open, mut stuck) = (HashSet::from([start.clone()]), vec![start], 0);
        while let Some(state) = open.pop() {
            let steps = [receiver_step(&state, order), sender_step(&state, 0), sender_step(&state, 1)];
            if steps.iter().all(Option::is_none) && state.received < 2 * PUSHES {
                stuck += 1;
            }
            for next in steps.into_iter().flatten() {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        stuck
    }

    #[test]
    fn no_order_of_steps_loses_a_wakeup() {
        assert_eq!(stuck(Order::AnnounceThenLook), 0);
    }

    #[test]
    fn the_walk_finds_the_loss_of_a_protocol_that_looks_before_it_announces() {
        assert!(stuck(Order::LookThenAnnounce) > 0);
    }
}
