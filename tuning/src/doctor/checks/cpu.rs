//! CPUs: where shards go, at which speed they run, how deep they sleep, and who else is on them.

use crate::cpus::format_list;
use crate::doctor::Subject;
use crate::doctor::finding::{Check, Finding, Fix};
use crate::doctor::host::Host;

const CPUS: &str = "sys/devices/system/cpu";

/// A CPU that takes longer than this to wake up from an idle state is felt: about what all the rest of
/// a wake-up costs.
const EXIT_LATENCY_MAX_US: u64 = 20;

const PLACEMENT: Check = Check {
    name: "shard placement",
    reason: "Shards that share a CPU, or get less of it than a whole one, wait for one another in the middle of \
             their work.",
};

pub(in crate::doctor) fn placement(subject: &Subject, quota: Option<f64>) -> Finding {
    let cpus = match &subject.cpus {
        Ok(cpus) => cpus,
        Err(error) => {
            return PLACEMENT.unfit(error.to_string(), Fix::by_hand("change `cpus` in the configuration"));
        }
    };
    let mut distinct = cpus.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let shards = match cpus.len() {
        1 => "1 shard".to_owned(),
        count => format!("{count} shards"),
    };
    let found = format!("{shards} on CPU {}", format_list(&distinct));
    if distinct.len() < cpus.len() {
        return PLACEMENT
            .advice(found, Fix::by_hand("run at most one shard for each CPU (`shards`, `cpus`)"));
    }
    match quota {
        Some(quota) if quota < cpus.len() as f64 => PLACEMENT.advice(
            format!("{found}, but the control group has a quota of {quota:.2} CPUs"),
            Fix::by_hand(
                "raise the quota (CPUQuota= in the systemd unit, --cpus of a container), or run fewer shards",
            ),
        ),
        _ => PLACEMENT.ok(found),
    }
}

const GOVERNOR: Check = Check {
    name: "frequency governor",
    reason: "With another governor a CPU slows down between messages, and the next one waits until it is fast again.",
};

