use std::convert::Infallible;
use std::net::TcpStream;

use lepus_storage::Write;

use super::*;
use crate::config::CpuList;
use crate::test_dir::TestDir;

fn config(dir: &TestDir) -> Config {
    Config {
        data_dir: dir.path().join("data"),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    }
}

fn boot(config: &Config, server: impl FnOnce(ServerPlan) -> Result<(), String>) -> Result<(), BootError> {
    serve(config, &Supervisor::default(), server)
}

#[test]
fn the_server_gets_all_it_needs_and_the_next_start_finds_what_it_stored() {
    let dir = TestDir::new();
    let config = config(&dir);
    boot(&config, |mut plan| {
        TcpStream::connect(plan.listeners[0].local_addr().unwrap()).unwrap();
        assert_eq!((plan.cpus.len(), plan.version, plan.boot_epoch), (1, 0, 1));
        assert!(plan.rows.is_empty());
        let write = Write { key: b"k".to_vec(), value: Some(b"v".to_vec()) };
        plan.store.commit(0, 9, vec![write]).unwrap();
        (plan.on_ready)();
        Ok(())
    })
    .unwrap();
    boot(&config, |plan| {
        assert_eq!((plan.version, plan.boot_epoch), (9, 2));
        assert_eq!(plan.rows, [(b"k".to_vec(), b"v".to_vec())]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_failure_before_all_is_ready_is_one_to_start() {
    let dir = TestDir::new();
    let error = boot(&config(&dir), |_| Err("no ring".to_owned())).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.exit_code()), ("cannot start the shards: no ring", 2));
    let error = boot(&config(&dir), |plan| {
        (plan.on_ready)();
        Err("log poisoned".to_owned())
    })
    .unwrap_err();
    assert_eq!((error.to_string().as_str(), error.exit_code()), ("the broker failed: log poisoned", 1));
}

#[test]
fn a_plan_can_go_to_another_thread() {
    fn sendable<T: Send>() {}
    sendable::<ServerPlan>();
}

#[test]
fn a_data_directory_serves_one_broker_at_a_time() {
    let dir = TestDir::new();
    let config = config(&dir);
    boot(&config, |_| {
        let error = boot(&config, |_| unreachable!("the directory is held")).unwrap_err();
        assert!(matches!(error, BootError::DataDir(DataDirError::Locked { .. })), "{error}");
        assert_eq!(error.exit_code(), 2);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_taken_port_leaves_the_data_directory_free() {
    let dir = TestDir::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = Config { listen: vec![other.local_addr().unwrap()], ..config(&dir) };
    let error = boot(&taken, |_| unreachable!("the port is taken")).unwrap_err();
    assert!(matches!(error, BootError::Listen(ListenError::Taken { .. })), "{error}");
    serve(&config(&dir), &Supervisor::default(), |plan| {
        assert_eq!(plan.boot_epoch, 1, "a start that failed is not counted");
        Ok::<(), Infallible>(())
    })
    .unwrap();
}

#[test]
fn shards_go_where_they_are_asked_to() {
    let host = Cpus { allowed: vec![0, 1, 4], quota: None };
    let place = |shards, cpus: Option<Vec<usize>>| {
        place_shards(&Config { shards, cpus: cpus.map(CpuList), ..Config::default() }, &host)
    };
    assert_eq!(place(None, None).unwrap(), [0, 1, 4]);
    assert_eq!(place(Some(2), None).unwrap(), [0, 1]);
    assert_eq!(place(Some(4), None).unwrap(), [0, 1, 4, 0]);
    assert_eq!(place(None, Some(vec![4, 1])).unwrap(), [4, 1]);
    assert!(matches!(place(None, Some(vec![2])), Err(CpusError::NotAllowed { missing: 2, .. })));
}

#[test]
fn the_ready_line_says_what_listens_where_on_what() {
    let addresses = ["127.0.0.1:5672".parse().unwrap(), "[::1]:5673".parse().unwrap()];
    let line = |cpus: &[usize], addresses: &[SocketAddr]| ready_line(&Config::default(), cpus, addresses);
    assert_eq!(
        line(&[0, 1], &addresses[..1]),
        format!(
            "lepus {} ready: amqp on 127.0.0.1:5672, 2 shards on cpus 0,1, durability fsync, data in ./lepus-data",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert!(line(&[3], &addresses).contains("amqp on 127.0.0.1:5672, [::1]:5673, 1 shard on cpu 3,"));
    assert!(line(&[0, 1, 0], &addresses).contains("3 shards on cpus 0,1,0,"));
}
