//! A connection's input: frames out of a stream that is cut anywhere, each to its place.

use amq_protocol::protocol::{AMQPClass, channel, connection};
use lepus_shards::shard::Shard;

use super::codec::{BODY, FRAME_END, FrameHead, HEADER, HEARTBEAT, METHOD};
use super::content;
use super::failure::{
    CHANNEL_ERROR, COMMAND_INVALID, CONNECTION_FORCED, FRAME_ERROR, Failure, Ids, NOT_ALLOWED, SYNTAX_ERROR,
    UNEXPECTED_FRAME,
};
use super::front::HasFront;
use super::limits::{CLOSE_TIMEOUT_MS, FRAME_OVERHEAD_BYTES, HELD_BYTES_MAX};
use super::method::{self, Unreadable};
use super::methods;
use super::peer::{Channel, ChannelState, Pause, Phase};
use super::{codec, handshake};

/// What came of a frame.
pub(super) enum Taken {
    /// It is done with.
    Done,
    /// It must come again later; the connection is paused.
    Later(Pause),
}

/// Takes in what was read from a connection's socket: any number of bytes, cut anywhere.
pub fn receive<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32, bytes: &[u8]) {
    let now_ms = fx.front().now_ms;
    let peer = fx.front().peer(slot);
    peer.last_read_ms = now_ms;
    if peer.stash.is_empty() && peer.pause.is_none() {
        let used = consume(shard, fx, slot, bytes);
        if used < bytes.len() {
            // A frame that is not all there: the rest of the read buffer belongs to others.
            fx.front().peer(slot).stash.extend_from_slice(&bytes[used..]);
        }
    } else {
        peer.stash.extend_from_slice(bytes);
        consume_stash(shard, fx, slot);
    }
}

fn consume_stash<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32) {
    if fx.front().peer(slot).pause.is_some() {
        return;
    }
    let mut stash = std::mem::take(&mut fx.front().peer(slot).stash);
    let used = consume(shard, fx, slot, &stash);
    if used < stash.len() {
        stash.drain(..used);
        fx.front().peer(slot).stash = stash;
    }
}

/// Lets connections go on whose requests were answered or whose pause is over, until none can.
pub fn resume<E: HasFront>(shard: &mut Shard, fx: &mut E) {
    while let Some(slot) = fx.front().resumable.pop() {
        let front = fx.front();
        let blocked = front.blocked;
        let Some(peer) = front.peers.get_mut(slot as usize) else { continue };
        peer.listed_resume = false;
        if let Some(failure) = peer.failure.take() {
            fail_connection(shard, fx, slot, &failure);
            continue;
        }
        if peer.pause == Some(Pause::Blocked) && blocked {
            continue;
        }
        let paused = peer.pause.take().is_some();
        release_refused(shard, fx, slot);
        replay_held(shard, fx, slot);
        let peer = fx.front().peer(slot);
        if peer.pause.is_none() && !peer.stash.is_empty() {
            consume_stash(shard, fx, slot);
        }
        if paused && fx.front().peer(slot).pause.is_none() {
            if !blocked {
                fx.front().tell_blocked(slot, false);
            }
            // The server looks whether to read again.
            fx.front().mark_dirty(slot);
        }
    }
}

/// Channels that were refused while answering: the shard lets go of what they hold.
fn release_refused<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32) {
    let channels = fx.front().peer(slot).channels.iter_mut();
    let refused: Vec<_> = channels
        .filter_map(|(_, channel)| std::mem::take(&mut channel.unreleased).then_some(channel.id))
        .collect();
    for id in refused {
        shard.close_channel(fx, id);
    }
}

