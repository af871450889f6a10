//! Why the kernel says no. A kind and a text: each protocol maps the kind to its own code.

use std::fmt;

/// The kind of a refusal. In AMQP 0-9-1 each is one reply code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// The user, or the nature of the object, forbids it (AMQP 403).
    AccessRefused,
    /// A named object does not exist (AMQP 404).
    NotFound,
    /// An exclusive object belongs to somebody else (AMQP 405).
    ResourceLocked,
    /// The object is not as the request assumes (AMQP 406).
    PreconditionFailed,
    /// Not allowed in this state (AMQP 530).
    NotAllowed,
    /// Lepus does not have the feature (AMQP 540).
    NotImplemented,
    /// A resource is exhausted (AMQP 506).
    ResourceError,
}

/// A refusal with the text that the client sees (without a code's name in front).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What kind of no this is.
    pub kind: RefusalKind,
    /// What the client reads, for instance `no queue 'q' in vhost '/'`.
    pub text: String,
}

impl Refusal {
    /// A refusal of this kind with this text.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Refusal {
        Refusal { kind, text: text.into() }
    }

    /// 404 for a queue, in the words that clients know.
    pub fn no_queue(name: &str, vhost: &str) -> Refusal {
        Refusal::new(RefusalKind::NotFound, format!("no queue '{name}' in vhost '{vhost}'"))
    }

    /// 404 for an exchange, in the words that clients know.
    pub fn no_exchange(name: &str, vhost: &str) -> Refusal {
        Refusal::new(RefusalKind::NotFound, format!("no exchange '{name}' in vhost '{vhost}'"))
    }

    /// 406 for a queue that is deleted only if nobody uses it.
    pub fn queue_in_use(name: &str, vhost: &str) -> Refusal {
        Refusal::new(RefusalKind::PreconditionFailed, format!("queue '{name}' in vhost '{vhost}' in use"))
    }

    /// 406 for a queue that is deleted only if it holds nothing.
    pub fn queue_not_empty(name: &str, vhost: &str) -> Refusal {
        Refusal::new(RefusalKind::PreconditionFailed, format!("queue '{name}' in vhost '{vhost}' not empty"))
    }

    /// 405 for an exclusive queue of another connection.
    pub fn locked_queue(name: &str, vhost: &str) -> Refusal {
        Refusal::new(
            RefusalKind::ResourceLocked,
            format!(
                "cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be \
                 originally declared on another connection or the exclusive property value does not match \
                 that of the original declaration."
            ),
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}
