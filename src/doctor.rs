//! `lepus doctor`: examines this host for the broker that the configuration describes, and shows or follows
//! what comes of it.
//!
//! Runs on the main thread, without a broker. It changes nothing but by `--fix --yes`, and then with the very
//! commands that `--fix --dry-run` prints.

use std::fmt::Write as _;
use std::io;
use std::process::Command;

use lepus_tuning::cpus::Cpus;
use lepus_tuning::doctor::{Host, Probes, Report, Subject, examine};
use lepus_tuning::files::FILES;
use thiserror::Error;

use crate::boot::place_shards;
use crate::config::{Config, Durability, Profile};

/// Why the doctor does not answer, or does not like the host.
#[derive(Debug, Error)]
pub enum DoctorError {
    /// It was asked to change the host, but not in so many words.
    #[error("--fix changes this host: see what it would do with --fix --dry-run, then give --yes")]
    Unconfirmed,
    /// There is no such file to print.
    #[error("there is no file `{name}` to print; there are {}", file_names())]
    NoSuchFile {
        /// What was asked for.
        name: String,
    },
    /// The host does not do for the broker.
    #[error("this host is not fit for the broker; see what is marked as unfit")]
    Unfit,
    /// Some of the commands did not work.
    #[error("{failed} of {tried} changes failed; is this root?")]
    NotChanged {
        /// So many did not.
        failed: usize,
        /// Of so many.
        tried: usize,
    },
}

/// What to do with the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Show them to people.
    Show,
    /// Show them to programs.
    ShowJson,
    /// Show the commands.
    DryRun,
    /// Run the commands.
    Fix,
}

impl Action {
    /// What the flags ask for.
    ///
    /// # Errors
    /// [`DoctorError::Unconfirmed`] for `--fix` alone.
    pub fn of_flags(json: bool, fix: bool, dry_run: bool, yes: bool) -> Result<Action, DoctorError> {
        match (fix, dry_run, yes) {
            (false, ..) if json => Ok(Action::ShowJson),
            (false, ..) => Ok(Action::Show),
            (true, true, _) => Ok(Action::DryRun),
            (true, false, true) => Ok(Action::Fix),
            (true, false, false) => Err(DoctorError::Unconfirmed),
        }
    }
}

/// What the doctor has to say, and whether that is bad.
pub type Answer = (String, Result<(), DoctorError>);

/// Examines this host for a broker with this configuration.
pub fn doctor(config: &Config, action: Action) -> Answer {
    let subject = subject(config);
    let report = examine(&Host::this(), &subject, &Probes::of_this_host(&subject));
    answer(&report, action, run)
}

fn answer(report: &Report, action: Action, run: impl Fn(&str) -> io::Result<()>) -> Answer {
    let verdict = if report.is_fit() { Ok(()) } else { Err(DoctorError::Unfit) };
    match action {
        Action::Show => (report.table(), verdict),
        Action::ShowJson => (report.json(), verdict),
        Action::DryRun => (report.script(), Ok(())),
        Action::Fix => fix(report, run),
    }
}

fn subject(config: &Config) -> Subject {
    Subject {
        data_dir: config.data_dir.clone(),
        cpus: Cpus::of_this_process().and_then(|cpus| place_shards(config, &cpus)),
        dedicated: config.profile == Profile::Dedicated,
        syncs: config.durability == Durability::Fsync,
        disk_free_limit_bytes: config.disk_free_limit_mib << 20,
    }
}

/// Runs all commands: one that fails does not keep the others from being tried.
fn fix(report: &Report, run: impl Fn(&str) -> io::Result<()>) -> Answer {
    let (mut text, mut tried, mut failed) = (String::new(), 0, 0);
    for (finding, command) in report.commands() {
        tried += 1;
        let result = match run(command) {
            Ok(()) => "done".to_owned(),
            Err(error) => {
                failed += 1;
                format!("failed: {error}")
            }
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}: {command}: {result}", finding.name);
    }
    if tried == 0 {
        text.push_str("nothing to change\n");
    }
    (text, if failed == 0 { Ok(()) } else { Err(DoctorError::NotChanged { failed, tried }) })
}

fn run(command: &str) -> io::Result<()> {
    let output = Command::new("sh").args(["-euc", command]).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(match said.lines().next() {
        Some(line) => line.to_owned(),
        None => output.status.to_string(),
    }))
}

