//! Publishes: whole ones straight out of the read buffer, others put together as they come.

use lepus_shards::message::{Durability, MessageView};
use lepus_shards::shard::{Publish, Published, Shard};
use lepus_shards::topology::REPLY_QUEUE;

use super::codec::{BODY, ContentHeader, FRAME_END, FrameHead, HEADER, PublishMethod, put_return};
use super::copies::{self, Copies};
use super::edit;
use super::failure::{
    FRAME_ERROR, Failure, Ids, NOT_IMPLEMENTED, PRECONDITION_FAILED, RESOURCE_ERROR, SYNTAX_ERROR,
    UNEXPECTED_FRAME,
};
use super::front::{HasFront, Room};
use super::limits::TTL_MS_MAX;
use super::peer::{ChannelState, Content, Pause, Streaming};
use super::properties::Properties;
use super::session::{Taken, fail, fail_connection, pause_for};

const IDS: Ids = (60, 40);

/// The frame at the start of `bytes` if it is all there and of this kind and channel: its payload,
/// and what follows it.
fn whole_frame(bytes: &[u8], kind: u8, channel: u16) -> Option<(&[u8], &[u8])> {
    let head = FrameHead::read(bytes)?;
    if head.kind != kind || head.channel != channel {
        return None;
    }
    let (frame, rest) = bytes.split_at_checked(head.frame_bytes())?;
    let (end, frame) = frame.split_last()?;
    (*end == FRAME_END).then_some((&frame[FrameHead::BYTES..], rest))
}

/// Publishes the message at the start of `bytes` if all its frames are there, from where they are: no
/// byte of it is copied here. None if it is not a publish, not all there, or in any way unusual; it
/// then goes frame by frame, and errors are found there.
#[inline]
pub(super) fn take_whole_publish<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    head: FrameHead,
    bytes: &[u8],
) -> Option<usize> {
    let number = head.channel;
    let (payload, rest) = whole_frame(bytes, head.kind, number)?;
    let method = PublishMethod::read(payload.strip_prefix(&[0, 60, 0, 40])?).ok()?;
    let (payload, rest) = whole_frame(rest, HEADER, number)?;
    let header = ContentHeader::read(payload).ok()?;
    let (body, rest) = match header.body_size {
        0 => (&[][..], rest),
        _ => whole_frame(rest, BODY, number)?,
    };
    let peer = fx.front().peer(slot);
    let (frame_max, channel) = (peer.frame_max, peer.channel(number)?);
    let usual = channel.state == ChannelState::Open
        && channel.content.is_none()
        && !channel.holds_back()
        && !channel.publishing_held;
    if !usual
        || body.len() as u64 != header.body_size
        || body.len() + 8 > frame_max
        || shard.publishing_blocked()
    {
        return None;
    }
    if payload.len() + 8 > frame_max || header.body_size > fx.front().config.max_message_bytes {
        return None;
    }
    if let Err(failure) = publish(shard, fx, slot, number, &method, header.properties, body) {
        fail(shard, fx, slot, number, &failure);
    }
    Some(bytes.len() - rest.len())
}

/// The first frame of a publish that comes frame by frame.
pub(super) fn take_publish_method<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    arguments: &[u8],
) -> Result<Taken, Failure> {
    if shard.publishing_blocked() {
        return Ok(Taken::Later(Pause::Blocked));
    }
    let malformed = |_| Failure::new(SYNTAX_ERROR, "arguments of basic.publish cannot be read", IDS);
    let method = PublishMethod::read(arguments).map_err(malformed)?;
    let channel = fx.front().channel(slot, number).expect("it was just looked up");
    channel.content = Some(Box::new(Content {
        exchange: method.exchange.to_vec(),
        routing_key: method.routing_key.to_vec(),
        mandatory: method.mandatory,
        immediate: method.immediate,
        ..Content::default()
    }));
    Ok(Taken::Done)
}

/// A content header: the body's size is known. It costs nothing until the body comes.
pub(super) fn take_header<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    payload: &[u8],
) -> Result<Taken, Failure> {
    let most = fx.front().config.max_message_bytes;
    let Some(channel) = fx.front().channel(slot, number) else { return Err(unexpected(HEADER)) };
    if let ChannelState::Refused { .. } = channel.state {
        return Ok(Taken::Done);
    }
    let Some(content) = channel.content.as_deref_mut().filter(|content| content.body_size.is_none()) else {
        return Err(unexpected(HEADER));
    };
    let malformed = |_| Failure::new(SYNTAX_ERROR, "content header cannot be read", IDS);
    let header = ContentHeader::read(payload).map_err(malformed)?;
    let size = header.body_size;
    if size > most {
        channel.content = None;
        let text = format!("message size {size} is larger than configured max size {most}");
        return Err(Failure::new(PRECONDITION_FAILED, text, IDS));
    }
    Properties::parse(header.properties).map_err(malformed)?;
    content.properties = header.properties.to_vec();
    content.body_size = Some(size);
    if size == 0 {
        finish(shard, fx, slot, number)?;
    }
    Ok(Taken::Done)
}

