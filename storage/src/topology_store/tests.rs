use std::io;
use std::path::PathBuf;
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use redb::backends::InMemoryBackend;

use super::*;
use crate::test_dir::TestDir;

fn set(key: &str, value: &str) -> Write {
    Write { key: key.into(), value: Some(value.into()) }
}

fn remove(key: &str) -> Write {
    Write { key: key.into(), value: None }
}

fn row(key: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (key.into(), value.into())
}

/// A disk in memory that counts its syncs, can be held up in one, and can break.
#[derive(Clone, Debug)]
struct TestDisk {
    content: Arc<InMemoryBackend>,
    syncs: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
    gate: Arc<Gate>,
}

impl TestDisk {
    fn new() -> TestDisk {
        TestDisk {
            content: Arc::new(InMemoryBackend::new()),
            syncs: Arc::default(),
            broken: Arc::default(),
            gate: Arc::default(),
        }
    }

    fn check(&self) -> Result<(), io::Error> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }
}

/// Holds up who passes while it is closed, and tells when somebody waits at it.
#[derive(Debug, Default)]
struct Gate {
    /// Closed, and somebody waits.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn set_closed(&self, closed: bool) {
        self.state.lock().unwrap().0 = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        while state.0 {
            state.1 = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        state.1 = false;
    }

    fn wait_for_somebody(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.1 {
            state = self.changed.wait(state).unwrap();
        }
    }
}

impl StorageBackend for TestDisk {
    fn len(&self) -> Result<u64, io::Error> {
        self.content.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.content.read(offset, out)
    }
    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.check()?;
        self.content.set_len(len)
    }
    fn sync_data(&self) -> Result<(), io::Error> {
        self.gate.pass();
        self.check()?;
        self.syncs.fetch_add(1, Ordering::SeqCst);
        self.content.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.check()?;
        self.content.write(offset, data)
    }
}

#[test]
fn a_new_store_is_empty_and_each_opening_begins_an_epoch() {
    let dir = TestDir::new();
    let data = DataDir::open(dir.path()).unwrap();
    for boot_epoch in 1..=3 {
        let (store, snapshot) = TopologyStore::open(&data).unwrap();
        assert_eq!(snapshot, Snapshot { version: 0, boot_epoch, rows: vec![] });
        assert_eq!(store.last_version(), 0);
    }
}

#[test]
fn what_was_committed_is_there_after_reopening() {
    let dir = TestDir::new();
    let data = DataDir::open(dir.path()).unwrap();
    let (mut store, _) = TopologyStore::open(&data).unwrap();
    store.commit(0, 3, vec![set("b", "1"), set("a", "2"), set("gone", "x")]).unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 3 })));
    store.commit(3, 4, vec![set("b", "3"), remove("gone"), remove("never was")]).unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 4 })));
    assert_eq!(store.wait(), None, "nothing is outstanding");
    drop(store);
    let (store, snapshot) = TopologyStore::open(&data).unwrap();
    assert_eq!(snapshot, Snapshot { version: 4, boot_epoch: 2, rows: vec![row("a", "2"), row("b", "3")] });
    assert_eq!(store.last_version(), 4);
}

#[test]
fn a_copy_of_the_file_taken_after_a_completion_holds_the_commit() {
    let dir = TestDir::new();
    let data = DataDir::open(dir.path()).unwrap();
    let (mut store, _) = TopologyStore::open(&data).unwrap();
    store.commit(0, 1, vec![set("q", "durable")]).unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 1 })));
    // What a process that is killed now leaves behind: the file as it is, never closed.
    let copy = dir.path().join("after-the-crash");
    let crashed = DataDir::open(&copy).unwrap();
    std::fs::copy(dir.path().join(TOPOLOGY_FILE), copy.join(TOPOLOGY_FILE)).unwrap();
    let (_store, snapshot) = TopologyStore::open(&crashed).unwrap();
    assert_eq!(snapshot, Snapshot { version: 1, boot_epoch: 2, rows: vec![row("q", "durable")] });
}

