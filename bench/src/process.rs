//! What the broker's process costs, from `/proc`: all its threads together.
//!
//! CPU time is the figure that a noisy machine disturbs least, and it is counted by the kernel, not by the broker.

use std::fs;
use std::io;

use crate::error::BenchError;

/// The kernel counts CPU time for user space in hundredths of a second, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub u32);

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident now.
    pub resident: u64,
    /// The most that was ever resident.
    pub peak: u64,
}

impl Process {
    /// CPU seconds used so far, user and system.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn cpu_seconds(self) -> Result<f64, BenchError> {
        let stat = self.read("stat")?;
        cpu_seconds(&stat).ok_or_else(|| self.error(io::ErrorKind::InvalidData.into()))
    }

    /// Resident memory.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn memory(self) -> Result<Memory, BenchError> {
        let status = self.read("status")?;
        memory(&status).ok_or_else(|| self.error(io::ErrorKind::InvalidData.into()))
    }

    fn read(self, file: &str) -> Result<String, BenchError> {
        fs::read_to_string(format!("/proc/{}/{file}", self.0)).map_err(|source| self.error(source))
    }

    fn error(self, source: io::Error) -> BenchError {
        BenchError::Process { pid: self.0, source }
    }
}

/// Fields 14 and 15. The name in field 2 may hold blanks and brackets, so they are counted from its last bracket.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

fn memory(status: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(Memory { resident: field("VmRSS")?, peak: field("VmHWM")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "12 (a) (b c) S 1 12 12 0 -1 4194560 7 0 0 0 150 50 9 9 20 0 4 0 1 2 3";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(cpu_seconds("12 (a) S 1"), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t   30 kB\nVmRSS:\t   20 kB\n";
        assert_eq!(memory(status), Some(Memory { resident: 20 * 1024, peak: 30 * 1024 }));
        assert_eq!(memory("Name:\tx\n"), None);
    }

    #[test]
    fn a_process_that_is_there_can_be_read() {
        let own = Process(std::process::id());
        assert!(own.memory().unwrap().peak > 0);
        assert!(own.cpu_seconds().unwrap() >= 0.0);
        assert!(Process(u32::MAX).cpu_seconds().is_err());
    }
}
