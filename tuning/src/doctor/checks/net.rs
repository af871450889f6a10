//! Sysctls of the network.

use crate::doctor::finding::{Check, Finding, Fix};
use crate::doctor::host::Host;

/// Connections that may wait to be accepted: what the broker asks for when it listens.
const BACKLOG_MIN: u64 = 4096;

/// Bytes that a socket's buffers must be able to grow to: a window for 10 Gbit/s over 3 ms.
const BUFFER_MIN_BYTES: u64 = 4 << 20;

const BACKLOG: Check = Check {
    name: "accept backlog",
    reason: "When all clients come back at once, those that find the backlog full try again after a second.",
};

pub(in crate::doctor) fn backlog(host: &Host) -> Finding {
    at_least(host, &BACKLOG, "net.core.somaxconn", BACKLOG_MIN)
}

const SYN_BACKLOG: Check = Check {
    name: "SYN backlog",
    reason: "As for the accept backlog: connections that are only half open wait here.",
};

pub(in crate::doctor) fn syn_backlog(host: &Host) -> Finding {
    at_least(host, &SYN_BACKLOG, "net.ipv4.tcp_max_syn_backlog", BACKLOG_MIN)
}

const SLOW_START: Check = Check {
    name: "slow start after idle",
    reason: "With it, a connection that was quiet for a moment sends its next burst in small steps.",
};

pub(in crate::doctor) fn slow_start(host: &Host) -> Finding {
    const KEY: &str = "net.ipv4.tcp_slow_start_after_idle";
    match host.number::<u64>(path(KEY)) {
        None => SLOW_START.cannot_tell(format!("no /{}", path(KEY))),
        Some(0) => SLOW_START.ok(format!("{KEY} = 0")),
        Some(value) => SLOW_START.advice(format!("{KEY} = {value}"), Fix::sysctl(KEY, 0)),
    }
}

const BUFFERS: Check = Check {
    name: "socket buffers",
    reason: "A connection over a distance carries no more than one buffer for each round trip.",
};

/// The third number of `tcp_rmem` and of `tcp_wmem` is how large buffers may grow.
pub(in crate::doctor) fn buffers(host: &Host) -> Finding {
    const KEYS: [&str; 2] = ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"];
    let mut found = Vec::new();
    let mut commands = Vec::new();
    for key in KEYS {
        let Some(text) = host.text(path(key)) else {
            return BUFFERS.cannot_tell(format!("no /{}", path(key)));
        };
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [min, default, max] = numbers[..] else {
            return BUFFERS.cannot_tell(format!("{key} = {text}, which are not three numbers"));
        };
        found.push(format!("{key} up to {max}"));
        if max < BUFFER_MIN_BYTES {
            commands.push(format!("sysctl -w {key}='{min} {default} {BUFFER_MIN_BYTES}'"));
        }
    }
    match commands.is_empty() {
        true => BUFFERS.ok(found.join(", ")),
        false => BUFFERS.advice(found.join(", "), Fix::command(commands.join(" && "))),
    }
}

fn at_least(host: &Host, check: &Check, key: &str, wanted: u64) -> Finding {
    match host.number::<u64>(path(key)) {
        None => check.cannot_tell(format!("no /{}", path(key))),
        Some(value) if value >= wanted => check.ok(format!("{key} = {value}")),
        Some(value) => check.advice(format!("{key} = {value}"), Fix::sysctl(key, wanted)),
    }
}

fn path(key: &str) -> String {
    format!("proc/sys/{}", key.replace('.', "/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;
    use crate::doctor::host::tests::host;

    #[test]
    fn short_backlogs_get_a_sysctl() {
        for (check, key) in [
            (backlog as fn(&Host) -> Finding, "net.core.somaxconn"),
            (syn_backlog, "net.ipv4.tcp_max_syn_backlog"),
        ] {
            let found = |value: &str| check(&host(&[(&path(key), value)]).0);
            assert_eq!(found("4096\n").verdict, Verdict::Ok);
            let short = found("128\n");
            assert_eq!(short.verdict, Verdict::Advice);
            assert_eq!(short.fix, Some(Fix::command(format!("sysctl -w {key}='4096'"))));
            assert_eq!(check(&host(&[]).0).verdict, Verdict::CannotTell);
        }
    }

    #[test]
    fn slow_start_after_idle_is_to_be_off() {
        let found = |value: &str| {
            slow_start(&host(&[("proc/sys/net/ipv4/tcp_slow_start_after_idle", value)]).0).verdict
        };
        assert_eq!(found("0\n"), Verdict::Ok);
        assert_eq!(found("1\n"), Verdict::Advice);
        assert_eq!(slow_start(&host(&[]).0).verdict, Verdict::CannotTell);
    }

    #[test]
    fn only_the_buffer_that_is_too_small_is_changed() {
        let found = |read: &str, write: &str| {
            let files = [("proc/sys/net/ipv4/tcp_rmem", read), ("proc/sys/net/ipv4/tcp_wmem", write)];
            buffers(&host(&files).0)
        };
        let large = "4096\t131072\t6291456\n";
        assert_eq!(found(large, large).verdict, Verdict::Ok);
        let small = found(large, "4096\t16384\t65536\n");
        assert_eq!(small.verdict, Verdict::Advice);
        assert_eq!(small.fix, Some(Fix::command("sysctl -w net.ipv4.tcp_wmem='4096 16384 4194304'")));
        assert_eq!(found("x\n", large).verdict, Verdict::CannotTell);
        assert_eq!(buffers(&host(&[]).0).verdict, Verdict::CannotTell);
    }
}
