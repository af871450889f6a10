//! Who may come in.

use std::fmt;

/// Decides on a user's name and password.
pub trait Authenticate: Send + Sync {
    /// Whether this user may log in with this password, from this host itself or from elsewhere.
    fn check(&self, user: &[u8], password: &[u8], from_loopback: bool) -> bool;
}

/// The one configured user.
pub struct Credentials {
    /// Name.
    pub user: String,
    /// Password.
    pub password: String,
    /// Users that may log in from this host only.
    pub loopback_users: Vec<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Authenticate for Credentials {
    fn check(&self, user: &[u8], password: &[u8], from_loopback: bool) -> bool {
        let local_only = self.loopback_users.iter().any(|name| name.as_bytes() == user);
        let known = equal(user, self.user.as_bytes()) & equal(password, self.password.as_bytes());
        known && (from_loopback || !local_only)
    }
}

/// Compares in a time that does not tell how much of it was right.
fn equal(given: &[u8], right: &[u8]) -> bool {
    let differences = given.iter().zip(right).fold(0, |sum, (a, b)| sum | (a ^ b));
    (given.len() == right.len()) & (differences == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_from_the_right_place_gets_in() {
        let credentials = Credentials {
            user: "guest".into(),
            password: "secret".into(),
            loopback_users: vec!["guest".into()],
        };
        assert!(credentials.check(b"guest", b"secret", true));
        assert!(!credentials.check(b"guest", b"secret", false), "a loopback user from elsewhere");
        for (user, password) in
            [("guest", ""), ("guest", "secre"), ("guest", "secret2"), ("", ""), ("gues", "secret")]
        {
            assert!(!credentials.check(user.as_bytes(), password.as_bytes(), true));
        }
    }
}
