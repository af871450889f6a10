use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::*;
use crate::ShardId;
use crate::mesh::{Bell, Lane, Mesh, MeshPort};

/// Runs one future on a shard of its own.
fn on_a_shard<T, R>(start: impl FnOnce() -> R + Clone + Send + 'static) -> T
where
    T: Send + 'static,
    R: Future<Output = T> + 'static,
{
    let threads = spawn_shards(vec![(Placement::Anywhere, ())], &ShardOptions::default(), |()| start());
    threads.unwrap().join().pop().unwrap()
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A value that cannot be cloned, for a start function that has to be.
struct Once<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Once<T> {
    fn clone(&self) -> Once<T> {
        Once(Arc::clone(&self.0))
    }
}

impl<T> Once<T> {
    fn new(value: T) -> Once<T> {
        Once(Arc::new(Mutex::new(Some(value))))
    }

    fn take(&self) -> T {
        self.0.lock().unwrap().take().unwrap()
    }
}

#[test]
fn shards_get_their_seeds_and_return_in_order() {
    let seeds = (0..4u32).map(|seed| (Placement::Cpu(0), seed)).collect();
    let threads = spawn_shards(seeds, &ShardOptions::default(), |seed| async move {
        yield_now().await;
        (seed * 10, thread::current().name().map(str::to_owned))
    });
    let returned = threads.unwrap().join();
    let expected: Vec<_> = (0..4u32).map(|seed| (seed * 10, Some(format!("shard-{seed}")))).collect();
    assert_eq!(returned, expected);
}

#[test]
fn a_shard_is_pinned_to_its_cpu() {
    let threads = spawn_shards(vec![(Placement::Cpu(0), ())], &ShardOptions::default(), |()| async {
        std::fs::read_to_string("/proc/thread-self/status").unwrap()
    });
    let status = threads.unwrap().join().pop().unwrap();
    assert!(status.lines().any(|line| line == "Cpus_allowed_list:\t0"), "{status}");
}

#[test]
fn no_shard_starts_when_one_cannot() {
    let (started_in, started) = mpsc::channel();
    let seeds = vec![(Placement::Anywhere, started_in.clone()), (Placement::Cpu(100_000), started_in)];
    let result = spawn_shards(seeds, &ShardOptions::default(), |started_in| async move {
        started_in.send(()).unwrap();
    });
    let Err(RuntimeError::Executor { shard: 1, placement: Placement::Cpu(100_000), .. }) = result else {
        panic!("{result:?}");
    };
    assert_eq!(started.recv(), Err(mpsc::RecvError));
}

#[test]
fn a_spawned_task_runs_later_and_not_inside_spawn() {
    let order = on_a_shard(|| async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let theirs = Rc::clone(&order);
        let mine = order.borrow_mut();
        spawn(async move { theirs.borrow_mut().push("task") });
        drop(mine);
        order.borrow_mut().push("spawner");
        yield_now().await;
        order.take()
    });
    assert_eq!(order, ["spawner", "task"]);
}

#[test]
fn tasks_go_on_after_their_spawner_has_forgotten_them() {
    let done = on_a_shard(|| async {
        let notify = Rc::new(Notify::new());
        for _ in 0..3 {
            let (mine, theirs) = (Rc::new(Cell::new(false)), Rc::clone(&notify));
            let flag = Rc::clone(&mine);
            spawn(async move {
                sleep(Duration::from_millis(1)).await;
                flag.set(true);
                theirs.notify();
            });
            notify.notified().await;
            assert!(mine.get());
        }
        true
    });
    assert!(done);
}

#[test]
fn a_notification_is_remembered_once() {
    let waits = on_a_shard(|| async {
        let notify = Rc::new(Notify::new());
        notify.notify();
        notify.notify();
        notify.notified().await;
        let waits = Rc::new(Cell::new(0));
        let (theirs, counted) = (Rc::clone(&notify), Rc::clone(&waits));
        spawn(async move {
            loop {
                theirs.notified().await;
                counted.set(counted.get() + 1);
            }
        });
        yield_now().await;
        assert_eq!(waits.get(), 0, "two notifications before a wait end one wait");
        for expected in 1..4 {
            notify.notify();
            yield_now().await;
            assert_eq!(waits.get(), expected);
        }
        waits.get()
    });
    assert_eq!(waits, 3);
}

#[test]
fn a_doorbell_wakes_a_sleeping_shard_from_another_thread() {
    let doorbell = Arc::new(Doorbell::new().unwrap());
    let (asked_in, asked) = mpsc::channel();
    let ringer = {
        let doorbell = Arc::clone(&doorbell);
        thread::spawn(move || asked.iter().for_each(|()| doorbell.ring()))
    };
    on_a_shard(move || async move {
        let waiter = DoorbellWaiter::new(Arc::clone(&doorbell));
        for _ in 0..200 {
            asked_in.send(()).unwrap();
            waiter.wait().await.unwrap();
        }
        // A ring before the wait counts.
        doorbell.ring();
        waiter.wait().await.unwrap();
    });
    ringer.join().unwrap();
}

/// One turn of a shard that answers each Forward batch on the Reply lane, asleep in between.
async fn serve_mesh(mut port: MeshPort<u64>, bell: Arc<Doorbell>, rounds: u64) -> u64 {
    let waiter = DoorbellWaiter::new(bell);
    let peer = ShardId(1 - port.id().0);
    let mut answered = 0;
    if port.id() == ShardId(0) {
        port.try_send(peer, Lane::Forward, 0).unwrap();
    }
    while answered < rounds {
        port.announce_sent();
        if port.try_park(|_| false) {
            waiter.wait().await.unwrap();
            port.unpark();
        }
        let mut next = None;
        port.drain(|_, _, batch| next = Some(*batch + 1));
        if let Some(next) = next {
            answered += 1;
            port.try_send(peer, Lane::Reply, next).unwrap();
        }
    }
    port.announce_sent();
    answered
}

#[test]
fn two_sleeping_shards_wake_each_other_through_the_mesh() {
    let bells: Vec<Arc<Doorbell>> = (0..2).map(|_| Arc::new(Doorbell::new().unwrap())).collect();
    let ports = Mesh::build::<u64>(bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Bell>).collect());
    let seeds = ports.into_iter().zip(bells).map(|seed| (Placement::Anywhere, seed)).collect();
    let threads = spawn_shards(seeds, &ShardOptions::default(), |(port, bell)| serve_mesh(port, bell, 2000));
    assert_eq!(threads.unwrap().join(), [2000, 2000]);
}

