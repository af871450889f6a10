//! The names by which direct replies find the channel that asked: `amq.rabbitmq.reply-to.` and an
//! address in hexadecimal digits. No queue has such a name.

#![forbid(unsafe_code)]

use std::fmt;

use crate::{ChannelId, ShardId};

/// What a client consumes to get direct replies, and what it says in `reply-to` when it asks.
pub const REPLY_QUEUE: &str = "amq.rabbitmq.reply-to";

const DIGITS: usize = 4 + 8 + 8 + 16;

/// Where a direct reply goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyAddress {
    /// The channel's home.
    pub shard: ShardId,
    /// The channel there.
    pub channel: ChannelId,
    /// Known to those who were told: an address cannot be guessed, and an old one leads nowhere.
    pub secret: u64,
}

impl ReplyAddress {
    /// The address in a full name; none if it is not one.
    pub fn from_name(name: &[u8]) -> Option<ReplyAddress> {
        let digits = name.strip_prefix(REPLY_QUEUE.as_bytes())?.strip_prefix(b".")?;
        if digits.len() != DIGITS || !digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let digits = std::str::from_utf8(digits).ok()?;
        let part = |from: usize, to: usize| u64::from_str_radix(&digits[from..to], 16).ok();
        Some(ReplyAddress {
            shard: ShardId(part(0, 4)? as u16),
            channel: ChannelId { slot: part(4, 12)? as u32, generation: part(12, 20)? as u32 },
            secret: part(20, DIGITS)?,
        })
    }
}

/// Whether a queue's name is one for direct replies.
pub fn is_reply_name(name: &str) -> bool {
    name.strip_prefix(REPLY_QUEUE).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl fmt::Display for ReplyAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReplyAddress { shard, channel, secret } = self;
        let ChannelId { slot, generation } = channel;
        write!(f, "{REPLY_QUEUE}.{:04x}{slot:08x}{generation:08x}{secret:016x}", shard.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_back_and_nothing_else_is_one() {
        let address = ReplyAddress {
            shard: ShardId(1023),
            channel: ChannelId { slot: 7, generation: u32::MAX },
            secret: 0x0123_4567_89ab_cdef,
        };
        let name = address.to_string();
        assert_eq!(ReplyAddress::from_name(name.as_bytes()), Some(address));
        assert!(
            is_reply_name(&name) && is_reply_name(REPLY_QUEUE) && !is_reply_name("amq.rabbitmq.reply-tox")
        );
        for wrong in [REPLY_QUEUE, "amq.rabbitmq.reply-to.", "q", &name[1..], &name[..name.len() - 1]] {
            assert_eq!(ReplyAddress::from_name(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(ReplyAddress::from_name(name.to_uppercase().as_bytes()), None);
        assert_eq!(ReplyAddress::from_name(format!("{name}0").as_bytes()), None);
        assert_eq!(ReplyAddress::from_name(name.replace("0123", "+123").as_bytes()), None);
    }
}