pub(in crate::doctor) fn governor(host: &Host, subject: &Subject) -> Finding {
    let governors: Vec<String> = subject
        .shard_cpus()
        .iter()
        .filter_map(|cpu| host.text(format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor")))
        .collect();
    match governors.iter().find(|governor| *governor != "performance") {
        None if governors.is_empty() => GOVERNOR.cannot_tell(format!(
            "no /{CPUS}/cpu*/cpufreq: the firmware or the hypervisor decides about frequencies"
        )),
        None => GOVERNOR.ok("performance"),
        Some(other) => GOVERNOR.advice(
            other.as_str(),
            Fix::command(format!(
                "for f in /{CPUS}/cpu*/cpufreq/scaling_governor; do echo performance > \"$f\"; done"
            )),
        ),
    }
}

const IDLE: Check = Check {
    name: "idle states",
    reason: "A CPU in a deep idle state takes this long to come back, for each message that finds it asleep.",
};

pub(in crate::doctor) fn idle_states(host: &Host, subject: &Subject) -> Finding {
    let states: Vec<String> = subject
        .shard_cpus()
        .iter()
        .map(|cpu| format!("{CPUS}/cpu{cpu}/cpuidle"))
        .flat_map(|path| {
            let names = host.names(&path).unwrap_or_default();
            names.into_iter().map(move |state| format!("{path}/{state}"))
        })
        .collect();
    if states.is_empty() {
        return IDLE.cannot_tell(format!("no /{CPUS}/cpu*/cpuidle: the hypervisor decides how CPUs sleep"));
    }
    let mut deep: Vec<String> = states
        .iter()
        .filter(|state| host.text(format!("{state}/disable")).as_deref() == Some("0"))
        .filter_map(|state| {
            let latency_us: u64 = host.number(format!("{state}/latency"))?;
            let name = host.text(format!("{state}/name"))?;
            (latency_us > EXIT_LATENCY_MAX_US).then(|| format!("{name} ({latency_us} µs)"))
        })
        .collect();
    // Most machines have the same ones on each CPU.
    deep.sort();
    deep.dedup();
    if deep.is_empty() {
        return IDLE.ok(format!("none with more than {EXIT_LATENCY_MAX_US} µs"));
    }
    IDLE.advice(
        deep.join(", "),
        Fix::command(format!(
            "for d in /{CPUS}/cpu*/cpuidle/state*; do [ \"$(cat \"$d/latency\")\" -le {EXIT_LATENCY_MAX_US} ] || echo 1 > \
             \"$d/disable\"; done"
        )),
    )
}

const ISOLATION: Check = Check {
    name: "isolated cores",
    reason: "On a machine of its own, a shard is not interrupted by other processes on a core that the scheduler \
             leaves alone.",
};

pub(in crate::doctor) fn isolation(host: &Host, subject: &Subject) -> Finding {
    let Some(isolated) = host.cpu_list(format!("{CPUS}/isolated")) else {
        return ISOLATION.cannot_tell(format!("no /{CPUS}/isolated"));
    };
    let cpus = subject.shard_cpus();
    let exposed: Vec<usize> = cpus.iter().copied().filter(|cpu| !isolated.contains(cpu)).collect();
    if !subject.dedicated {
        return ISOLATION.ok("not needed with the profile `shared`");
    }
    if exposed.is_empty() {
        return ISOLATION.ok(format!("CPU {}", format_list(&isolated)));
    }
    let online = host.cpu_list(format!("{CPUS}/online")).unwrap_or_default();
    if online.len() <= cpus.len() {
        return ISOLATION.advice(
            "every CPU runs a shard, and none is left for the rest of the system",
            Fix::by_hand("leave a core to the system: name the others in `cpus`, and isolate those"),
        );
    }
    let list = format_list(&exposed);
    ISOLATION.advice(
        format!("CPU {list} not isolated"),
        Fix::by_hand(format!(
            "boot with isolcpus={list} nohz_full={list} rcu_nocbs={list} on the kernel's command line"
        )),
    )
}

const SIBLINGS: Check = Check {
    name: "SMT siblings",
    reason: "Two hardware threads of one core share its execution units and caches: two shards there are hardly \
             faster than one, and each is slower.",
};

pub(in crate::doctor) fn siblings(host: &Host, subject: &Subject) -> Finding {
    let cpus = subject.shard_cpus();
    let mut known = false;
    let (mut alone, mut doubled) = (Vec::new(), Vec::new());
    for cpu in cpus {
        let Some(siblings) = host.cpu_list(format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list")) else {
            continue;
        };
        known = true;
        let shared = alone.iter().any(|other| siblings.contains(other));
        if shared { doubled.push(*cpu) } else { alone.push(*cpu) }
    }
    if !known {
        return SIBLINGS.cannot_tell(format!("no /{CPUS}/cpu*/topology"));
    }
    if doubled.is_empty() {
        return SIBLINGS.ok("one shard for each core");
    }
    alone.sort_unstable();
    SIBLINGS.advice(
        format!("CPU {} share cores with other shards", format_list(&doubled)),
        Fix::by_hand(format!("run one shard for each core: cpus = \"{}\"", format_list(&alone))),
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cpus::CpusError;
    use crate::doctor::finding::Verdict;
    use crate::doctor::host::tests::host;

    fn subject(cpus: &[usize]) -> Subject {
        Subject {
            data_dir: PathBuf::from("/data"),
            cpus: Ok(cpus.to_vec()),
            dedicated: true,
            syncs: true,
            disk_free_limit_bytes: 0,
        }
    }

    #[test]
    fn shards_want_whole_cpus_of_their_own() {
        let fine = placement(&subject(&[0, 1, 2]), None);
        assert_eq!((fine.verdict, fine.found.as_str()), (Verdict::Ok, "3 shards on CPU 0-2"));
        assert_eq!(placement(&subject(&[0, 1]), Some(2.0)).verdict, Verdict::Ok);
        assert_eq!(placement(&subject(&[0, 1]), Some(1.5)).verdict, Verdict::Advice);
        assert_eq!(placement(&subject(&[1, 0, 1]), None).verdict, Verdict::Advice);
        let refused =
            Subject { cpus: Err(CpusError::NotAllowed { missing: 9, allowed: vec![0] }), ..subject(&[]) };
        assert_eq!(placement(&refused, None).verdict, Verdict::Unfit);
    }

    #[test]
    fn only_the_performance_governor_is_ok() {
        let found = |governor: &str| {
            let (host, _dir) = host(&[
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
                ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", governor),
            ]);
            governor_of(&host)
        };
        fn governor_of(host: &Host) -> Finding {
            super::governor(host, &subject(&[0, 1]))
        }
        assert_eq!(found("performance\n").verdict, Verdict::Ok);
        let slow = found("powersave\n");
        assert_eq!((slow.verdict, slow.found.as_str()), (Verdict::Advice, "powersave"));
        assert!(matches!(slow.fix, Some(Fix::Command(_))));
        assert_eq!(governor_of(&host(&[]).0).verdict, Verdict::CannotTell);
    }

    #[test]
    fn deep_idle_states_that_are_on_get_advice() {
        let found = |disabled: &str| {
            let path = "sys/devices/system/cpu/cpu1/cpuidle";
            let (host, _dir) = host(&[
                ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
                (&format!("{path}/state0/name"), "POLL\n"),
                (&format!("{path}/state0/latency"), "0\n"),
                (&format!("{path}/state0/disable"), "0\n"),
                (&format!("{path}/state1/name"), "C6\n"),
                (&format!("{path}/state1/latency"), "133\n"),
                (&format!("{path}/state1/disable"), disabled),
            ]);
            idle_states(&host, &subject(&[0, 1]))
        };
        let deep = found("0\n");
        assert_eq!((deep.verdict, deep.found.as_str()), (Verdict::Advice, "C6 (133 µs)"));
        assert_eq!(found("1\n").verdict, Verdict::Ok);
        assert_eq!(idle_states(&host(&[]).0, &subject(&[0])).verdict, Verdict::CannotTell);
    }

    #[test]
    fn a_dedicated_broker_wants_isolated_cores_and_a_shared_one_does_not() {
        let found = |isolated: &str, subject: &Subject| {
            let (host, _dir) = host(&[
                ("sys/devices/system/cpu/isolated", isolated),
                ("sys/devices/system/cpu/online", "0-3\n"),
            ]);
            isolation(&host, subject)
        };
        assert_eq!(found("2-3\n", &subject(&[2, 3])).verdict, Verdict::Ok);
        let exposed = found("\n", &subject(&[2, 3]));
        assert_eq!(exposed.verdict, Verdict::Advice);
        let Some(Fix::ByHand(text)) = exposed.fix else { panic!("{:?}", exposed.fix) };
        assert!(text.contains("isolcpus=2,3 "), "{text}");
        assert!(found("\n", &subject(&[0, 1, 2, 3])).found.contains("none is left"));
        assert_eq!(found("\n", &Subject { dedicated: false, ..subject(&[2]) }).verdict, Verdict::Ok);
        assert_eq!(isolation(&host(&[]).0, &subject(&[0])).verdict, Verdict::CannotTell);
    }

    #[test]
    fn two_shards_on_one_core_get_a_list_without_the_second_one() {
        let path = |cpu: usize| format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let (host, _dir) =
            host(&[(&path(0), "0,2\n"), (&path(1), "1,3\n"), (&path(2), "0,2\n"), (&path(3), "1,3\n")]);
        assert_eq!(siblings(&host, &subject(&[0, 3])).verdict, Verdict::Ok);
        let both = siblings(&host, &subject(&[0, 1, 2, 3]));
        assert_eq!(both.verdict, Verdict::Advice);
        assert_eq!(both.fix, Some(Fix::by_hand("run one shard for each core: cpus = \"0,1\"")));
    }

    #[test]
    fn a_host_without_topology_cannot_be_judged() {
        assert_eq!(siblings(&host(&[]).0, &subject(&[0, 1])).verdict, Verdict::CannotTell);
    }
}