#[test]
fn a_listener_accepts_and_the_stream_can_go_to_another_shard() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"ping").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (stream.local_addr().unwrap(), answer)
    });
    let listener = Once::new(listener);
    let accepted =
        on_a_shard(move || async move { Listener::adopt(listener.take()).unwrap().accept().await.unwrap() });
    let (stream, peer) = accepted;
    let stream = Once::new(stream);
    on_a_shard(move || async move {
        let socket = Socket::adopt(stream.take()).unwrap();
        let (mut buffer, mut got) = ([0; 64], Vec::new());
        while got.len() < 4 {
            socket.readable().await;
            let read = socket.try_read(&mut buffer).unwrap();
            got.extend_from_slice(&buffer[..read]);
        }
        assert_eq!(got, b"ping");
        socket.try_write(b"pong").unwrap();
    });
    assert_eq!(client.join().unwrap(), (peer, "pong".to_owned()));
}

#[test]
fn a_stopped_listener_refuses_and_ends_the_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Once::new(listener);
    on_a_shard(move || async move {
        let listener = Rc::new(Listener::adopt(listener.take()).unwrap());
        let (theirs, ended) = (Rc::clone(&listener), Rc::new(Notify::new()));
        let end = Rc::clone(&ended);
        spawn(async move {
            theirs.accept().await.unwrap_err();
            end.notify();
        });
        yield_now().await;
        listener.stop();
        ended.notified().await;
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn reading_nothing_and_writing_into_a_full_socket_return_at_once() {
    let (client, server) = pair();
    let (client, server) = (Once::new(client), Once::new(server));
    on_a_shard(move || async move {
        let mut client = client.take();
        let socket = Rc::new(Socket::adopt(server.take()).unwrap());
        let mut buffer = vec![0; 64 * 1024];
        assert_eq!(socket.try_read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut written = 0;
        let full = loop {
            match socket.try_write(&buffer) {
                Ok(more) => written += more,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        // Once the peer has read, a wait for writability ends and a write succeeds.
        let reader = thread::spawn(move || {
            client.read_exact(&mut vec![0; written]).unwrap();
            client
        });
        socket.writable().await;
        assert!(socket.try_write(b"x").unwrap() > 0);
        drop(reader.join().unwrap());
    });
}

#[test]
fn an_end_that_comes_before_the_last_input_is_read_is_seen_after_it() {
    // Input and end are told of each by itself, or both at once.
    for pause in [Duration::ZERO, Duration::from_millis(5)] {
        let (mut client, server) = pair();
        let server = Once::new(server);
        let (asked_in, asked) = mpsc::channel::<()>();
        let sender = thread::spawn(move || {
            asked.recv().unwrap();
            client.write_all(b"last").unwrap();
            thread::sleep(pause);
        });
        on_a_shard(move || async move {
            let socket = Socket::adopt(server.take()).unwrap();
            let mut buffer = [0; 64];
            assert_eq!(socket.try_read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            spawn(async move { asked_in.send(()).unwrap() });
            socket.readable().await;
            // Both have been told of when this is over.
            sleep(Duration::from_millis(50)).await;
            assert_eq!(socket.try_read(&mut buffer).unwrap(), 4);
            loop {
                socket.readable().await;
                match socket.try_read(&mut buffer) {
                    Ok(read) => break assert_eq!(read, 0),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
        });
        sender.join().unwrap();
    }
}

#[test]
fn shutting_a_socket_down_ends_a_wait_for_input_and_the_peer_sees_the_end() {
    let (mut client, server) = pair();
    let server = Once::new(server);
    on_a_shard(move || async move {
        let socket = Rc::new(Socket::adopt(server.take()).unwrap());
        let (theirs, ended) = (Rc::clone(&socket), Rc::new(Notify::new()));
        let end = Rc::clone(&ended);
        spawn(async move {
            theirs.readable().await;
            assert_eq!(theirs.try_read(&mut [0; 8]).unwrap(), 0);
            end.notify();
        });
        yield_now().await;
        socket.shutdown(Shutdown::Both);
        ended.notified().await;
    });
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
}
