//! From a path to the file system it is on, and from there to the disk.

use std::path::{Path, PathBuf};

use super::host::Host;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Where.
    pub point: PathBuf,
    /// Its type: `ext4`.
    pub kind: String,
    /// Of the device, `8:17`.
    number: String,
    /// What is mounted: `/dev/sdb1`.
    source: String,
    options: Vec<String>,
}

impl Mount {
    /// The mount that this path is on; all links in it have been followed.
    pub(super) fn of(host: &Host, path: &Path) -> Option<Mount> {
        let table = host.text("proc/self/mountinfo")?;
        let mounts = table.lines().filter_map(Mount::parse).filter(|mount| path.starts_with(&mount.point));
        // The innermost; of several at one place, the one that was mounted last lies on top.
        mounts.max_by_key(|mount| mount.point.components().count())
    }

    /// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG...] - TYPE SOURCE OPTIONS`
    fn parse(line: &str) -> Option<Mount> {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let options = [*left.get(5)?, *right.get(2)?].into_iter().flat_map(|list| list.split(','));
        Some(Mount {
            point: PathBuf::from(unescape(left[4])),
            kind: right[0].to_owned(),
            number: left[2].to_owned(),
            source: unescape(right[1]),
            options: options.map(str::to_owned).collect(),
        })
    }

    /// An option with which the file system does not have the disk empty its cache.
    pub(super) fn unsafe_option(&self) -> Option<&str> {
        const UNSAFE: [&str; 3] = ["nobarrier", "barrier=0", "nobarriers"];
        self.options.iter().map(String::as_str).find(|option| UNSAFE.contains(option))
    }
}

/// Space, tab, newline and backslash are written in octal.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                plain.push(code.into());
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

/// The directory in `/sys` of the disk below a mount: of a partition the whole disk, of a mapped device the
/// first of those it is made of.
pub(super) fn disk_of(host: &Host, mount: &Mount) -> Option<PathBuf> {
    // btrfs and its like have numbers that are no device's.
    let by_number = host.follow(format!("sys/dev/block/{}", mount.number));
    let by_name = || host.follow(Path::new("sys/class/block").join(mount.source.strip_prefix("/dev/")?));
    let mut device = by_number.or_else(by_name)?;
    /// Encryption on a volume on a RAID, and then some.
    const LAYERS_MAX: usize = 8;
    for _ in 0..LAYERS_MAX {
        if host.names(device.join("queue")).is_none() {
            device.pop();
        }
        let below = host.names(device.join("slaves")).and_then(|names| names.into_iter().next());
        match below.and_then(|name| host.follow(device.join("slaves").join(name))) {
            Some(next) => device = next,
            None => break,
        }
    }
    host.names(device.join("queue")).is_some().then_some(device)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::doctor::host::tests::host;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw,discard
30 27 0:33 / /srv rw,relatime shared:5 master:1 - btrfs /dev/sdb2 rw,barrier=0
31 30 253:0 / /srv/my\\040data rw - xfs /dev/mapper/vg-data rw
32 27 0:40 / /srvx rw - tmpfs tmpfs rw
";

    #[test]
    fn the_innermost_mount_of_a_path_counts() {
        let (host, _dir) = host(&[("proc/self/mountinfo", TABLE)]);
        let at = |path: &str| Mount::of(&host, Path::new(path)).unwrap();
        assert_eq!(at("/var/lib").kind, "ext4");
        assert_eq!(at("/srv/other").kind, "btrfs");
        assert_eq!(at("/srv/my data/lepus").kind, "xfs");
        assert_eq!(at("/srvx").kind, "tmpfs");
        assert_eq!(at("/srv").unsafe_option(), Some("barrier=0"));
        assert_eq!(at("/").unsafe_option(), None);
    }

    #[test]
    fn a_mapped_device_leads_to_the_disk_below_it() {
        let (host, dir) = host(&[
            ("proc/self/mountinfo", TABLE),
            ("sys/devices/virtual/block/dm-0/queue/scheduler", "none"),
            ("sys/devices/pci0/block/sdb/queue/scheduler", "none"),
            ("sys/devices/pci0/block/sdb/sdb2/partition", "2"),
        ]);
        let sys = dir.path().join("sys");
        fs::create_dir_all(sys.join("devices/virtual/block/dm-0/slaves")).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        fs::create_dir_all(sys.join("class/block")).unwrap();
        let partition = sys.join("devices/pci0/block/sdb/sdb2");
        symlink(&partition, sys.join("devices/virtual/block/dm-0/slaves/sdb2")).unwrap();
        symlink(&partition, sys.join("class/block/sdb2")).unwrap();
        symlink(sys.join("devices/virtual/block/dm-0"), sys.join("dev/block/253:0")).unwrap();
        let disk = |path: &str| disk_of(&host, &Mount::of(&host, Path::new(path)).unwrap());
        let expected = Some(PathBuf::from("sys/devices/pci0/block/sdb"));
        assert_eq!(disk("/srv/my data"), expected);
        assert_eq!(disk("/srv"), expected, "a device without a number of its own is found by name");
        assert_eq!(disk("/srvx"), None);
    }
}