#[test]
fn dropping_the_handle_writes_what_was_handed_in() {
    let dir = TestDir::new();
    let data = DataDir::open(dir.path()).unwrap();
    let (mut store, _) = TopologyStore::open(&data).unwrap();
    for version in 1..=50 {
        store.commit(version - 1, version, vec![set(&format!("{version:03}"), "v")]).unwrap();
    }
    drop(store);
    let (_, snapshot) = TopologyStore::open(&data).unwrap();
    assert_eq!((snapshot.version, snapshot.rows.len()), (50, 50));
}

#[test]
fn a_commit_on_another_version_is_refused_and_so_is_what_builds_on_it() {
    let disk = TestDisk::new();
    let (mut store, _) = TopologyStore::open_backend(disk).unwrap();
    store.commit(0, 5, vec![set("a", "kept")]).unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 5 })));
    store.commit(4, 6, vec![set("a", "stale")]).unwrap();
    store.commit(6, 7, vec![set("a", "built on stale")]).unwrap();
    assert_eq!(store.wait(), Some(Err(StoreError::Conflict { version: 6, expected: 4, stored: 5 })));
    assert_eq!(store.wait(), Some(Err(StoreError::Conflict { version: 7, expected: 6, stored: 5 })));
    assert_eq!(store.last_version(), 5, "the next one builds on what is stored");
    store.commit(store.last_version(), 8, vec![set("b", "fresh")]).unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 8 })));
}

#[test]
fn a_refused_commit_leaves_no_trace() {
    let disk = TestDisk::new();
    let (mut store, _) = TopologyStore::open_backend(disk.clone()).unwrap();
    store.commit(0, 1, vec![set("a", "1")]).unwrap();
    store.commit(0, 2, vec![set("a", "2"), set("b", "2")]).unwrap();
    store.commit(1, 3, vec![set("c", "3")]).unwrap();
    drop(store);
    let (_, snapshot) = TopologyStore::open_backend(disk).unwrap();
    assert_eq!((snapshot.version, snapshot.rows), (3, vec![row("a", "1"), row("c", "3")]));
}

#[test]
fn a_version_that_does_not_rise_is_refused_at_once() {
    let (mut store, _) = TopologyStore::open_backend(TestDisk::new()).unwrap();
    assert_eq!(store.commit(0, 0, vec![]), Err(StoreError::NotRising { version: 0, expected: 0 }));
    assert_eq!(store.commit(7, 3, vec![]), Err(StoreError::NotRising { version: 3, expected: 7 }));
    assert_eq!(store.wait(), None);
}

#[test]
fn commits_that_wait_are_written_together() {
    let disk = TestDisk::new();
    let (mut store, _) = TopologyStore::open_backend(disk.clone()).unwrap();
    let syncs = || disk.syncs.load(Ordering::SeqCst);
    let opened = syncs();
    store.commit(0, 1, vec![set("single", "")]).unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 1 })));
    let single = syncs() - opened;
    assert!(single >= 1, "a commit is not complete before it is synced");
    // One commit is held up at the disk while 20 more gather behind it.
    disk.gate.set_closed(true);
    store.commit(1, 2, vec![set("first", "")]).unwrap();
    disk.gate.wait_for_somebody();
    for version in 3..=22 {
        store.commit(version - 1, version, vec![set(&version.to_string(), "")]).unwrap();
    }
    assert_eq!(store.completion(), None, "nothing is answered before the disk has it");
    disk.gate.set_closed(false);
    for version in 2..=22 {
        assert_eq!(store.wait(), Some(Ok(Committed { version })));
    }
    let grouped = syncs() - opened - single;
    assert!(grouped <= 2 * single, "{grouped} syncs for two groups, {single} for one commit");
}