/// Takes in frames that channels held back, in their order.
fn replay_held<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32) {
    let peer = fx.front().peer(slot);
    let mut replays = std::mem::take(&mut peer.orphans);
    for (number, channel) in &mut peer.channels {
        if channel.busy.is_none() && !channel.held.is_empty() {
            replays.push((*number, std::mem::take(&mut channel.held)));
        }
    }
    for (number, held) in replays {
        let (mut used, mut kept) = (0, Vec::new());
        while used < held.len() {
            let peer = fx.front().peer(slot);
            if !peer.is_running() {
                return;
            }
            if peer.pause.is_some() || peer.channel(number).is_some_and(|channel| channel.holds_back()) {
                break;
            }
            let head = FrameHead::read(&held[used..]).expect("only whole frames are held");
            let end = used + head.frame_bytes();
            let ids = method::ids(&held[used + FrameHead::BYTES..end]);
            if peer.channel(number).is_some_and(|channel| channel.awaits_room(head.kind, ids)) {
                kept.extend_from_slice(&held[used..end]);
                used = end;
                continue;
            }
            match take_channel_frame(shard, fx, slot, head, &held[used..end]) {
                Ok(Taken::Done) => {}
                Ok(Taken::Later(pause)) => {
                    fx.front().peer(slot).pause = Some(pause);
                    break;
                }
                Err(failure) => fail(shard, fx, slot, number, &failure),
            }
            used = end;
        }
        kept.extend_from_slice(&held[used..]);
        keep_held(fx, slot, number, &kept);
    }
}

/// Puts back what could not be replayed, in front of what has been held since.
fn keep_held<E: HasFront>(fx: &mut E, slot: u32, number: u16, rest: &[u8]) {
    let peer = fx.front().peer(slot);
    if rest.is_empty() || !peer.is_running() {
        return;
    }
    match peer.channel(number) {
        Some(channel) => drop(channel.held.splice(..0, rest.iter().copied())),
        None => peer.orphans.push((number, rest.to_vec())),
    }
}

/// Takes in whole frames from the start of `bytes`; returns how many bytes are done with.
fn consume<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32, bytes: &[u8]) -> usize {
    let mut used = 0;
    while used < bytes.len() {
        let rest = &bytes[used..];
        let peer = fx.front().peer(slot);
        let taken = match peer.phase {
            Phase::LoginRefused | Phase::Deaf | Phase::Flushing | Phase::Dead => return bytes.len(),
            Phase::Header => handshake::take_header(fx, slot, rest),
            _ if peer.streaming.is_some() => content::take_streamed(shard, fx, slot, rest),
            _ => take_frame(shard, fx, slot, rest),
        };
        match taken {
            Some(count) => used += count,
            None => break,
        }
    }
    used
}

/// Takes in one frame; none if it is not all there, or must come again.
fn take_frame<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32, bytes: &[u8]) -> Option<usize> {
    let head = FrameHead::read(bytes)?;
    let peer = fx.front().peer(slot);
    if head.size + FRAME_OVERHEAD_BYTES > peer.frame_max {
        let text =
            format!("type {} frame of {} bytes is larger than {}", head.kind, head.size, peer.frame_max);
        fail_connection(shard, fx, slot, &Failure::new(FRAME_ERROR, text, (0, 0)));
        return Some(bytes.len());
    }
    if !matches!(head.kind, METHOD | HEADER | BODY | HEARTBEAT) {
        let text = format!("frame of unknown type {}", head.kind);
        fail_connection(shard, fx, slot, &Failure::new(FRAME_ERROR, text, (0, 0)));
        return Some(bytes.len());
    }
    if peer.is_running() && head.channel != 0 {
        if head.kind == METHOD
            && let Some(used) = content::take_whole_publish(shard, fx, slot, head, bytes)
        {
            return Some(used);
        }
        if head.kind == BODY && bytes.len() < head.frame_bytes() && content::begin_streaming(fx, slot, head) {
            return Some(FrameHead::BYTES);
        }
    }
    let frame = bytes.get(..head.frame_bytes())?;
    if frame.last() != Some(&FRAME_END) {
        let text = "frame does not end with the frame-end byte";
        fail_connection(shard, fx, slot, &Failure::new(FRAME_ERROR, text, (0, 0)));
        return Some(bytes.len());
    }
    if head.channel == 0 {
        let peer = fx.front().peer(slot);
        if method::ids(&frame[FrameHead::BYTES..]) == Some((10, 50)) && peer.is_running() && peer.is_busy() {
            // What the channels were sent before comes first: a publish may be among it.
            pause_for(fx, slot, Pause::Held);
            return None;
        }
        take_connection_frame(shard, fx, slot, head, frame);
        return Some(frame.len());
    }
    if !fx.front().peer(slot).is_running() {
        // While closing, channels do not count; before, they cannot.
        if fx.front().peer(slot).phase != Phase::Closing {
            let failure = Failure::new(CHANNEL_ERROR, "channel frame before connection.open", (0, 0));
            fail_connection(shard, fx, slot, &failure);
        }
        return Some(frame.len());
    }
    if let Some(channel) = fx.front().channel(slot, head.channel)
        && channel.must_hold(head.kind, method::ids(&frame[FrameHead::BYTES..]))
    {
        return hold(fx, slot, head.channel, frame);
    }
    match take_channel_frame(shard, fx, slot, head, frame) {
        Ok(Taken::Done) => {}
        Ok(Taken::Later(pause)) => {
            pause_for(fx, slot, pause);
            return None;
        }
        Err(failure) => fail(shard, fx, slot, head.channel, &failure),
    }
    Some(frame.len())
}

