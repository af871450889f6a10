//! A broker process: built if need be, started on a free port with a data directory of its own, and ended.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::limits::{DRAIN, START};
use crate::wire::Wire;
use crate::{Method, os};

/// How a broker of our own is started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    settings: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Setup {
    /// Two shards, whatever the machine has, so that work crosses shards; and small segments, so that a
    /// log has many.
    pub fn new() -> Setup {
        let settings = vec!["shards=2".to_owned(), "segment_mib=2".to_owned()];
        Setup { settings, environment: Vec::new() }
    }

    /// Sets a key of the configuration, as `--set` takes it.
    pub fn set(mut self, assignment: &str) -> Setup {
        self.settings.push(assignment.to_owned());
        self
    }

    /// Sets a variable of its environment.
    pub fn variable(mut self, name: &'static str, value: impl Into<String>) -> Setup {
        self.environment.push((name, value.into()));
        self
    }

    /// Starts it, with a data directory that goes with it.
    pub fn start(self) -> Broker {
        let data = DataDir::new();
        self.start_in(data)
    }

    /// Starts it on data that is there already.
    pub fn start_in(self, data: DataDir) -> Broker {
        let mut command = self.command(data.path());
        command.arg("--listen=127.0.0.1:0");
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let errors = collect(child.stderr.take().expect("stderr is piped"));
        let line = first_line(&mut child);
        let address = line.as_deref().and_then(address_of);
        let Some(address) = address else {
            let _ = child.kill();
            let status = child.wait();
            panic!(
                "no ready line but {line:?}; {status:?}; it said:\n{}",
                errors.lock().expect("no panic").as_str()
            );
        };
        Broker {
            address,
            process: Some(Process { child, data, errors }),
            external: false,
            names: Mutex::default(),
        }
    }

    /// The command, for a start that is meant to fail.
    pub fn command(&self, data: &Path) -> Command {
        let mut command = Command::new(binary());
        // The broker takes LEPUS_... for its own keys; ours are not.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEPUS_"))
        {
            command.env_remove(name);
        }
        // And if somebody supervises the tests, that is not for the broker.
        command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
        command.arg("serve").arg("--data-dir").arg(data).stdin(Stdio::null());
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A running broker. Dropped, it is killed, so that a failed test leaves nothing behind.
pub struct Broker {
    /// Where it speaks AMQP.
    pub address: SocketAddr,
    process: Option<Process>,
    /// Somebody else's, which `LEPUS_TEST_URL` names.
    external: bool,
    names: Mutex<Vec<String>>,
}

struct Process {
    child: Child,
    data: DataDir,
    errors: &'static Mutex<String>,
}

impl Broker {
    /// The broker that `LEPUS_TEST_URL` names, or one of our own with two shards.
    pub fn start() -> Broker {
        match std::env::var("LEPUS_TEST_URL") {
            Ok(url) => {
                let address =
                    url.rsplit('@').next().expect("rsplit gives one part at least").trim_end_matches('/');
                let address = address.trim_start_matches("amqp://").to_socket_addrs();
                let address =
                    address.ok().and_then(|mut all| all.next()).expect("LEPUS_TEST_URL names host and port");
                Broker { address, process: None, external: true, names: Mutex::default() }
            }
            Err(_) => Setup::new().start(),
        }
    }

    /// One of our own, or none when the tests run against another broker.
    pub fn own(setup: Setup) -> Option<Broker> {
        std::env::var_os("LEPUS_TEST_URL").is_none().then(|| setup.start())
    }

    /// Whether the broker is Lepus.
    pub fn is_lepus(&self) -> bool {
        self.process.is_some()
    }

    /// A connection, logged in.
    pub fn connect(&self) -> Wire {
        Wire::connect(self.address)
    }

    /// A connection with channel 1 open.
    pub fn channel(&self) -> Wire {
        let mut wire = self.connect();
        wire.open(1);
        wire
    }

    /// The URL for clients that take one.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address)
    }

    /// A name that nobody else uses, for a queue or an exchange.
    pub fn name(&self, what: &str) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lepus-tests.{what}.{}.{count}", std::process::id());
        self.names.lock().expect("no test panics here").push(name.clone());
        name
    }

    /// Process id of a broker of our own.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("a broker of our own").child.id()
    }

    /// Where it keeps its data.
    pub fn data_path(&self) -> &Path {
        self.process.as_ref().expect("a broker of our own").data.path()
    }

    /// Its resident memory in bytes.
    pub fn resident_bytes(&self) -> usize {
        os::resident_bytes(self.pid())
    }

    /// What it has written to standard error so far.
    pub fn log(&self) -> String {
        self.process.as_ref().map_or_else(String::new, |own| own.errors.lock().expect("no panic").clone())
    }

    /// Asks it to stop and sees that it does so cleanly and in time. Gives its data back.
    pub fn stop(mut self) -> Option<DataDir> {
        let mut own = self.process.take()?;
        os::signal(own.child.id(), libc::SIGTERM);
        let status = wait(&mut own.child, DRAIN);
        let log = own.errors.lock().expect("no panic").clone();
        let status = status.unwrap_or_else(|| {
            let _ = own.child.kill();
            let _ = own.child.wait();
            panic!("did not end within {DRAIN:?} of SIGTERM; it said:\n{log}")
        });
        assert!(status.success(), "ended with {status} after SIGTERM; it said:\n{log}");
        Some(own.data)
    }

    /// Ends it at once, as a crash does. Gives its data back.
    pub fn kill(mut self) -> DataDir {
        let mut own = self.process.take().expect("a broker of our own");
        own.child.kill().expect("a child that was not waited for can be killed");
        own.child.wait().expect("a killed child ends");
        own.data
    }

    /// Kills the process, while clients still use it.
    pub fn kill_now(&self) {
        os::signal(self.pid(), libc::SIGKILL);
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        wait(&mut self.process.as_mut().expect("a broker of our own").child, limit)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        match &mut self.process {
            Some(own) => own.child.try_wait().expect("our child").is_none(),
            None => true,
        }
    }

    /// Sees that a healthy client is served as ever.
    pub fn assert_healthy(&mut self) {
        assert!(self.is_running(), "the broker has ended; it said:\n{}", self.log());
        let mut wire = self.channel();
        let queue = wire.declare_exclusive(1);
        wire.publish(1, "", &queue, b"healthy");
        let got = wire.get(1, &queue, true).expect("the message is there");
        assert_eq!(got.body, b"healthy");
        wire.close();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        match &mut self.process {
            Some(own) => {
                let _ = own.child.kill();
                let _ = own.child.wait();
                if thread::panicking() {
                    eprintln!(
                        "the broker said:\n{}",
                        own.errors.lock().map_or_else(|_| String::new(), |log| log.clone())
                    );
                }
            }
            // Somebody else's broker: leave it as it was.
            None if self.external && !thread::panicking() => {
                let mut wire = self.channel();
                for name in self.names.lock().expect("no test panics here").iter() {
                    wire.call(1, Method::new(50, 40).short(0).shortstr(name).bits(&[false, false, false]));
                    wire.call(1, Method::new(40, 20).short(0).shortstr(name).bits(&[false, false]));
                }
            }
            None => {}
        }
    }
}

