//! The kernel's version. A hint only: what a kernel can do is probed, and versions are compared where
//! a probe would be of no use.

use std::{fmt, fs};

/// Major and minor number of a Linux kernel; they order as versions do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// 6 in 6.18.
    pub major: u32,
    /// 18 in 6.18.
    pub minor: u32,
}

impl KernelVersion {
    /// The oldest whose io_uring has every operation that the executor submits.
    pub const OLDEST_SUPPORTED: KernelVersion = KernelVersion { major: 5, minor: 11 };

    /// The version of the running kernel, if it says.
    pub fn running() -> Option<KernelVersion> {
        KernelVersion::parse(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
    }

    /// Reads a release such as `6.18.44-generic`.
    pub fn parse(release: &str) -> Option<KernelVersion> {
        let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(KernelVersion { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_read() {
        let version = |major, minor| Some(KernelVersion { major, minor });
        assert_eq!(KernelVersion::parse("6.18.44-fc\n"), version(6, 18));
        assert_eq!(KernelVersion::parse("5.14.0-427.el9.x86_64"), version(5, 14));
        assert_eq!(KernelVersion::parse("7.0-rc1"), version(7, 0));
        assert_eq!(KernelVersion::parse("7"), None);
        assert_eq!(KernelVersion::parse("GNU"), None);
    }

    #[test]
    fn versions_are_ordered_by_number_and_not_by_letter() {
        assert!(KernelVersion::parse("5.4.0") < KernelVersion::parse("5.15.0"));
        assert!(KernelVersion::parse("4.20.1") < Some(KernelVersion::OLDEST_SUPPORTED));
    }

    #[test]
    fn the_running_kernel_says_its_version() {
        assert!(KernelVersion::running() > KernelVersion::parse("3.0"));
    }
}