/// One of the files to install.
///
/// # Errors
/// [`DoctorError::NoSuchFile`].
pub fn print_file(name: &str) -> Result<&'static str, DoctorError> {
    let file = FILES.iter().find(|file| file.name == name);
    file.map(|file| file.text).ok_or_else(|| DoctorError::NoSuchFile { name: name.to_owned() })
}

fn file_names() -> String {
    FILES.iter().map(|file| file.name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::path::Path;

    use lepus_tuning::uring::{Uring, UringError};

    use super::*;
    use crate::test_dir::TestDir;

    /// A host with little else than too small a backlog, with or without io_uring.
    fn report(uring: Result<Uring, UringError>) -> Report {
        let dir = TestDir::new();
        let sysctl = dir.path().join("proc/sys/net/core/somaxconn");
        fs::create_dir_all(sysctl.parent().unwrap()).unwrap();
        fs::write(sysctl, "128\n").unwrap();
        let subject = Subject { cpus: Ok(vec![0]), ..subject(&Config::default()) };
        let directory = Path::new("/").to_owned();
        let probes = Probes {
            uring,
            directory,
            free_bytes: Ok(1 << 40),
            write_cost: Err(io::ErrorKind::PermissionDenied.into()),
        };
        examine(&Host::at(dir.path()), &subject, &probes)
    }

    fn good() -> Report {
        report(Ok(Uring { fast_poll: true, ext_arg: true, nodrop: true }))
    }

    fn never(command: &str) -> io::Result<()> {
        panic!("nothing may be changed, but this would be run: {command}")
    }

    #[test]
    fn fixing_has_to_be_asked_for_in_so_many_words() {
        let action = |flags: [bool; 4]| Action::of_flags(flags[0], flags[1], flags[2], flags[3]).ok();
        assert_eq!(action([false, false, false, false]), Some(Action::Show));
        assert_eq!(action([true, false, false, false]), Some(Action::ShowJson));
        assert_eq!(action([false, true, false, false]), None);
        assert_eq!(action([false, true, true, false]), Some(Action::DryRun));
        assert_eq!(action([false, true, true, true]), Some(Action::DryRun));
        assert_eq!(action([false, true, false, true]), Some(Action::Fix));
    }

    #[test]
    fn advice_alone_is_no_failure_and_an_unfit_host_is() {
        for action in [Action::Show, Action::ShowJson] {
            assert!(answer(&good(), action, never).1.is_ok());
            let (text, verdict) = answer(&report(Err(UringError::Missing)), action, never);
            assert!(matches!(verdict, Err(DoctorError::Unfit)));
            assert!(text.contains("unfit"), "{text}");
        }
    }

    #[test]
    fn a_dry_run_prints_what_fixing_runs_and_runs_nothing() {
        let (script, verdict) = answer(&good(), Action::DryRun, never);
        assert!(verdict.is_ok());
        let ran = RefCell::new(Vec::new());
        let (text, verdict) = answer(&good(), Action::Fix, |command| {
            ran.borrow_mut().push(command.to_owned());
            Ok(())
        });
        assert!(verdict.is_ok());
        assert_eq!(*ran.borrow(), ["sysctl -w net.core.somaxconn='4096'"]);
        assert!(script.contains(&ran.borrow()[0]) && text.ends_with(": done\n"), "{script}{text}");
    }

    #[test]
    fn a_change_that_fails_is_named_and_makes_the_command_fail() {
        let (text, verdict) = answer(&good(), Action::Fix, |_| Err(io::Error::other("read-only")));
        assert!(matches!(verdict, Err(DoctorError::NotChanged { failed: 1, tried: 1 })));
        assert!(text.contains("failed: read-only"), "{text}");
    }

    #[test]
    fn a_command_fails_with_what_it_said() {
        assert!(run("true").is_ok());
        assert_eq!(run("echo no way >&2; false").unwrap_err().to_string(), "no way");
        assert!(run("false").unwrap_err().to_string().contains("exit status: 1"));
    }

    #[test]
    fn files_are_printed_by_name() {
        assert!(print_file("unit").unwrap().contains("[Service]"));
        assert_eq!(
            print_file("x").unwrap_err().to_string(),
            "there is no file `x` to print; there are unit, sysctl, udev, limits, tmpfiles"
        );
    }
}