/// A directory for a broker's data, removed when dropped.
#[derive(Debug)]
pub struct DataDir(PathBuf);

impl DataDir {
    pub fn new() -> DataDir {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lepus-tests-{}-{count}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary directory can be written");
        DataDir(path)
    }

    /// In this place.
    pub fn at(path: PathBuf) -> DataDir {
        DataDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for DataDir {
    fn default() -> DataDir {
        DataDir::new()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits for the end of a process, but not for ever.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("our child") {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The first line on standard output, or nothing when the process ends or is silent. The rest is read and
/// dropped, so that the pipe never fills.
fn first_line(child: &mut Child) -> Option<String> {
    let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = output.read_line(&mut line).unwrap_or(0);
        let _ = sender.send((read > 0).then_some(line));
        let _ = std::io::copy(&mut output, &mut std::io::sink());
    });
    receiver.recv_timeout(START).ok().flatten()
}

/// Reads a stream to its end in the background. Lives as long as the test process: a few lines each.
fn collect(mut stream: impl std::io::Read + Send + 'static) -> &'static Mutex<String> {
    let text: &'static Mutex<String> = Box::leak(Box::default());
    thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = stream.by_ref().read(&mut chunk) {
            text.lock().expect("no panic").push_str(&String::from_utf8_lossy(&chunk[..read]));
        }
    });
    text
}

/// `lepus 0.1.0 ready: amqp on 127.0.0.1:5672, 2 shards ...`
fn address_of(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("ready: amqp on ")?;
    rest.split([',', ' ']).next()?.trim().parse().ok()
}

/// The binary under test, built by cargo in the profile of the tests when it is missing or older than a source.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("LEPUS_BIN") {
            return path.into();
        }
        let test = std::env::current_exe().expect("a test knows its own path");
        let folder = test.parent().and_then(Path::parent).expect("tests are in target/PROFILE/deps");
        let path = folder.join("lepus");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace");
        if modified(&path).is_none_or(|built| newest_source(root) > Some(built)) {
            build(root, folder);
        }
        path
    })
}

fn build(root: &Path, folder: &Path) {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let status = Command::new(env!("CARGO"))
        .args(["build", "--package", "lepus", "--bin", "lepus", "--profile", profile, "--target-dir"])
        .arg(folder.parent().expect("profiles are in target/"))
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .expect("cargo runs");
    assert!(status.success(), "cargo build: {status}");
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// When the youngest file that the binary is made of was written.
fn newest_source(folder: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let times = entries.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let elsewhere = name.starts_with('.') || ["target", "tests", "node_modules"].contains(&&*name);
            return if elsewhere { None } else { newest_source(&entry.path()) };
        }
        let source = name.ends_with(".rs") || name == "Cargo.toml" || name == "Cargo.lock";
        if source { modified(&entry.path()) } else { None }
    });
    times.max()
}
