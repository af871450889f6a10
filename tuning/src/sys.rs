//! The system calls that neither std nor a crate of ours offers. The package's only unsafe code.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A soft and a hard limit; `u64::MAX` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

#[derive(Clone, Copy)]
pub enum Resource {
    /// Bytes of locked memory.
    Memlock,
    /// One more than the highest file descriptor.
    Nofile,
}

impl Resource {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Resource::Memlock => libc::RLIMIT_MEMLOCK,
            Resource::Nofile => libc::RLIMIT_NOFILE,
        }
    }
}

pub fn limit(resource: Resource) -> io::Result<Limit> {
    let mut value = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `value` is a valid rlimit, alive and ours for the whole call.
    let status = unsafe { libc::getrlimit(resource.number(), &raw mut value) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Limit { soft: value.rlim_cur, hard: value.rlim_max })
}

pub fn set_limit(resource: Resource, limit: Limit) -> io::Result<()> {
    let value = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    // SAFETY: `value` is a valid rlimit that the kernel only reads.
    let status = unsafe { libc::setrlimit(resource.number(), &raw const value) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Most CPUs that a kernel can be built for, with room: the mask must be at least as long as the
/// kernel's own, or the call fails.
const CPUS_MAX: usize = 16_384;
const WORD_BITS: usize = u64::BITS as usize;

/// The CPUs that the calling thread may run on, in rising order.
pub fn affinity() -> io::Result<Vec<usize>> {
    let mut mask = [0_u64; CPUS_MAX / WORD_BITS];
    // SAFETY: the kernel writes at most the given number of bytes into `mask`, which is that long and
    // aligned at least as strictly as a cpu_set_t. Zeroed before, so what it leaves out means "no".
    let status = unsafe {
        libc::sched_getaffinity(0, std::mem::size_of_val(&mask), mask.as_mut_ptr().cast::<libc::cpu_set_t>())
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..CPUS_MAX).filter(|cpu| mask[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1 == 1).collect())
}

pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all bytes zero is a valid statvfs.
    let mut value: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a NUL, and both are alive and ours for the whole call.
    let status = unsafe { libc::statvfs(path.as_ptr(), &raw mut value) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value.f_bavail * value.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_affinity_is_what_the_kernel_reports_elsewhere() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(affinity().unwrap(), crate::cpus::parse_list(list.trim()).unwrap());
    }

    #[test]
    fn a_limit_can_be_read_and_set_to_what_it_is() {
        // Of memory only: another test raises the one of files meanwhile.
        let before = limit(Resource::Memlock).unwrap();
        assert!(before.soft <= before.hard);
        set_limit(Resource::Memlock, before).unwrap();
        assert_eq!(limit(Resource::Memlock).unwrap(), before);
    }
}