/// Keeps a frame for later; if the channel holds back too much, the connection pauses instead.
fn hold<E: HasFront>(fx: &mut E, slot: u32, number: u16, frame: &[u8]) -> Option<usize> {
    let channel = fx.front().channel(slot, number).expect("it was just looked up");
    if channel.held.len() + frame.len() > HELD_BYTES_MAX {
        fx.front().peer(slot).pause = Some(Pause::Held);
        return None;
    }
    channel.held.extend_from_slice(frame);
    Some(frame.len())
}

/// Pauses a connection, and tells it why if it can hear.
pub(super) fn pause_for<E: HasFront>(fx: &mut E, slot: u32, pause: Pause) {
    fx.front().peer(slot).pause = Some(pause);
    if pause == Pause::Blocked {
        fx.front().peer(slot).publishes = true;
        fx.front().tell_blocked(slot, true);
    }
}

fn take_connection_frame<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    head: FrameHead,
    frame: &[u8],
) {
    let payload = &frame[FrameHead::BYTES..frame.len() - 1];
    let result = match head.kind {
        HEARTBEAT => Ok(()),
        METHOD => match read_method(payload) {
            Ok(class) => connection_method(shard, fx, slot, class),
            Err(failure) => Err(failure),
        },
        _ => Err(Failure::new(UNEXPECTED_FRAME, "content frame on channel 0", (0, 0))),
    };
    if let Err(failure) = result {
        fail_connection(shard, fx, slot, &failure);
    }
}

fn read_method(payload: &[u8]) -> Result<AMQPClass, Failure> {
    let ids = method::ids(payload).unwrap_or((0, 0));
    method::read(payload).map_err(|unreadable| match unreadable {
        Unreadable::Unknown => Failure::new(COMMAND_INVALID, "unimplemented method", ids),
        Unreadable::Malformed => Failure::new(SYNTAX_ERROR, "arguments cannot be read", ids),
    })
}

fn connection_method<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    class: AMQPClass,
) -> Result<(), Failure> {
    let AMQPClass::Connection(method) = class else {
        return Err(Failure::new(COMMAND_INVALID, "a channel's method on channel 0", (0, 0)));
    };
    let phase = fx.front().peer(slot).phase;
    match method {
        connection::AMQPMethod::Close(_) => {
            leave(shard, fx, slot);
            let ok = connection::AMQPMethod::CloseOk(connection::CloseOk {});
            method::write(fx.front().out(slot), 0, &AMQPClass::Connection(ok));
            fx.front().peer(slot).phase = Phase::Flushing;
            Ok(())
        }
        connection::AMQPMethod::CloseOk(_) if phase == Phase::Closing => {
            fx.front().peer(slot).phase = Phase::Flushing;
            fx.front().mark_dirty(slot);
            Ok(())
        }
        _ if phase == Phase::Closing => Ok(()),
        connection::AMQPMethod::UpdateSecret(_) if phase == Phase::Running => {
            let ok = connection::AMQPMethod::UpdateSecretOk(connection::UpdateSecretOk {});
            method::write(fx.front().out(slot), 0, &AMQPClass::Connection(ok));
            Ok(())
        }
        method => handshake::take_method(shard, fx, slot, method),
    }
}

