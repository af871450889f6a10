//! How much memory there is for this process.

use std::{fs, io};

use crate::cgroup;

/// The host's memory or the control group's limit, whichever is less, in bytes.
///
/// # Errors
/// When the host does not say how much it has and no group limits it.
pub fn available_bytes() -> io::Result<u64> {
    let physical = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let limits = [physical, cgroup::limits().memory_bytes];
    limits.into_iter().flatten().min().ok_or_else(|| io::Error::other("/proc/meminfo names no MemTotal"))
}

fn total(meminfo: &str) -> Option<u64> {
    let kibibytes = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(kibibytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_meminfo() {
        assert_eq!(total("MemTotal:        4025320 kB\nMemFree:  1 kB\n"), Some(4_025_320 * 1024));
        assert_eq!(total("MemFree:  1 kB\n"), None);
    }

    #[test]
    fn this_host_has_memory() {
        assert!(available_bytes().unwrap() > 1 << 20);
    }
}