/// A whole body frame.
pub(super) fn take_body<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    part: &[u8],
) -> Result<Taken, Failure> {
    let Some(channel) = fx.front().channel(slot, number) else { return Err(unexpected(BODY)) };
    if let ChannelState::Refused { .. } = channel.state {
        return Ok(Taken::Done);
    }
    let due = channel.content.as_deref_mut().and_then(|content| Some((content.body_size?, content)));
    let Some((size, content)) = due else { return Err(unexpected(BODY)) };
    if (content.body.len() + part.len()) as u64 > size {
        return Err(Failure::new(UNEXPECTED_FRAME, format!("content body is longer than {size} bytes"), IDS));
    }
    let complete = (content.body.len() + part.len()) as u64 == size;
    if !add_to_body(fx, slot, number, part)? {
        return Ok(Taken::Later(Pause::Assembly));
    }
    if complete {
        finish(shard, fx, slot, number)?;
    }
    Ok(Taken::Done)
}

/// Adds to an incomplete body, if memory for such may grow; false if it must wait. A channel without one
/// keeps nothing.
fn add_to_body<E: HasFront>(fx: &mut E, slot: u32, number: u16, part: &[u8]) -> Result<bool, Failure> {
    let front = fx.front();
    if front.channel(slot, number).is_none_or(|channel| channel.content.is_none()) {
        return Ok(true);
    }
    match front.reserve_assembly(slot, number, part.len() as u64) {
        Room::Taken => {}
        Room::Later => return Ok(false),
        Room::Never => {
            let text = "memory for incomplete bodies is short, and this connection has several of them";
            return Err(Failure::new(RESOURCE_ERROR, text, IDS));
        }
    }
    let content = front.channel(slot, number).and_then(|channel| channel.content.as_deref_mut());
    let Content { body, body_size, .. } = content.expect("it was just looked at");
    if body.capacity() - body.len() < part.len() {
        // By half, and never past the end: the budget counts what is there, not what is set aside.
        let rest = body_size.map_or(part.len(), |size| size as usize - body.len());
        body.reserve_exact(rest.min(part.len().max(body.len() / 2)));
    }
    body.extend_from_slice(part);
    Ok(true)
}

/// Begins to take a body frame in pieces, if one is due: a large frame need not be whole in memory
/// twice. False if the frame must be looked at whole.
pub(super) fn begin_streaming<E: HasFront>(fx: &mut E, slot: u32, head: FrameHead) -> bool {
    let Some(channel) = fx.front().channel(slot, head.channel) else { return false };
    if channel.state != ChannelState::Open || channel.holds_back() {
        return false;
    }
    let Some(content) = channel.content.as_deref() else { return false };
    let fits = content.body_size.is_some_and(|size| (content.body.len() + head.size) as u64 <= size);
    if fits && head.size > 0 {
        fx.front().peer(slot).streaming = Some(Streaming { channel: head.channel, remaining: head.size });
    }
    fits && head.size > 0
}

/// The next piece of a body frame that is taken as it comes; none if it must come again.
pub(super) fn take_streamed<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    bytes: &[u8],
) -> Option<usize> {
    let peer = fx.front().peer(slot);
    let Streaming { channel: number, remaining } = peer.streaming.expect("asked while streaming");
    if remaining > 0 {
        let count = remaining.min(bytes.len());
        // The channel may have been refused meanwhile: then the content is gone.
        match add_to_body(fx, slot, number, &bytes[..count]) {
            Ok(true) => {}
            Ok(false) => {
                pause_for(fx, slot, Pause::Assembly);
                return None;
            }
            Err(failure) => {
                fail(shard, fx, slot, number, &failure);
                return Some(bytes.len());
            }
        }
        fx.front().peer(slot).streaming = Some(Streaming { channel: number, remaining: remaining - count });
        return Some(count);
    }
    peer.streaming = None;
    if bytes[0] != FRAME_END {
        let failure = Failure::new(FRAME_ERROR, "frame does not end with the frame-end byte", (0, 0));
        fail_connection(shard, fx, slot, &failure);
        return Some(bytes.len());
    }
    // Nothing is added: this only finds out whether the body is complete.
    if let Err(failure) = take_body(shard, fx, slot, number, &[]) {
        fail(shard, fx, slot, number, &failure);
    }
    Some(1)
}

/// The content is complete.
fn finish<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32, number: u16) -> Result<(), Failure> {
    let channel = fx.front().channel(slot, number).expect("a content belongs to a channel");
    let content = channel.content.take().expect("a content was completed");
    fx.front().release_assembly(slot, content.body.len() as u64);
    let method = PublishMethod {
        exchange: &content.exchange,
        routing_key: &content.routing_key,
        mandatory: content.mandatory,
        immediate: content.immediate,
    };
    publish(shard, fx, slot, number, &method, &content.properties, &content.body)
}

