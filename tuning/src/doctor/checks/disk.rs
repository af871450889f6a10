//! The disk of the data directory: file system, scheduler, space, and what a synchronous write costs.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::doctor::finding::{Check, Finding, Fix};
use crate::doctor::host::Host;
use crate::doctor::mount::{Mount, disk_of};
use crate::doctor::{Probes, Subject};

/// From here on, confirms take their time from the disk alone.
const WRITE_SLOW: Duration = Duration::from_millis(2);

/// No disk puts anything on stable storage in less.
const WRITE_TOO_QUICK: Duration = Duration::from_micros(5);

const FILE_SYSTEM: Check = Check {
    name: "file system",
    reason: "The log overwrites blocks in place, past the page cache, and relies on a synchronous write to survive a \
             loss of power; ext4 and xfs on a local disk do that.",
};

/// What speaks for or against a type of file system.
enum Kind {
    Good,
    Memory,
    /// With what is wrong about it.
    Doubtful(&'static str),
}

fn kind(name: &str) -> Kind {
    match name {
        "ext4" | "xfs" => Kind::Good,
        "tmpfs" | "ramfs" => Kind::Memory,
        "overlay" => Kind::Doubtful("a container's own layer, which goes with the container"),
        "btrfs" | "bcachefs" | "zfs" => Kind::Doubtful("copies blocks that are overwritten"),
        "ext2" | "ext3" | "vfat" | "exfat" => Kind::Doubtful("old, and slow at synchronous writes"),
        "nfs" | "nfs4" | "cifs" | "smb3" | "ceph" | "9p" | "virtiofs" => {
            Kind::Doubtful("over a network or a host")
        }
        name if name.starts_with("fuse") => Kind::Doubtful("a process between the broker and the disk"),
        _ => Kind::Doubtful("not known to lepus"),
    }
}

pub(in crate::doctor) fn file_system(host: &Host, subject: &Subject, directory: &Path) -> Finding {
    let Some(mount) = Mount::of(host, directory) else {
        return FILE_SYSTEM.cannot_tell("no mount of it in /proc/self/mountinfo");
    };
    let found = format!("{} at {}", mount.kind, mount.point.display());
    if let Some(option) = mount.unsafe_option().filter(|_| subject.syncs) {
        return FILE_SYSTEM.unfit(
            format!("{found}, mounted with {option}: a loss of power loses what was confirmed"),
            Fix::by_hand(format!("mount it without {option} (/etc/fstab)")),
        );
    }
    let elsewhere = || Fix::by_hand("put data_dir on ext4 or xfs on a local disk");
    match kind(&mount.kind) {
        Kind::Good => FILE_SYSTEM.ok(found),
        Kind::Memory if subject.syncs => FILE_SYSTEM.unfit(
            format!("{found}: memory, and what was confirmed is gone with the next boot"),
            Fix::by_hand("put data_dir on a disk, or promise no more than durability = \"os\""),
        ),
        Kind::Memory => {
            FILE_SYSTEM.advice(format!("{found}: memory, and gone with the next boot"), elsewhere())
        }
        Kind::Doubtful(what) => FILE_SYSTEM.advice(format!("{found}: {what}"), elsewhere()),
    }
}

const SCHEDULER: Check = Check {
    name: "disk scheduler",
    reason: "A scheduler that weighs processes against one another lets a confirm wait for others' reads; a disk without \
             heads needs none, and one with heads only deadlines.",
};

pub(in crate::doctor) fn scheduler(host: &Host, directory: &Path) -> Finding {
    let disk = Mount::of(host, directory).and_then(|mount| disk_of(host, &mount));
    let Some(disk) = disk else {
        return SCHEDULER.cannot_tell("the data directory is on no disk of this host");
    };
    let path = disk.join("queue/scheduler");
    let Some(scheduler) = host.chosen(&path) else {
        return SCHEDULER.cannot_tell(format!("no choice in /{}", path.display()));
    };
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let found = format!("{scheduler} on {name}");
    // A virtual disk says that it turns whatever is below it; deadlines cost it next to nothing.
    let turns = host.number::<u8>(disk.join("queue/rotational")) == Some(1);
    match scheduler.as_str() {
        "none" | "mq-deadline" => SCHEDULER.ok(found),
        _ => {
            let better = if turns { "mq-deadline" } else { "none" };
            SCHEDULER
                .advice(found, Fix::command(format!("echo {better} > /sys/block/{name}/queue/scheduler")))
        }
    }
}

const SPACE: Check = Check {
    name: "free space",
    reason: "Below `disk_free_limit_mib`, publishers are blocked and new durable definitions refused.",
};

pub(in crate::doctor) fn space(subject: &Subject, free_bytes: &io::Result<u64>) -> Finding {
    let (limit, mib) = (subject.disk_free_limit_bytes, 1 << 20);
    match free_bytes {
        Err(error) => SPACE.cannot_tell(error.to_string()),
        Ok(free) if *free < limit => SPACE.unfit(
            format!("{} MiB free, of which {} MiB must stay", free / mib, limit / mib),
            Fix::by_hand("make room on the disk of data_dir, or lower disk_free_limit_mib"),
        ),
        Ok(free) => SPACE.ok(format!("{} MiB", free / mib)),
    }
}

const WRITE_COST: Check = Check {
    name: "synchronous write",
    reason: "A confirm waits for one of these, however many messages it is for.",
};

pub(in crate::doctor) fn write_cost(host: &Host, subject: &Subject, probes: &Probes) -> Finding {
    let cost = match &probes.write_cost {
        Err(error) => {
            return WRITE_COST
                .cannot_tell(format!("nothing can be written to {}: {error}", probes.directory.display()));
        }
        Ok(cost) => cost,
    };
    let found =
        format!("{} µs, {}; longest {} µs", cost.median.as_micros(), cost.method(), cost.longest.as_micros());
    let in_memory =
        Mount::of(host, &probes.directory).is_some_and(|mount| matches!(kind(&mount.kind), Kind::Memory));
    if !subject.syncs || in_memory {
        return WRITE_COST.ok(found);
    }
    if cost.median > WRITE_SLOW {
        let better = "use a disk with a protected write cache (an SSD for servers)";
        return WRITE_COST.advice(found, Fix::by_hand(better));
    }
    if cost.median < WRITE_TOO_QUICK {
        let check =
            "find out whether the disk, its controller or the hypervisor keeps writes in volatile memory";
        return WRITE_COST.advice(format!("{found}: too quick to be on stable storage"), Fix::by_hand(check));
    }
    WRITE_COST.ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::doctor::WriteCost;
    use crate::doctor::finding::Verdict;
    use crate::doctor::host::tests::host;
    use crate::uring::Uring;

    fn subject() -> Subject {
        Subject {
            data_dir: PathBuf::from("/srv/data"),
            cpus: Ok(vec![0]),
            dedicated: true,
            syncs: true,
            disk_free_limit_bytes: 256 << 20,
        }
    }

    fn mounted(kind: &str, options: &str) -> String {
        format!(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:17 / /srv rw,{options} shared:1 - {kind} /dev/sdb1 rw\n"
        )
    }

    #[test]
    fn the_data_belong_on_a_local_disk_that_keeps_its_promises() {
        let verdict = |kind: &str, options: &str, subject: &Subject| {
            let (host, _dir) = host(&[("proc/self/mountinfo", &mounted(kind, options))]);
            file_system(&host, subject, Path::new("/srv/data")).verdict
        };
        assert_eq!(verdict("ext4", "relatime", &subject()), Verdict::Ok);
        assert_eq!(verdict("xfs", "noatime", &subject()), Verdict::Ok);
        for doubtful in ["btrfs", "overlay", "nfs4", "fuse.sshfs", "whatever"] {
            assert_eq!(verdict(doubtful, "relatime", &subject()), Verdict::Advice, "{doubtful}");
        }
        assert_eq!(verdict("tmpfs", "relatime", &subject()), Verdict::Unfit);
        assert_eq!(verdict("ext4", "nobarrier", &subject()), Verdict::Unfit);
        let promises_less = Subject { syncs: false, ..subject() };
        assert_eq!(verdict("tmpfs", "relatime", &promises_less), Verdict::Advice);
        assert_eq!(verdict("ext4", "nobarrier", &promises_less), Verdict::Ok);
        let cannot = file_system(&host(&[]).0, &subject(), Path::new("/srv/data"));
        assert_eq!(cannot.verdict, Verdict::CannotTell);
    }

    #[test]
    fn a_weighing_scheduler_gets_advice_for_the_whole_disk_of_a_partition() {
        let found = |text: &str, turns: &str| {
            let (host, dir) = host(&[
                ("proc/self/mountinfo", &mounted("ext4", "relatime")),
                ("sys/devices/pci0/block/sdb/queue/rotational", turns),
                ("sys/devices/pci0/block/sdb/queue/scheduler", text),
                ("sys/devices/pci0/block/sdb/sdb1/partition", "1\n"),
            ]);
            fs::create_dir_all(dir.path().join("sys/dev/block")).unwrap();
            std::os::unix::fs::symlink(
                "../../devices/pci0/block/sdb/sdb1",
                dir.path().join("sys/dev/block/8:17"),
            )
            .unwrap();
            scheduler(&host, Path::new("/srv/data"))
        };
        assert_eq!(found("[none] mq-deadline bfq\n", "0\n").verdict, Verdict::Ok);
        assert_eq!(found("none [mq-deadline] bfq\n", "0\n").verdict, Verdict::Ok);
        let weighing = found("none mq-deadline [bfq]\n", "0\n");
        assert_eq!((weighing.verdict, weighing.found.as_str()), (Verdict::Advice, "bfq on sdb"));
        assert_eq!(weighing.fix, Some(Fix::command("echo none > /sys/block/sdb/queue/scheduler")));
        let with_heads = found("none mq-deadline [bfq]\n", "1\n");
        assert_eq!(with_heads.fix, Some(Fix::command("echo mq-deadline > /sys/block/sdb/queue/scheduler")));
        assert_eq!(scheduler(&host(&[]).0, Path::new("/srv")).verdict, Verdict::CannotTell);
    }

    #[test]
    fn a_disk_below_its_limit_is_unfit() {
        assert_eq!(space(&subject(), &Ok(1 << 30)).verdict, Verdict::Ok);
        assert_eq!(space(&subject(), &Ok(1 << 20)).verdict, Verdict::Unfit);
        assert_eq!(space(&subject(), &Err(io::ErrorKind::NotFound.into())).verdict, Verdict::CannotTell);
    }

    #[test]
    fn a_slow_disk_and_one_that_cannot_be_true_get_advice() {
        let (ext4, _dir) = host(&[("proc/self/mountinfo", &mounted("ext4", "relatime"))]);
        let found = |cost: io::Result<WriteCost>, subject: &Subject| {
            let probes = Probes {
                uring: Ok(Uring { fast_poll: true, ext_arg: true, nodrop: true }),
                directory: PathBuf::from("/srv/data"),
                free_bytes: Ok(0),
                write_cost: cost,
            };
            write_cost(&ext4, subject, &probes)
        };
        let micros = |us| {
            Ok(WriteCost {
                median: Duration::from_micros(us),
                longest: Duration::from_micros(us * 2),
                direct: true,
            })
        };
        let good = found(micros(100), &subject());
        assert_eq!(good.verdict, Verdict::Ok);
        assert_eq!(
            good.found,
            "100 µs, median of 64 overwrites of 4 KiB with O_DIRECT and O_DSYNC; longest 200 µs"
        );
        assert_eq!(found(micros(9000), &subject()).verdict, Verdict::Advice);
        assert!(found(micros(1), &subject()).found.contains("too quick"));
        assert_eq!(found(micros(9000), &Subject { syncs: false, ..subject() }).verdict, Verdict::Ok);
        let denied = Err(io::ErrorKind::PermissionDenied.into());
        assert_eq!(found(denied, &subject()).verdict, Verdict::CannotTell);
    }
}
