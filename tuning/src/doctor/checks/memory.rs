//! Memory: huge pages and swapping.

use crate::doctor::finding::{Check, Finding, Fix};
use crate::doctor::host::Host;

/// More than this, and the kernel swaps out what was not touched for a while though there is memory.
const SWAPPINESS_MAX: u64 = 10;

const HUGE_PAGES: Check = Check {
    name: "transparent huge pages",
    reason: "With `always`, the kernel stops a thread to make room for a huge page, and many small heaps take more \
             memory than they use.",
};

pub(in crate::doctor) fn huge_pages(host: &Host) -> Finding {
    let path = "sys/kernel/mm/transparent_hugepage";
    let Some(enabled) = host.chosen(format!("{path}/enabled")) else {
        return HUGE_PAGES.cannot_tell(format!("no /{path}/enabled"));
    };
    if enabled == "always" {
        HUGE_PAGES.advice(enabled, Fix::command(format!("echo madvise > /{path}/enabled")))
    } else {
        HUGE_PAGES.ok(enabled)
    }
}

const SWAPPING: Check = Check {
    name: "swapping",
    reason: "A shard that touches a page in swap stands still until the disk has brought it back.",
};

pub(in crate::doctor) fn swapping(host: &Host) -> Finding {
    let Some(swaps) = host.text("proc/swaps") else {
        return SWAPPING.cannot_tell("no /proc/swaps");
    };
    // Below a line of headings.
    if swaps.lines().count() <= 1 {
        return SWAPPING.ok("no swap");
    }
    match host.number::<u64>("proc/sys/vm/swappiness") {
        None => SWAPPING.cannot_tell("no /proc/sys/vm/swappiness"),
        Some(value) if value <= SWAPPINESS_MAX => SWAPPING.ok(format!("vm.swappiness = {value}")),
        Some(value) => SWAPPING.advice(format!("vm.swappiness = {value}"), Fix::sysctl("vm.swappiness", 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;
    use crate::doctor::host::tests::host;

    #[test]
    fn huge_pages_for_everybody_get_advice() {
        let found = |text: &str| huge_pages(&host(&[("sys/kernel/mm/transparent_hugepage/enabled", text)]).0);
        assert_eq!(found("always [madvise] never\n").verdict, Verdict::Ok);
        assert_eq!(found("always madvise [never]\n").verdict, Verdict::Ok);
        let always = found("[always] madvise never\n");
        assert_eq!(always.verdict, Verdict::Advice);
        let command = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        assert_eq!(always.fix, Some(Fix::command(command)));
        assert_eq!(huge_pages(&host(&[]).0).verdict, Verdict::CannotTell);
    }

    #[test]
    fn swappiness_matters_where_there_is_swap() {
        const NONE: &str = "Filename\tType\tSize\tUsed\tPriority\n";
        let some = format!("{NONE}/dev/sda2\tpartition\t1\t0\t-2\n");
        let found = |swaps: &str, swappiness: &str| {
            swapping(&host(&[("proc/swaps", swaps), ("proc/sys/vm/swappiness", swappiness)]).0)
        };
        assert_eq!(found(NONE, "60\n").verdict, Verdict::Ok);
        assert_eq!(found(&some, "1\n").verdict, Verdict::Ok);
        let high = found(&some, "60\n");
        assert_eq!(high.verdict, Verdict::Advice);
        assert_eq!(high.fix, Some(Fix::command("sysctl -w vm.swappiness='1'")));
        assert_eq!(swapping(&host(&[]).0).verdict, Verdict::CannotTell);
    }
}