#[test]
fn the_queue_is_bounded_and_has_room_again_when_completions_are_taken() {
    let disk = TestDisk::new();
    let (mut store, _) = TopologyStore::open_backend(disk.clone()).unwrap();
    disk.gate.set_closed(true);
    let max = COMMITS_OUTSTANDING_MAX as u64;
    for version in 1..=max {
        assert!(store.has_room());
        store.commit(version - 1, version, vec![]).unwrap();
    }
    assert!(!store.has_room());
    assert_eq!(store.commit(max, max + 1, vec![]), Err(StoreError::Full));
    disk.gate.set_closed(false);
    assert_eq!(store.wait(), Some(Ok(Committed { version: 1 })));
    store.commit(max, max + 1, vec![]).unwrap();
    for version in 2..=max + 1 {
        assert_eq!(store.wait(), Some(Ok(Committed { version })));
    }
}

#[test]
fn a_disk_error_poisons_the_store_and_the_group_and_what_was_there_stays() {
    let disk = TestDisk::new();
    let (mut store, _) = TopologyStore::open_backend(disk.clone()).unwrap();
    store.commit(0, 1, vec![set("a", "safe")]).unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 1 })));
    disk.gate.set_closed(true);
    store.commit(1, 2, vec![set("b", "lost")]).unwrap();
    disk.gate.wait_for_somebody();
    store.commit(2, 3, vec![set("c", "lost")]).unwrap();
    disk.broken.store(true, Ordering::SeqCst);
    disk.gate.set_closed(false);
    let first = store.wait().unwrap().unwrap_err();
    assert!(matches!(&first, StoreError::Poisoned { reason } if reason.contains("os error 5")), "{first:?}");
    assert!(first.to_string().contains("check the disk"), "{first}");
    assert_eq!(store.wait(), Some(Err(first.clone())));
    // The disk is well again, the store is not: a failed sync is not retried.
    disk.broken.store(false, Ordering::SeqCst);
    let syncs = disk.syncs.load(Ordering::SeqCst);
    store.commit(1, 4, vec![set("d", "too late")]).unwrap();
    assert_eq!(store.wait(), Some(Err(first)), "what went wrong first stays the reason");
    assert_eq!(disk.syncs.load(Ordering::SeqCst), syncs);
    drop(store);
    let (_, snapshot) = TopologyStore::open_backend(disk).unwrap();
    assert!(snapshot.rows.contains(&row("a", "safe")));
    assert!(!snapshot.rows.iter().any(|(key, _)| key == b"d"));
}

#[test]
fn completions_ring_the_bell_even_when_it_is_hung_up_late() {
    let (mut store, _) = TopologyStore::open_backend(TestDisk::new()).unwrap();
    store.commit(0, 1, vec![]).unwrap();
    let (rings, heard) = mpsc::channel();
    store.notify(Arc::new(move || rings.send(()).unwrap()));
    heard.recv().unwrap();
    assert_eq!(store.wait(), Some(Ok(Committed { version: 1 })));
    while heard.try_recv().is_ok() {}
    store.commit(1, 2, vec![]).unwrap();
    // The completion is there before the bell rings, so that who wakes finds it.
    loop {
        heard.recv().unwrap();
        if let Some(completion) = store.completion() {
            assert_eq!(completion, Ok(Committed { version: 2 }));
            break;
        }
    }
}

#[test]
fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let dir = TestDir::new();
    let data = DataDir::open(dir.path()).unwrap();
    let path: PathBuf = dir.path().join(TOPOLOGY_FILE);
    std::fs::write(&path, vec![b'x'; 4096]).unwrap();
    let error = TopologyStore::open(&data).unwrap_err();
    assert!(
        matches!(&error, StoreError::Open { path: named, .. } if named == path.to_str().unwrap()),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; 4096]);
}

#[test]
fn a_store_that_was_not_made_whole_is_made_again() {
    let dir = TestDir::new();
    let data = DataDir::open(dir.path()).unwrap();
    // As a process leaves it that was killed while it made its first store.
    std::fs::write(dir.path().join("topology.new"), vec![0; 70_000]).unwrap();
    let (store, snapshot) = TopologyStore::open(&data).unwrap();
    assert_eq!((snapshot.boot_epoch, snapshot.rows.len()), (1, 0));
    drop(store);
    assert!(!dir.path().join("topology.new").exists());
    assert_eq!(TopologyStore::open(&data).unwrap().1.boot_epoch, 2);
}
