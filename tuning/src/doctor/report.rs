//! All findings: the verdict on the host, and the ways to show it.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::finding::{Finding, Fix, Verdict};

/// What the doctor found.
#[derive(Clone, Debug)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(findings: Vec<Finding>) -> Report {
        Report { findings }
    }

    /// One for each check.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether the broker runs here and keeps what it confirms. Advice does not count.
    pub fn is_fit(&self) -> bool {
        self.count(Verdict::Unfit) == 0
    }

    /// The commands that follow the advice, for root's shell.
    pub fn commands(&self) -> impl Iterator<Item = (&Finding, &str)> {
        self.findings.iter().filter_map(|finding| match &finding.fix {
            Some(Fix::Command(line)) => Some((finding, line.as_str())),
            _ => None,
        })
    }

    /// For people: a line for each check, and below it what should be changed and why.
    pub fn table(&self) -> String {
        let width = self.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Finding { name, verdict, found, reason, fix } in &self.findings {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:<11}  {name:<width$}  {found}", verdict.name());
            let mut below = |what: &str, text_below: &str| {
                let _ = writeln!(text, "{:>11}  {text_below}", what);
            };
            if matches!(verdict, Verdict::Advice | Verdict::Unfit) {
                below("why:", reason);
            }
            match fix {
                Some(Fix::Command(line)) => below("run:", line),
                Some(Fix::ByHand(instruction)) => below("do:", instruction),
                None => {}
            }
        }
        let _ = writeln!(text, "\n{}", self.summary());
        text
    }

    /// In one line.
    fn summary(&self) -> String {
        let advice = match self.count(Verdict::Advice) {
            0 => "no advice".to_owned(),
            1 => "1 piece of advice".to_owned(),
            count => format!("{count} pieces of advice"),
        };
        let unknown = match self.count(Verdict::CannotTell) {
            0 => String::new(),
            count => format!(", {count} not to be told"),
        };
        let verdict = match self.count(Verdict::Unfit) {
            0 => "fit".to_owned(),
            1 => "not fit: 1 thing must be changed".to_owned(),
            count => format!("not fit: {count} things must be changed"),
        };
        format!("{verdict}; {advice}{unknown}")
    }

    /// For programs: `{"fit": bool, "checks": [{"name", "verdict", "found", "reason", "command", "by_hand"}]}`.
    pub fn json(&self) -> String {
        let checks: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                let (command, by_hand) = match &finding.fix {
                    Some(Fix::Command(line)) => (Some(line), None),
                    Some(Fix::ByHand(text)) => (None, Some(text)),
                    None => (None, None),
                };
                json!({
                    "name": finding.name,
                    "verdict": finding.verdict.name(),
                    "found": finding.found,
                    "reason": finding.reason,
                    "command": command,
                    "by_hand": by_hand,
                })
            })
            .collect();
        format!("{:#}\n", json!({ "fit": self.is_fit(), "checks": checks }))
    }

    /// A shell script of all commands. What a person has to decide stands in it as comments.
    pub fn script(&self) -> String {
        let mut text = String::from(
            "#!/bin/sh\n# What `lepus doctor` would change on this host; to be run by root. It lasts until the next \
             boot.\n# For good: the files of `lepus doctor --print sysctl` and `--print udev`.\nset -eu\n",
        );
        for finding in &self.findings {
            let Some(fix) = &finding.fix else { continue };
            let _ = write!(text, "\n# {}: {}. {}\n", finding.name, finding.found, finding.reason);
            let _ = match fix {
                Fix::Command(line) => writeln!(text, "{line}"),
                Fix::ByHand(instruction) => writeln!(text, "# By hand: {instruction}"),
            };
        }
        text
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::finding::Check;
    use super::*;

    const CHECK: Check = Check { name: "swapping", reason: "A page that comes back stops a shard." };

    fn report() -> Report {
        Report::new(vec![
            CHECK.ok("no swap"),
            CHECK.advice("vm.swappiness = 60", Fix::sysctl("vm.swappiness", 1)),
            CHECK.advice("swap on a slow disk", Fix::by_hand("use another disk")),
            CHECK.cannot_tell("no /proc/swaps"),
        ])
    }

    #[test]
    fn only_what_stops_a_broker_or_loses_data_makes_a_host_unfit() {
        assert!(report().is_fit());
        assert_eq!(report().summary(), "fit; 2 pieces of advice, 1 not to be told");
        let unfit = Report::new(vec![CHECK.unfit("full", Fix::by_hand("make room"))]);
        assert!(!unfit.is_fit());
        assert_eq!(unfit.summary(), "not fit: 1 thing must be changed; no advice");
    }

    #[test]
    fn the_table_says_why_and_what_to_do_where_something_is_to_be_done() {
        let expected = "\
ok           swapping  no swap
advice       swapping  vm.swappiness = 60
       why:  A page that comes back stops a shard.
       run:  sysctl -w vm.swappiness='1'
advice       swapping  swap on a slow disk
       why:  A page that comes back stops a shard.
        do:  use another disk
cannot tell  swapping  no /proc/swaps

fit; 2 pieces of advice, 1 not to be told
";
        assert_eq!(report().table(), expected);
    }

    #[test]
    fn json_has_every_check_with_its_command() {
        let value: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(value["fit"], true);
        assert_eq!(value["checks"].as_array().unwrap().len(), 4);
        assert_eq!(value["checks"][1]["command"], "sysctl -w vm.swappiness='1'");
        assert_eq!(value["checks"][1]["by_hand"], Value::Null);
        assert_eq!(value["checks"][2]["by_hand"], "use another disk");
        assert_eq!(value["checks"][3]["verdict"], "cannot tell");
        assert_eq!(value["checks"][0]["reason"], CHECK.reason);
    }

    #[test]
    fn the_script_runs_the_commands_and_only_mentions_the_rest() {
        let script = report().script();
        let lines: Vec<_> =
            script.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        assert_eq!(lines, ["set -eu", "sysctl -w vm.swappiness='1'"]);
        assert!(script.contains("# By hand: use another disk"));
        let parsed = Command::new("sh").args(["-n", "-c", &script]).status().unwrap();
        assert!(parsed.success(), "{script}");
        assert_eq!(
            report().commands().map(|(_, line)| line).collect::<Vec<_>>(),
            ["sysctl -w vm.swappiness='1'"]
        );
    }
}