fn publish<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    method: &PublishMethod<'_>,
    properties: &[u8],
    body: &[u8],
) -> Result<(), Failure> {
    let malformed = |_| Failure::new(SYNTAX_ERROR, "content header cannot be read", IDS);
    let properties = Properties::parse(properties).map_err(malformed)?;
    if method.immediate {
        return Err(Failure::new(NOT_IMPLEMENTED, "immediate=true", IDS));
    }
    let ttl_ms = properties.expiration.map(read_expiration).transpose()?;
    let message = MessageView {
        exchange: method.exchange,
        routing_key: method.routing_key,
        properties: properties.bytes,
        body,
    };
    let publish = Publish {
        message,
        durability: durability(&properties)?,
        mandatory: method.mandatory,
        ttl_ms,
        further_keys: &[],
        headers: &properties,
    };
    // Most messages have neither headers nor a reply-to that is ours to fill in.
    if properties.headers.is_some() || properties.reply_to == Some(REPLY_QUEUE.as_bytes()) {
        return publish_edited(shard, fx, slot, number, &properties, &publish);
    }
    check_user(fx, slot, &properties)?;
    hand_over(shard, fx, slot, number, &publish)
}

/// Publishes a message that may have to be changed on its way, or goes to more than its routing key.
#[inline(never)]
fn publish_edited<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    properties: &Properties<'_>,
    publish: &Publish<'_>,
) -> Result<(), Failure> {
    let mut edited = None;
    if properties.reply_to == Some(REPLY_QUEUE.as_bytes()) {
        let id = fx.front().channel(slot, number).expect("an open channel publishes").id;
        let missing = || Failure::new(PRECONDITION_FAILED, "fast reply consumer does not exist", IDS);
        let name = shard.reply_name(id).ok_or_else(missing)?;
        edited = Some(edit::with_reply_to(properties.bytes, name));
    }
    check_user(fx, slot, properties)?;
    let copies = Copies::of(properties, IDS)?;
    if copies.blind {
        edited = Some(edit::without_header(edited.as_deref().unwrap_or(properties.bytes), copies::BLIND));
    }
    let bytes = edited.as_deref().unwrap_or(properties.bytes);
    let message = MessageView { properties: bytes, ..publish.message };
    hand_over(shard, fx, slot, number, &Publish { message, further_keys: &copies.keys, ..*publish })
}

/// `user-id` is the user's own name, if it is there.
#[inline(always)]
fn check_user<E: HasFront>(fx: &mut E, slot: u32, properties: &Properties<'_>) -> Result<(), Failure> {
    let Some(set) = properties.user_id else { return Ok(()) };
    let real = &fx.front().peer(slot).user;
    if set == real.as_bytes() {
        return Ok(());
    }
    let set = String::from_utf8_lossy(set);
    let text = format!("user_id property set to '{set}' but authenticated user was '{real}'");
    Err(Failure::new(PRECONDITION_FAILED, text, IDS))
}

#[inline(always)]
fn hand_over<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    publish: &Publish<'_>,
) -> Result<(), Failure> {
    let peer = fx.front().peer(slot);
    peer.publishes = true;
    let (frame_max, id) = (peer.frame_max, peer.channel(number).expect("an open channel publishes").id);
    match shard.publish(fx, id, publish) {
        Ok(Published::Unroutable) if publish.mandatory => {
            put_return(fx.front().out(slot), number, &publish.message, frame_max);
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(refusal) => Err(Failure::from_refusal(refusal, IDS)),
    }
}

/// What the message is to outlive: nothing unless its delivery mode is 2, and then what its header
/// `x-durability` says, if it has one. The queue may say less.
fn durability(properties: &Properties<'_>) -> Result<Durability, Failure> {
    if !properties.persistent {
        return Ok(Durability::Memory);
    }
    let Some(value) = properties.text_header(b"x-durability") else { return Ok(Durability::Fsync) };
    Durability::from_name(&String::from_utf8_lossy(value)).ok_or_else(|| {
        let text = format!(
            "invalid header x-durability '{}': expected fsync, os or memory",
            String::from_utf8_lossy(value)
        );
        Failure::new(PRECONDITION_FAILED, text, IDS)
    })
}

/// `expiration`: milliseconds, as text.
fn read_expiration(text: &[u8]) -> Result<u64, Failure> {
    let invalid = |why: &str| {
        let text = format!("invalid expiration '{}': {why}", String::from_utf8_lossy(text));
        Failure::new(PRECONDITION_FAILED, text, IDS)
    };
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(invalid("not a number of milliseconds"));
    }
    let digits = std::str::from_utf8(text).map_err(|_| invalid("not a number of milliseconds"))?;
    match digits.parse() {
        Ok(ms) if ms <= TTL_MS_MAX => Ok(ms),
        _ => Err(invalid("too large")),
    }
}

fn unexpected(kind: u8) -> Failure {
    let text = match kind {
        HEADER => "expected method frame, got content header frame instead",
        _ => "expected method frame, got content body frame instead",
    };
    Failure::new(UNEXPECTED_FRAME, text, (0, 0))
}
