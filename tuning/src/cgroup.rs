//! What the control group of this process allows: memory and processor time.
//!
//! Limits hold along the whole way to the root, so the tightest counts. Both versions of the interface
//! are read. A group that is not visible (a container that mounts another group's tree) is looked for from
//! the root of what is mounted.

use std::fs;
use std::path::Path;

/// The limits that hold for this process; none where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct CgroupLimits {
    /// Most memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processor time per time: 1.5 is one and a half CPUs.
    pub cpus: Option<f64>,
}

/// The limits of this process's control group.
pub fn limits() -> CgroupLimits {
    limits_under(Path::new("/"))
}

/// The same on a host whose files stand under this directory.
pub(crate) fn limits_under(root: &Path) -> CgroupLimits {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    let mut limits = CgroupLimits::default();
    for line in membership.lines() {
        // hierarchy:controllers:path, for instance `0::/system.slice/x` or `4:cpu,cpuacct:/x`
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if controllers.is_empty() {
            along(&mount, path, |group| {
                limits.tighten_memory(read(group, "memory.max"));
                limits.tighten_cpus(quota_v2(&read(group, "cpu.max").unwrap_or_default()));
            });
        }
        if controllers.split(',').any(|name| name == "memory") {
            along(&mount.join("memory"), path, |group| {
                limits.tighten_memory(read(group, "memory.limit_in_bytes"));
            });
        }
        if controllers.split(',').any(|name| name == "cpu") {
            let mount =
                ["cpu,cpuacct", "cpu"].map(|name| mount.join(name)).into_iter().find(|path| path.is_dir());
            along(&mount.unwrap_or_default(), path, |group| {
                limits.tighten_cpus(quota_v1(
                    &read(group, "cpu.cfs_quota_us").unwrap_or_default(),
                    &read(group, "cpu.cfs_period_us").unwrap_or_default(),
                ));
            });
        }
    }
    limits
}

impl CgroupLimits {
    /// `max`, and the huge number that stands for it in version 1, are larger than any memory.
    fn tighten_memory(&mut self, text: Option<String>) {
        const NO_LIMIT_FROM: u64 = 1 << 60;
        let value = text.and_then(|text| text.parse().ok()).filter(|bytes| *bytes < NO_LIMIT_FROM);
        self.memory_bytes = [self.memory_bytes, value].into_iter().flatten().min();
    }

    fn tighten_cpus(&mut self, value: Option<f64>) {
        self.cpus = [self.cpus, value].into_iter().flatten().reduce(f64::min);
    }
}

/// Visits the group and those above it, up to the mount.
fn along(mount: &Path, group: &str, mut visit: impl FnMut(&Path)) {
    let group = Path::new(group.trim_start_matches('/'));
    for ancestor in group.ancestors() {
        visit(&mount.join(ancestor));
    }
}

fn read(group: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(group.join(file)).ok()?.trim().to_owned())
}

/// `200000 100000` or `max 100000`.
fn quota_v2(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    quota_v1(quota, period)
}

/// A quota of -1 is none.
fn quota_v1(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn host(files: &[(&str, &str)]) -> CgroupLimits {
        let dir = TestDir::new();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        limits_under(dir.path())
    }

    #[test]
    fn the_tightest_limit_on_the_way_to_the_root_counts() {
        let limits = host(&[
            ("proc/self/cgroup", "0::/system.slice/lepus.service\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "1000000\n"),
            ("sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/system.slice/lepus.service/memory.max", "2000000\n"),
            ("sys/fs/cgroup/system.slice/lepus.service/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(limits, CgroupLimits { memory_bytes: Some(1_000_000), cpus: Some(1.5) });
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let limits = host(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", "536870912\n"),
            ("sys/fs/cgroup/cpu.max", "200000 100000\n"),
        ]);
        assert_eq!(limits, CgroupLimits { memory_bytes: Some(536_870_912), cpus: Some(2.0) });
    }

    #[test]
    fn the_first_version_of_the_interface_is_read_too() {
        let limits = host(&[
            ("proc/self/cgroup", "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "7340032\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(limits, CgroupLimits { memory_bytes: Some(7_340_032), cpus: Some(0.5) });
    }

    #[test]
    fn no_group_and_no_limit_are_no_limit() {
        assert_eq!(host(&[]), CgroupLimits::default());
        let unlimited = host(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(unlimited, CgroupLimits::default());
    }
}
