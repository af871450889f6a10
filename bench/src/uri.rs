//! A broker's address as clients write it: `amqp://user:password@host:port/vhost`.

use std::fmt;
use std::str::FromStr;

use crate::error::BenchError;

/// The port when the URI names none.
const PORT: u16 = 5672;

/// A broker, a user, and a virtual host.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerUri {
    /// Name or address, without the brackets of IPv6.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// `guest` unless given.
    pub user: String,
    /// `guest` unless given.
    pub password: String,
    /// `/` unless given.
    pub vhost: String,
}

impl BrokerUri {
    /// Host and port.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Without the password: reports are shown around.
impl fmt::Display for BrokerUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "amqp://{}/{}", self.address(), self.vhost.replace('/', "%2f"))
    }
}

impl fmt::Debug for BrokerUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for BrokerUri {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<BrokerUri, BenchError> {
        let wrong = |reason| BenchError::Uri { uri: without_password(text), reason };
        let rest = match text.split_once("://") {
            Some(("amqp", rest)) => rest,
            Some(("amqps", _)) => return Err(wrong("TLS is not supported, use amqp://")),
            Some(_) => return Err(wrong("it does not start with amqp://")),
            None => return Err(wrong("the form is amqp://user:password@host:port/vhost")),
        };
        if rest.contains(['?', '#']) {
            return Err(wrong("parameters are not supported"));
        }
        let (authority, vhost) = match rest.split_once('/') {
            Some((authority, vhost)) => (authority, Some(vhost)),
            None => (rest, None),
        };
        let (login, place) = match authority.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, authority),
        };
        let (user, password) =
            login.map_or(("guest", "guest"), |login| login.split_once(':').unwrap_or((login, "guest")));
        let (host, port) =
            split_port(place).ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?;
        if host.is_empty() {
            return Err(wrong("it names no host"));
        }
        let decoded = |part| {
            decode(part).ok_or_else(|| wrong("a percent sign is not followed by two hex digits of UTF-8"))
        };
        let vhost = match vhost {
            // RabbitMQ's clients take `amqp://host/` for the default virtual host, which is what people mean.
            None | Some("") => "/".to_owned(),
            Some(vhost) => decoded(vhost)?,
        };
        let (user, password) = (decoded(user)?, decoded(password)?);
        if vhost.len() > 255 {
            return Err(wrong("the virtual host's name is longer than 255 bytes"));
        }
        Ok(BrokerUri { host: host.to_owned(), port, user, password, vhost })
    }
}

fn split_port(place: &str) -> Option<(&str, u16)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']')?;
            (host, if behind.is_empty() { None } else { Some(behind.strip_prefix(':')?) })
        }
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    match port {
        None => Some((host, PORT)),
        Some(port) => port.parse().ok().filter(|port| *port > 0).map(|port| (host, port)),
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        if *first == b'%' {
            let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
            // `from_str_radix` takes a sign as well.
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &behind[2..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    String::from_utf8(bytes).ok()
}

fn without_password(text: &str) -> String {
    let Some((login, place)) = text.rsplit_once('@') else { return text.to_owned() };
    let scheme = login.find("://").map_or(0, |at| at + 3);
    match login[scheme..].split_once(':') {
        Some((user, _)) => format!("{}{user}:...@{place}", &login[..scheme]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, u16, String, String, String) {
        let uri: BrokerUri = text.parse().unwrap();
        (uri.host, uri.port, uri.user, uri.password, uri.vhost)
    }

    fn whole(
        host: &str,
        port: u16,
        user: &str,
        password: &str,
        vhost: &str,
    ) -> (String, u16, String, String, String) {
        (host.into(), port, user.into(), password.into(), vhost.into())
    }

    #[test]
    fn all_parts_are_read() {
        assert_eq!(parsed("amqp://u:p%40s@h:1/v%2fw"), whole("h", 1, "u", "p@s", "v/w"));
        assert_eq!(parsed("amqp://[::1]:7/x"), whole("::1", 7, "guest", "guest", "x"));
    }

    #[test]
    fn what_is_not_given_is_the_default() {
        for text in ["amqp://h", "amqp://h/", "amqp://guest@h:5672", "amqp://h/%2F"] {
            assert_eq!(parsed(text), whole("h", 5672, "guest", "guest", "/"), "{text}");
        }
    }

    #[test]
    fn what_is_no_broker_is_refused_and_the_password_is_not_shown() {
        for text in [
            "h:1",
            "http://u:secret@h",
            "amqps://u:secret@h",
            "amqp://u:secret@h:0",
            "amqp://u:secret@h:x/",
            "amqp://u:secret@",
            "amqp://u:secret@h/%2",
            "amqp://u:secret@h/%+1",
            "amqp://u:secret@h?heartbeat=1",
        ] {
            let error = text.parse::<BrokerUri>().unwrap_err();
            assert!(error.is_usage() && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_shown_uri_can_be_read_again_and_has_no_password() {
        let uri: BrokerUri = "amqp://u:secret@[::1]:7/a/b".parse().unwrap();
        assert_eq!(uri.to_string(), "amqp://[::1]:7/a%2fb");
        assert_eq!(uri.to_string().parse::<BrokerUri>().unwrap().vhost, "a/b");
    }
}
