//! What the broker's process costs, from `/proc`: all its threads together.
//!
//! CPU time is the figure that a noisy machine disturbs least, and it is counted by the kernel, not by the broker.
//! A [`Meter`] takes it for a stretch of time, beside that of this process.

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
    /// The most that was resident at a look since the start of the run. (The kernel's own peak is that of the
    /// process, and tells of earlier runs.)
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

    /// Bytes of memory that are resident now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn resident_bytes(self) -> Result<u64, BenchError> {
        let status = self.read("status")?;
        resident_bytes(&status).ok_or_else(|| self.error(io::ErrorKind::InvalidData.into()))
    }

    fn read(self, file: &str) -> Result<String, BenchError> {
        fs::read_to_string(format!("/proc/{}/{file}", self.0)).map_err(|source| self.error(source))
    }

    fn error(self, source: io::Error) -> BenchError {
        BenchError::Process { pid: self.0, source }
    }
}

/// CPU time from a start on: of the broker's process, if it is known, and of this one.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    process: Option<Process>,
    broker_s: f64,
    own_s: f64,
}

/// What a meter shows.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    /// CPU seconds of the broker.
    pub broker_s: Option<f64>,
    /// CPU seconds of this process, all threads.
    pub own_s: f64,
}

impl Meter {
    /// Starts now.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn start(process: Option<Process>) -> Result<Meter, BenchError> {
        let broker_s = process.map(Process::cpu_seconds).transpose()?.unwrap_or_default();
        Ok(Meter { process, broker_s, own_s: own_cpu_seconds() })
    }

    /// What was used since.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn used(&self) -> Result<CpuTime, BenchError> {
        let broker_s = self.process.map(Process::cpu_seconds).transpose()?;
        Ok(CpuTime {
            broker_s: broker_s.map(|now| now - self.broker_s),
            own_s: own_cpu_seconds() - self.own_s,
        })
    }
}

fn own_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Fields 14 and 15. The name in field 2 may hold blanks and brackets, so they are counted from its last bracket.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
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
        assert_eq!(resident_bytes("Name:\tx\nVmHWM:\t   30 kB\nVmRSS:\t   20 kB\n"), Some(20 * 1024));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }

    #[test]
    fn a_meter_charges_what_was_used_since_its_start() {
        let meter = Meter::start(Some(Process(std::process::id()))).unwrap();
        let mut sum = 0u64;
        while meter.used().unwrap().own_s < 0.05 {
            sum = std::hint::black_box(sum + 1);
        }
        // The kernel counts the one in ticks, the other exactly; other tests run beside.
        assert!(meter.used().unwrap().broker_s.unwrap() >= 0.03);
    }

    #[test]
    fn a_process_that_is_there_can_be_read() {
        let own = Process(std::process::id());
        assert!(own.resident_bytes().unwrap() > 0);
        assert!(own.cpu_seconds().unwrap() >= 0.0);
        assert!(Process(u32::MAX).cpu_seconds().is_err());
    }
}
