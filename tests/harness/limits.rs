//! How long the tests wait and how much they do.

use std::time::Duration;

/// The longest silence that a test accepts where something is due: then the broker hangs, and the test fails.
/// No test asserts anything about speed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long a broker may take to say that it is ready; generous, because many start at once.
pub const START: Duration = Duration::from_secs(60);

/// How long a broker may take to drain after SIGTERM.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Messages of the competition for one queue; `LEPUS_TEST_MESSAGES` overrides it.
pub fn competing_messages() -> usize {
    number("LEPUS_TEST_MESSAGES", 200_000)
}

/// Idle connections held at once; `LEPUS_TEST_CONNECTIONS` overrides it. Each end is in a process of its own.
pub fn idle_connections() -> usize {
    number("LEPUS_TEST_CONNECTIONS", 10_000)
}

/// Tries of the race between a declare and a publish elsewhere; `LEPUS_TEST_TRIES` overrides it.
pub fn declare_tries() -> usize {
    number("LEPUS_TEST_TRIES", 10_000)
}

/// A number out of the environment.
pub fn number(variable: &str, default: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")),
        Err(_) => default,
    }
}
