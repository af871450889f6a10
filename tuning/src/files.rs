//! The files that an operator installs. They stand in `tuning/files` and are part of the binary, so that a
//! host that has the one has the others.

/// A file, and where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFile {
    /// How it is asked for.
    pub name: &'static str,
    /// Where it is to be put.
    pub path: &'static str,
    /// What is in it.
    pub text: &'static str,
}

/// All of them.
pub const FILES: &[HostFile] = &[
    HostFile {
        name: "unit",
        path: "/etc/systemd/system/lepus.service",
        text: include_str!("../files/lepus.service"),
    },
    HostFile {
        name: "sysctl",
        path: "/etc/sysctl.d/60-lepus.conf",
        text: include_str!("../files/sysctl.conf"),
    },
    HostFile {
        name: "udev",
        path: "/etc/udev/rules.d/60-lepus.rules",
        text: include_str!("../files/udev.rules"),
    },
    HostFile {
        name: "limits",
        path: "/etc/security/limits.d/60-lepus.conf",
        text: include_str!("../files/limits.conf"),
    },
    HostFile {
        name: "tmpfiles",
        path: "/etc/tmpfiles.d/lepus.conf",
        text: include_str!("../files/tmpfiles.conf"),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> &'static str {
        FILES.iter().find(|file| file.name == name).unwrap().text
    }

    #[test]
    fn each_file_says_where_it_belongs() {
        for file in FILES {
            assert!(file.text.contains(file.path), "{}", file.path);
            assert!(file.text.starts_with('#') && file.text.ends_with('\n'), "{}", file.path);
        }
    }

    #[test]
    fn the_unit_waits_for_ready_and_has_a_watchdog() {
        for line in ["Type=notify", "WatchdogSec=30", "RestartPreventExitStatus=2", "NoNewPrivileges=yes"] {
            assert!(text("unit").lines().any(|of_unit| of_unit == line), "{line}");
        }
    }

    #[test]
    fn the_sysctl_file_sets_what_the_doctor_advises() {
        for key in [
            "net.core.somaxconn",
            "net.ipv4.tcp_max_syn_backlog",
            "net.ipv4.tcp_slow_start_after_idle",
            "net.ipv4.tcp_rmem",
            "net.ipv4.tcp_wmem",
            "vm.swappiness",
            "vm.max_map_count",
        ] {
            assert!(text("sysctl").lines().any(|line| line.starts_with(&format!("{key} = "))), "{key}");
        }
    }
}
