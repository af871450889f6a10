//! What a check says: a verdict, what was found, why it matters, and what changes it.

/// How a host does on one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The broker runs, and would run better otherwise.
    Advice,
    /// The broker does not start, cannot be published to, or loses what it confirmed.
    Unfit,
    /// The host does not say.
    CannotTell,
}

impl Verdict {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Advice => "advice",
            Verdict::Unfit => "unfit",
            Verdict::CannotTell => "cannot tell",
        }
    }
}

/// What changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// A line for root's shell. It takes effect at once and can be run twice.
    Command(String),
    /// What a person has to decide: a kernel parameter, another disk, the configuration.
    ByHand(String),
}

impl Fix {
    /// A line for root's shell.
    pub(super) fn command(line: impl Into<String>) -> Fix {
        Fix::Command(line.into())
    }

    /// For a person.
    pub(super) fn by_hand(text: impl Into<String>) -> Fix {
        Fix::ByHand(text.into())
    }

    /// Sets a sysctl until the next boot; the file of `lepus doctor --print sysctl` sets it for good.
    pub(super) fn sysctl(key: &str, value: impl std::fmt::Display) -> Fix {
        Fix::Command(format!("sysctl -w {key}='{value}'"))
    }
}

/// One check's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check.
    pub name: &'static str,
    /// How the host does.
    pub verdict: Verdict,
    /// What was found, in a few words.
    pub found: String,
    /// Why it matters.
    pub reason: &'static str,
    /// What changes it, if it should be changed.
    pub fix: Option<Fix>,
}

/// A check's name, and why it is made.
pub(super) struct Check {
    pub name: &'static str,
    pub reason: &'static str,
}

impl Check {
    pub(super) fn ok(&self, found: impl Into<String>) -> Finding {
        self.finding(Verdict::Ok, found.into(), None)
    }

    pub(super) fn advice(&self, found: impl Into<String>, fix: Fix) -> Finding {
        self.finding(Verdict::Advice, found.into(), Some(fix))
    }

    pub(super) fn unfit(&self, found: impl Into<String>, fix: Fix) -> Finding {
        self.finding(Verdict::Unfit, found.into(), Some(fix))
    }

    /// With what is missing.
    pub(super) fn cannot_tell(&self, missing: impl Into<String>) -> Finding {
        self.finding(Verdict::CannotTell, missing.into(), None)
    }

    fn finding(&self, verdict: Verdict, found: String, fix: Option<Fix>) -> Finding {
        Finding { name: self.name, verdict, found, reason: self.reason, fix }
    }
}
