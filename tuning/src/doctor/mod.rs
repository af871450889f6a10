//! `lepus doctor`: is this host fit for a broker, and what would make it better.
//!
//! | module | what it owns |
//! |---|---|
//! | `host` | reading `/proc` and `/sys`, or a copy of them |
//! | `finding` | what a check says |
//! | `checks` | the checks |
//! | `mount` | from a path to its file system and its disk |
//! | `write_cost` | measuring the disk |
//! | `report` | all findings as a table, as JSON, as a script |
//!
//! A check reads the host and judges; it changes nothing. What is not to be read in a file (may this process
//! make a ring, how long does a write take) is asked before, by [`Probes::of_this_host`], so that each
//! check can be tried on a copy of any host. A file that is not there, as in a container, is no error: the
//! check says that it cannot tell.

#![forbid(unsafe_code)]

mod checks;
mod finding;
mod host;
mod mount;
mod report;
mod write_cost;

use std::io;
use std::path::{Path, PathBuf};

pub use finding::{Finding, Fix, Verdict};
pub use host::Host;
pub use report::Report;
pub use write_cost::WriteCost;

use crate::cpus::CpusError;
use crate::uring::{self, Uring, UringError};
use crate::{cgroup, disk};

/// What is to run on the host.
#[derive(Debug)]
pub struct Subject {
    /// Where data go; need not exist yet.
    pub data_dir: PathBuf,
    /// One shard on each, as the broker would place them.
    pub cpus: Result<Vec<usize>, CpusError>,
    /// The machine is the broker's alone.
    pub dedicated: bool,
    /// Confirms promise stable storage, unless a queue says otherwise.
    pub syncs: bool,
    /// Free space below which publishers are blocked.
    pub disk_free_limit_bytes: u64,
}

impl Subject {
    /// CPUs with shards on them; none where they are not to be had.
    fn shard_cpus(&self) -> &[usize] {
        self.cpus.as_deref().unwrap_or_default()
    }
}

/// What only a system call can tell.
#[derive(Debug)]
pub struct Probes {
    /// Whether a ring can be made.
    pub uring: Result<Uring, UringError>,
    /// The directory that was asked, with all links followed: the data directory, or what of its path exists.
    pub directory: PathBuf,
    /// Free bytes there.
    pub free_bytes: io::Result<u64>,
    /// What a synchronous write costs there.
    pub write_cost: io::Result<WriteCost>,
}

impl Probes {
    /// Asks the kernel and the disk: 4 KiB are written some dozens of times to a file that is gone afterwards.
    pub fn of_this_host(subject: &Subject) -> Probes {
        let directory = existing(&subject.data_dir);
        Probes {
            uring: uring::check(),
            free_bytes: disk::free_bytes(&directory),
            write_cost: WriteCost::measure(&directory),
            directory,
        }
    }
}

/// The path, or as much of it as exists.
fn existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = absolute.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
    existing.unwrap_or_else(|| PathBuf::from("/"))
}

/// All checks, in the order in which they are shown.
pub fn examine(host: &Host, subject: &Subject, probes: &Probes) -> Report {
    use checks::{cpu, disk, kernel, limits, memory, net, numa};
    let quota = cgroup::limits_under(host.root()).cpus;
    Report::new(vec![
        kernel::version(host),
        kernel::io_uring(&probes.uring),
        kernel::clock(host),
        limits::locked_memory(host, subject),
        limits::open_files(host),
        limits::mappings(host),
        cpu::placement(subject, quota),
        cpu::governor(host, subject),
        cpu::idle_states(host, subject),
        cpu::isolation(host, subject),
        cpu::siblings(host, subject),
        numa::network(host, subject),
        numa::storage(host, subject, &probes.directory),
        numa::interrupts(host, subject),
        memory::huge_pages(host),
        memory::swapping(host),
        disk::file_system(host, subject, &probes.directory),
        disk::scheduler(host, &probes.directory),
        disk::space(subject, &probes.free_bytes),
        disk::write_cost(host, subject, probes),
        net::backlog(host),
        net::syn_backlog(host),
        net::slow_start(host),
        net::buffers(host),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn subject(data_dir: &Path) -> Subject {
        Subject {
            data_dir: data_dir.to_owned(),
            cpus: Ok(vec![0]),
            dedicated: true,
            syncs: true,
            disk_free_limit_bytes: 0,
        }
    }

    #[test]
    fn a_host_without_files_is_no_error_and_nothing_is_held_against_it() {
        let empty = TestDir::new();
        let probes = Probes {
            uring: Ok(Uring { fast_poll: true, ext_arg: true, nodrop: true }),
            directory: PathBuf::from("/data"),
            free_bytes: Ok(1 << 40),
            write_cost: Err(io::ErrorKind::PermissionDenied.into()),
        };
        let report = examine(&Host::at(empty.path()), &subject(Path::new("/data")), &probes);
        assert!(report.is_fit());
        let told: Vec<_> = report.findings().iter().filter(|f| f.verdict != Verdict::CannotTell).collect();
        let names: Vec<_> = told.iter().map(|finding| finding.name).collect();
        assert_eq!(names, ["io_uring", "shard placement", "free space"]);
    }

    #[test]
    fn this_host_is_examined_and_nothing_is_left_behind() {
        let dir = TestDir::new();
        let subject = subject(&dir.path().join("not/there/yet"));
        let probes = Probes::of_this_host(&subject);
        assert_eq!(probes.directory, dir.path().canonicalize().unwrap());
        let report = examine(&Host::this(), &subject, &probes);
        let names: std::collections::HashSet<_> = report.findings().iter().map(|f| f.name).collect();
        assert_eq!(names.len(), report.findings().len(), "a name stands for one check");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
