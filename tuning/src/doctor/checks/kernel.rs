//! The kernel: its version, io_uring, and the clock.

use crate::doctor::finding::{Check, Finding, Fix};
use crate::doctor::host::Host;
use crate::kernel::KernelVersion;
use crate::uring::{Uring, UringError};

/// The first whose rings can hand results over without interrupting the thread that made them.
const COOPERATIVE: KernelVersion = KernelVersion { major: 5, minor: 19 };

const VERSION: Check = Check {
    name: "kernel",
    reason: "The broker does all its I/O through io_uring, and 5.11 is the first kernel with all that it needs; \
             from 5.19 on, a write that ends does not interrupt the shard.",
};

pub(in crate::doctor) fn version(host: &Host) -> Finding {
    let Some(release) = host.text("proc/sys/kernel/osrelease") else {
        return VERSION.cannot_tell("no /proc/sys/kernel/osrelease");
    };
    let found = format!("Linux {release}");
    match KernelVersion::parse(&release) {
        None => VERSION.cannot_tell(format!("{found}, which is not a version")),
        Some(version) if version < KernelVersion::OLDEST_SUPPORTED => VERSION
            .unfit(found, Fix::by_hand(format!("run Linux {} or later", KernelVersion::OLDEST_SUPPORTED))),
        Some(version) if version < COOPERATIVE => {
            VERSION.advice(found, Fix::by_hand(format!("run Linux {COOPERATIVE} or later")))
        }
        Some(_) => VERSION.ok(found),
    }
}

const IO_URING: Check = Check {
    name: "io_uring",
    reason: "Sockets and disks are driven through io_uring, and there is no other way; without fast poll each \
             waiting socket costs a kernel thread.",
};

pub(in crate::doctor) fn io_uring(probe: &Result<Uring, UringError>) -> Finding {
    match probe {
        Ok(Uring { fast_poll: true, ext_arg: true, nodrop: true }) => IO_URING.ok("all that is needed"),
        Ok(uring) => {
            let features =
                [("fast_poll", uring.fast_poll), ("ext_arg", uring.ext_arg), ("nodrop", uring.nodrop)];
            let lacking: Vec<_> =
                features.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
            IO_URING.advice(
                format!("without {}", lacking.join(", ")),
                Fix::by_hand(format!("run Linux {COOPERATIVE} or later")),
            )
        }
        Err(error @ UringError::Disabled { .. }) => {
            IO_URING.unfit(error.to_string(), Fix::sysctl("kernel.io_uring_disabled", 0))
        }
        Err(error) => IO_URING.unfit(error.to_string(), Fix::by_hand("see what was found")),
    }
}

const CLOCK: Check = Check {
    name: "clock",
    reason: "A shard asks for the time in each turn; from these clocks that is a system call, or a slow read from \
             a device.",
};

pub(in crate::doctor) fn clock(host: &Host) -> Finding {
    const SLOW: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];
    let path = "sys/devices/system/clocksource/clocksource0";
    let Some(current) = host.text(format!("{path}/current_clocksource")) else {
        return CLOCK.cannot_tell(format!("no /{path}"));
    };
    if !SLOW.contains(&current.as_str()) {
        return CLOCK.ok(current);
    }
    let available = host.text(format!("{path}/available_clocksource")).unwrap_or_default();
    let better = available.split_whitespace().find(|name| !SLOW.contains(name));
    match better {
        Some(name) => {
            CLOCK.advice(current, Fix::command(format!("echo {name} > /{path}/current_clocksource")))
        }
        None => CLOCK.advice(
            current,
            Fix::by_hand(
                "find in `dmesg` why the kernel does not trust the tsc; often the firmware is to blame",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::doctor::finding::Verdict;
    use crate::doctor::host::tests::host;

    #[test]
    fn an_old_kernel_is_unfit_and_a_middle_aged_one_gets_advice() {
        let verdict = |release: &str| {
            let (host, _dir) = host(&[("proc/sys/kernel/osrelease", release)]);
            version(&host).verdict
        };
        assert_eq!(verdict("5.10.0-30-amd64\n"), Verdict::Unfit);
        assert_eq!(verdict("5.15.0-100-generic\n"), Verdict::Advice);
        assert_eq!(verdict("6.12.1\n"), Verdict::Ok);
        assert_eq!(verdict("GNU\n"), Verdict::CannotTell);
    }

    #[test]
    fn no_ring_is_unfit_and_the_sysctl_can_be_changed() {
        let all = Uring { fast_poll: true, ext_arg: true, nodrop: true };
        assert_eq!(io_uring(&Ok(all)).verdict, Verdict::Ok);
        let lacking = io_uring(&Ok(Uring { fast_poll: false, ..all }));
        assert_eq!((lacking.verdict, lacking.found.as_str()), (Verdict::Advice, "without fast_poll"));
        let off = io_uring(&Err(UringError::Disabled { sysctl: 2 }));
        assert_eq!(off.verdict, Verdict::Unfit);
        assert_eq!(off.fix, Some(Fix::command("sysctl -w kernel.io_uring_disabled='0'")));
        let forbidden =
            io_uring(&Err(UringError::Forbidden { source: io::ErrorKind::PermissionDenied.into() }));
        assert_eq!(forbidden.verdict, Verdict::Unfit);
        assert!(forbidden.found.contains("seccomp"));
    }

    #[test]
    fn a_slow_clock_is_exchanged_for_a_quick_one_if_there_is_one() {
        let found = |current: &str, available: &str| {
            let path = "sys/devices/system/clocksource/clocksource0";
            let (host, _dir) = host(&[
                (&format!("{path}/current_clocksource"), current),
                (&format!("{path}/available_clocksource"), available),
            ]);
            clock(&host)
        };
        assert_eq!(found("tsc\n", "tsc hpet\n").verdict, Verdict::Ok);
        assert_eq!(found("kvm-clock\n", "kvm-clock\n").verdict, Verdict::Ok);
        let slow = found("hpet\n", "hpet tsc acpi_pm\n");
        assert_eq!(slow.verdict, Verdict::Advice);
        let Some(Fix::Command(line)) = slow.fix else { panic!("{:?}", slow.fix) };
        assert!(line.starts_with("echo tsc > /sys/"), "{line}");
        assert!(matches!(found("hpet\n", "hpet acpi_pm\n").fix, Some(Fix::ByHand(_))));
    }
}
