//! What ends a channel or a connection: reply codes, their names, and which of the two they end.

use lepus_shards::{Refusal, RefusalKind};

use super::limits::REPLY_TEXT_BYTES_MAX;

/// A reply code with its name (specification 1.2, and RabbitMQ's additions).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code(pub u16, pub &'static str);

pub const CONNECTION_FORCED: Code = Code(320, "CONNECTION_FORCED");
pub const ACCESS_REFUSED: Code = Code(403, "ACCESS_REFUSED");
pub const NOT_FOUND: Code = Code(404, "NOT_FOUND");
pub const RESOURCE_LOCKED: Code = Code(405, "RESOURCE_LOCKED");
pub const PRECONDITION_FAILED: Code = Code(406, "PRECONDITION_FAILED");
pub const FRAME_ERROR: Code = Code(501, "FRAME_ERROR");
pub const SYNTAX_ERROR: Code = Code(502, "SYNTAX_ERROR");
pub const COMMAND_INVALID: Code = Code(503, "COMMAND_INVALID");
pub const CHANNEL_ERROR: Code = Code(504, "CHANNEL_ERROR");
pub const UNEXPECTED_FRAME: Code = Code(505, "UNEXPECTED_FRAME");
pub const RESOURCE_ERROR: Code = Code(506, "RESOURCE_ERROR");
pub const NOT_ALLOWED: Code = Code(530, "NOT_ALLOWED");
pub const NOT_IMPLEMENTED: Code = Code(540, "NOT_IMPLEMENTED");

/// Class and method of the frame that caused a failure; (0, 0) when none did.
pub type Ids = (u16, u16);

/// Why a channel or a connection closes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The reply code.
    pub code: Code,
    /// The detail behind the code's name.
    pub text: String,
    /// What caused it.
    pub ids: Ids,
}

impl Failure {
    /// A failure with this detail.
    pub fn new(code: Code, text: impl Into<String>, ids: Ids) -> Failure {
        Failure { code, text: text.into(), ids }
    }

    /// The failure that a refusal of the kernel is in AMQP.
    pub fn from_refusal(refusal: Refusal, ids: Ids) -> Failure {
        let code = match refusal.kind {
            RefusalKind::AccessRefused => ACCESS_REFUSED,
            RefusalKind::NotFound => NOT_FOUND,
            RefusalKind::ResourceLocked => RESOURCE_LOCKED,
            RefusalKind::PreconditionFailed => PRECONDITION_FAILED,
            RefusalKind::NotAllowed => NOT_ALLOWED,
            RefusalKind::NotImplemented => NOT_IMPLEMENTED,
            RefusalKind::ResourceError => RESOURCE_ERROR,
        };
        Failure { code, text: refusal.text, ids }
    }

    /// Codes of 3xx and 40x end a channel, those of 5xx and 320 the connection.
    pub fn ends_connection(&self) -> bool {
        self.code.0 >= 500 || self.code == CONNECTION_FORCED
    }

    /// The reply text: name and detail, cut to what a short string holds.
    pub fn reply_text(&self) -> String {
        let mut text = format!("{} - {}", self.code.1, self.text);
        let mut end = text.len().min(REPLY_TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let failure = Failure::new(NOT_FOUND, "ä".repeat(300), (0, 0));
        let text = failure.reply_text();
        assert!(text.len() <= REPLY_TEXT_BYTES_MAX && text.len() > REPLY_TEXT_BYTES_MAX - 2);
        assert!(text.starts_with("NOT_FOUND - ä"));
    }
}
