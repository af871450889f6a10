//! What the operating system knows: memory and signals of a process, limits of our own.
//!
//! The only module here with unsafe code, for the system calls that std does not offer.

use std::fs;
use std::io;

/// Resident memory of a process, in bytes.
///
/// # Panics
/// When the process does not exist.
pub fn resident_bytes(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a running process has VmRSS");
    let kib: usize =
        line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("VmRSS is in kB");
    kib * 1024
}

/// CPU time that a process has used so far, in seconds, to a hundredth.
///
/// # Panics
/// When the process does not exist.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    // The name in brackets may have spaces. Behind it, 11 fields on, are user and system time in 1/100 s.
    let (_, fields) = stat.rsplit_once(") ").expect("the name is in brackets");
    let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number"));
    ticks.sum::<u64>() as f64 / 100.0
}

/// Sends a signal to a child that has not been waited for.
pub fn signal(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).expect("process ids are small");
    // SAFETY: kill takes two integers and touches no memory of ours. The pid is that of a child whose exit
    // was not collected yet, so it names no other process.
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "kill: {}", io::Error::last_os_error());
}

/// Raises the soft limit of open files to the hard one and says what it is.
pub fn raise_open_files() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes one rlimit to a place that is valid for it.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    assert_eq!(result, 0, "getrlimit: {}", io::Error::last_os_error());
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: setrlimit reads one initialised rlimit.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(result, 0, "setrlimit: {}", io::Error::last_os_error());
    limit.rlim_cur
}