/// Takes in a whole frame of a channel that does not hold back.
fn take_channel_frame<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    head: FrameHead,
    frame: &[u8],
) -> Result<Taken, Failure> {
    let payload = &frame[FrameHead::BYTES..frame.len() - 1];
    let number = head.channel;
    match head.kind {
        METHOD => {
            let ids = method::ids(payload)
                .ok_or_else(|| Failure::new(SYNTAX_ERROR, "method frame too short", (0, 0)))?;
            let Some(channel) = fx.front().channel(slot, number) else {
                return open_channel(shard, fx, slot, number, payload, ids).map(|()| Taken::Done);
            };
            if let ChannelState::Refused { .. } = channel.state {
                return Ok(take_refused(fx, slot, number, ids));
            }
            if channel.content.is_some() {
                let failure = Failure::new(
                    UNEXPECTED_FRAME,
                    "expected content header for class 60, got non content header frame instead",
                    (60, 40),
                );
                return Err(failure);
            }
            if ids == (60, 40) {
                return content::take_publish_method(shard, fx, slot, number, &payload[4..]);
            }
            if let (60, 80 | 90 | 120) = ids {
                methods::take_settlement(shard, fx, slot, number, ids, &payload[4..])?;
                return Ok(Taken::Done);
            }
            if ids == (60, 10) {
                methods::check_prefetch_size(&payload[4..])?;
            }
            let class = read_method(payload)?;
            methods::take(shard, fx, slot, number, class, ids).map(|()| Taken::Done)
        }
        HEADER => content::take_header(shard, fx, slot, number, payload),
        BODY => content::take_body(shard, fx, slot, number, payload),
        _ => Err(Failure::new(UNEXPECTED_FRAME, "heartbeat on a channel", (0, 0))),
    }
}

fn open_channel<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    number: u16,
    payload: &[u8],
    ids: Ids,
) -> Result<(), Failure> {
    let front = fx.front();
    let peer = front.peer(slot);
    if ids != (20, 10) {
        if ids == (20, 41) {
            // A close-ok that crossed ours: nothing is open, nothing is lost.
            return Ok(());
        }
        return Err(Failure::new(CHANNEL_ERROR, "expected 'channel.open'", ids));
    }
    read_method(payload)?;
    let (most, open) = (usize::from(peer.channel_max), peer.channels.len());
    if most > 0 && (usize::from(number) > most || open >= most) {
        let text =
            format!("number of channels opened ({open}) has reached the negotiated channel_max ({most})");
        // RabbitMQ names no method here.
        return Err(Failure::new(NOT_ALLOWED, text, (0, 0)));
    }
    let connection = peer.connection.expect("a running connection has a name");
    let id = shard.open_channel(connection, number);
    let peer = fx.front().peer(slot);
    let index = peer.index(number).expect_err("the number is free");
    peer.channels.insert(index, (number, Box::new(Channel::new(id))));
    let ok = channel::AMQPMethod::OpenOk(channel::OpenOk {});
    method::write(fx.front().out(slot), number, &AMQPClass::Channel(ok));
    Ok(())
}

