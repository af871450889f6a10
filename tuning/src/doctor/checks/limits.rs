//! Limits: locked memory, open files, mappings.
//!
//! Those of a process are the doctor's own. A service has its own from its unit: where the two differ, the
//! doctor is to be run as the service is (`systemd-run -p ...`, or in the container).

use crate::doctor::Subject;
use crate::doctor::finding::{Check, Finding, Fix};
use crate::doctor::host::Host;
use crate::kernel::KernelVersion;
use crate::limits::{CAP_IPC_LOCK, CAP_SYS_RESOURCE, NOFILE_LOW, capability, memlock_need};

/// A soft and a hard limit; `u64::MAX` is unlimited.
type Pair = (u64, u64);

/// Below this many mappings the broker may run out: the kernel's own default.
const MAPPINGS_LOW: u64 = 65_530;

const LOCKED: Check = Check {
    name: "locked memory",
    reason: "The executor of each shard refuses to start when less than this may be locked.",
};

pub(in crate::doctor) fn locked_memory(host: &Host, subject: &Subject) -> Finding {
    let Some((_, hard)) = limit(host, "Max locked memory") else {
        return LOCKED.cannot_tell("no /proc/self/limits");
    };
    let status = host.text("proc/self/status").unwrap_or_default();
    let kernel = host.text("proc/sys/kernel/osrelease").and_then(|release| KernelVersion::parse(&release));
    let need = memlock_need(subject.shard_cpus().len(), kernel, capability(&status, CAP_IPC_LOCK));
    let found = format!("{} may be locked, {} KiB are needed", kibibytes(hard), need / 1024);
    // A broker raises its limit to what it needs if it may.
    if hard >= need || capability(&status, CAP_SYS_RESOURCE) {
        LOCKED.ok(found)
    } else {
        LOCKED.unfit(
            found,
            Fix::by_hand(format!(
                "set LimitMEMLOCK={need} in the systemd unit, or put the file of `lepus doctor --print limits` into \
                 /etc/security/limits.d"
            )),
        )
    }
}

const FILES: Check =
    Check { name: "open files", reason: "Each connection needs one, and so does each segment of a log." };

pub(in crate::doctor) fn open_files(host: &Host) -> Finding {
    let Some((_, hard)) = limit(host, "Max open files") else {
        return FILES.cannot_tell("no /proc/self/limits");
    };
    // A broker raises the soft limit to the hard one.
    if hard >= NOFILE_LOW {
        FILES.ok(format!("{hard} may be open"))
    } else {
        FILES.advice(
            format!("{hard} may be open"),
            Fix::by_hand(
                "set LimitNOFILE=1048576 in the systemd unit, or put the file of `lepus doctor --print limits` into \
                 /etc/security/limits.d",
            ),
        )
    }
}

const MAPPINGS: Check = Check {
    name: "mappings",
    reason: "The allocator and the index of each shard map memory; a process that runs out of mappings ends.",
};

pub(in crate::doctor) fn mappings(host: &Host) -> Finding {
    match host.number::<u64>("proc/sys/vm/max_map_count") {
        None => MAPPINGS.cannot_tell("no /proc/sys/vm/max_map_count"),
        Some(count) if count >= MAPPINGS_LOW => MAPPINGS.ok(format!("vm.max_map_count = {count}")),
        Some(count) => {
            MAPPINGS.advice(format!("vm.max_map_count = {count}"), Fix::sysctl("vm.max_map_count", 262_144))
        }
    }
}

/// A line of `/proc/self/limits`: a name, which has spaces in it, and then the two values.
fn limit(host: &Host, name: &str) -> Option<Pair> {
    let text = host.text("proc/self/limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let mut values = line.split_whitespace().map(|value| match value {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    Some((values.next()??, values.next()??))
}

fn kibibytes(bytes: u64) -> String {
    if bytes == u64::MAX { "any amount".to_owned() } else { format!("{} KiB", bytes / 1024) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::doctor::finding::Verdict;
    use crate::doctor::host::tests::host;

    fn subject(shards: usize) -> Subject {
        Subject {
            data_dir: PathBuf::from("/data"),
            cpus: Ok((0..shards).collect()),
            dedicated: false,
            syncs: true,
            disk_free_limit_bytes: 0,
        }
    }

    fn limits(locked: &str, files: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1024                 {files}              files     \n\
             Max locked memory         8192                 {locked}             bytes     \n"
        )
    }

    #[test]
    fn too_little_locked_memory_is_unfit_unless_it_can_be_raised() {
        let verdict = |locked: &str, capabilities: &str, release: &str| {
            let (host, _dir) = host(&[
                ("proc/self/limits", &limits(locked, "1024")),
                ("proc/self/status", &format!("CapEff:\t{capabilities}\n")),
                ("proc/sys/kernel/osrelease", release),
            ]);
            locked_memory(&host, &subject(4)).verdict
        };
        assert_eq!(verdict("65536", "0", "6.1"), Verdict::Unfit);
        assert_eq!(verdict("524288", "0", "6.1"), Verdict::Ok);
        assert_eq!(verdict("524288", "0", "5.11"), Verdict::Unfit, "old kernels charge all rings");
        assert_eq!(verdict("unlimited", "0", "5.11"), Verdict::Ok);
        assert_eq!(verdict("65536", "1000000", "6.1"), Verdict::Ok, "CAP_SYS_RESOURCE raises it");
    }

    #[test]
    fn few_files_get_advice() {
        let verdict = |files: &str| open_files(&host(&[("proc/self/limits", &limits("0", files))]).0).verdict;
        assert_eq!(verdict("1048576"), Verdict::Ok);
        assert_eq!(verdict("4096"), Verdict::Advice);
    }

    #[test]
    fn few_mappings_get_a_sysctl() {
        let found = |count: &str| mappings(&host(&[("proc/sys/vm/max_map_count", count)]).0);
        assert_eq!(found("65530\n").verdict, Verdict::Ok);
        let few = found("1000\n");
        assert_eq!(few.verdict, Verdict::Advice);
        assert_eq!(few.fix, Some(Fix::command("sysctl -w vm.max_map_count='262144'")));
    }

    #[test]
    fn what_the_host_does_not_say_is_not_held_against_it() {
        let (empty, _dir) = host(&[]);
        assert_eq!(locked_memory(&empty, &subject(1)).verdict, Verdict::CannotTell);
        assert_eq!(open_files(&empty).verdict, Verdict::CannotTell);
        assert_eq!(mappings(&empty).verdict, Verdict::CannotTell);
    }
}