/// A method on a channel that we closed: only close and close-ok count.
fn take_refused<E: HasFront>(fx: &mut E, slot: u32, number: u16, ids: Ids) -> Taken {
    match ids {
        (20, 41) => {
            let channel = fx.front().channel(slot, number).expect("it was just looked up");
            if let ChannelState::Refused { close_ok, released } = &mut channel.state {
                *close_ok = true;
                if *released {
                    fx.front().forget_channel(slot, number);
                }
            }
        }
        (20, 40) => {
            let ok = channel::AMQPMethod::CloseOk(channel::CloseOk {});
            method::write(fx.front().out(slot), number, &AMQPClass::Channel(ok));
        }
        _ => {}
    }
    Taken::Done
}

/// Ends the channel or the connection, whichever the failure is of.
pub(super) fn fail<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32, number: u16, failure: &Failure) {
    if failure.ends_connection() {
        return fail_connection(shard, fx, slot, failure);
    }
    let Some(channel) = fx.front().channel(slot, number) else { return };
    let id = channel.id;
    fx.front().write_channel_close(slot, number, failure);
    shard.close_channel(fx, id);
}

/// Says why the connection ends, and waits for the client's close-ok.
pub(super) fn fail_connection<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32, failure: &Failure) {
    let phase = fx.front().peer(slot).phase;
    match phase {
        // Garbage after our close: nothing more is said.
        Phase::Closing => return fx.front().peer(slot).phase = Phase::Deaf,
        Phase::Deaf | Phase::Flushing | Phase::Dead => return,
        _ => {}
    }
    leave(shard, fx, slot);
    let close = connection::Close {
        reply_code: failure.code.0,
        reply_text: failure.reply_text().into(),
        class_id: failure.ids.0,
        method_id: failure.ids.1,
    };
    method::write(fx.front().out(slot), 0, &AMQPClass::Connection(connection::AMQPMethod::Close(close)));
    let deadline_ms = fx.front().now_ms + CLOSE_TIMEOUT_MS;
    let peer = fx.front().peer(slot);
    peer.phase = Phase::Closing;
    peer.deadline_ms = Some(deadline_ms);
    // A stream that is out of step cannot be read any further; one that is not, still can.
    if failure.code == FRAME_ERROR {
        peer.phase = Phase::Deaf;
    }
}

/// The shard forgets the connection, and with it go channels and everything that waits for them.
fn leave<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32) {
    let peer = fx.front().peer(slot);
    let connection = peer.connection.take();
    let channels = std::mem::take(&mut peer.channels);
    peer.consumers.clear();
    peer.orphans.clear();
    peer.streaming = None;
    peer.pause = None;
    let incomplete = channels.iter().filter_map(|(_, channel)| channel.content.as_deref());
    let reserved = incomplete.map(|content| content.body.len() as u64).sum();
    fx.front().release_assembly(slot, reserved);
    if let Some(connection) = connection {
        shard.close_connection(fx, connection);
    }
}

/// Gives a connection up without a word.
pub(super) fn cut<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32) {
    leave(shard, fx, slot);
    fx.front().peer(slot).phase = Phase::Dead;
    fx.front().mark_dirty(slot);
}

/// The socket is gone, or was closed as its disposition said: the slot is free from now on.
pub fn disconnected<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32) {
    leave(shard, fx, slot);
    fx.front().peers.remove(slot as usize);
}

/// Tells every client that the broker ends. The connections close when they have answered.
pub fn shutdown<E: HasFront>(shard: &mut Shard, fx: &mut E, reason: &str) {
    let slots: Vec<u32> = fx.front().peers.iter().map(|(slot, _)| slot as u32).collect();
    for slot in slots {
        if fx.front().peer(slot).is_running() {
            fail_connection(shard, fx, slot, &Failure::new(CONNECTION_FORCED, reason, (0, 0)));
        } else if !matches!(fx.front().peer(slot).phase, Phase::Closing | Phase::Deaf) {
            fx.front().peer(slot).phase = Phase::Flushing;
            fx.front().mark_dirty(slot);
        }
    }
}

const _: () = assert!(codec::HEARTBEAT_FRAME.len() == FRAME_OVERHEAD_BYTES, "a heartbeat has no payload");
