//! Frames read where they lie: no allocation, no copy.
//!
//! A scan ends before the first frame that is not whole; the caller keeps those bytes and puts what comes
//! next behind them.

use crate::error::BenchError;
use crate::limits::{FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES};

const END: u8 = 0xCE;

/// One frame, where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// 1 method, 2 header, 3 body, 8 heartbeat.
    pub kind: u8,
    /// 0 for the connection.
    pub channel: u16,
    /// Between the head and the end byte.
    pub payload: &'a [u8],
}

/// What a frame says, as far as load cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A delivery begins.
    Deliver(Deliver<'a>),
    /// A content header: bytes of the body that follows.
    Header(u64),
    /// A piece of a body.
    Body(&'a [u8]),
    /// The broker has taken messages: tag, multiple.
    Ack(u64, bool),
    /// The broker has not taken messages: tag, multiple.
    Nack(u64, bool),
    /// A mandatory message found no queue; header and body follow.
    Return,
    /// A heartbeat.
    Heartbeat,
    /// Any other method, for `amq-protocol`.
    Other(&'a [u8]),
}

/// The method of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deliver<'a> {
    /// For the ack.
    pub tag: u64,
    /// Whether somebody had it before.
    pub redelivered: bool,
    /// Consumer tag, delivery tag, flag, exchange and key, as they stand in the frame.
    arguments: &'a [u8],
}

impl<'a> Deliver<'a> {
    /// Exchange and routing key.
    pub fn route(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (_, rest) = short(self.arguments)?;
        let (exchange, rest) = short(rest.get(9..)?)?;
        Some((exchange, short(rest)?.0))
    }
}

/// The whole frames at the start of `bytes`.
#[derive(Debug)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Frames<'a> {
    /// Starts at a frame's first byte.
    pub fn new(bytes: &'a [u8]) -> Frames<'a> {
        Frames { bytes, at: 0 }
    }

    /// Bytes of whole frames so far.
    pub fn consumed(&self) -> usize {
        self.at
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// When there is no frame at this place: then the stream is lost.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Frame<'a>>, BenchError> {
        let rest = &self.bytes[self.at..];
        let Some(head) = rest.first_chunk::<7>() else { return Ok(None) };
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if size > FRAME_BYTES_MAX {
            return Err(lost(rest));
        }
        let whole = size + FRAME_OVERHEAD_BYTES;
        if rest.len() < whole {
            return Ok(None);
        }
        if rest[whole - 1] != END {
            return Err(lost(rest));
        }
        self.at += whole;
        let channel = u16::from_be_bytes([head[1], head[2]]);
        Ok(Some(Frame { kind: head[0], channel, payload: &rest[7..whole - 1] }))
    }

    /// The next whole frame, understood.
    ///
    /// # Errors
    /// When there is no frame at this place, or one that makes no sense.
    #[inline]
    pub fn next_event(&mut self) -> Result<Option<Event<'a>>, BenchError> {
        let Some(frame) = self.next_frame()? else { return Ok(None) };
        frame.event().map(Some).ok_or_else(|| lost(frame.payload))
    }
}

impl<'a> Frame<'a> {
    /// What it says, or nothing if it makes no sense.
    #[inline]
    pub fn event(&self) -> Option<Event<'a>> {
        match self.kind {
            1 => method(self.payload),
            2 => Some(Event::Header(u64::from_be_bytes(*self.payload.get(4..)?.first_chunk()?))),
            3 => Some(Event::Body(self.payload)),
            8 => Some(Event::Heartbeat),
            _ => None,
        }
    }
}

#[inline]
fn method(payload: &[u8]) -> Option<Event<'_>> {
    let (ids, arguments) = payload.split_first_chunk::<4>()?;
    Some(match ids {
        [0, 60, 0, 60] => {
            let (_, rest) = short(arguments)?;
            let (tag, rest) = rest.split_first_chunk::<8>()?;
            let redelivered = rest.first()? & 1 != 0;
            Event::Deliver(Deliver { tag: u64::from_be_bytes(*tag), redelivered, arguments })
        }
        [0, 60, 0, 80] => {
            let (tag, bits) = settlement(arguments)?;
            Event::Ack(tag, bits & 1 != 0)
        }
        [0, 60, 0, 120] => {
            let (tag, bits) = settlement(arguments)?;
            Event::Nack(tag, bits & 1 != 0)
        }
        [0, 60, 0, 50] => Event::Return,
        _ => Event::Other(payload),
    })
}

fn settlement(arguments: &[u8]) -> Option<(u64, u8)> {
    let (tag, rest) = arguments.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*tag), *rest.first()?))
}

/// Exchange and routing key of a publish method's payload.
pub fn publish_route(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (exchange, rest) = short(payload.strip_prefix(&[0, 60, 0, 40, 0, 0])?)?;
    let (key, bits) = short(rest)?;
    (bits.len() == 1).then_some((exchange, key))
}

#[inline]
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

#[cold]
fn lost(bytes: &[u8]) -> BenchError {
    BenchError::Unexpected(format!("a frame that cannot be read: {:02x?}", &bytes[..bytes.len().min(32)]))
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame};
    use amq_protocol::protocol::{AMQPClass, basic};

    use super::*;

    fn encoded(frames: &[AMQPFrame]) -> Vec<u8> {
        frames
            .iter()
            .fold(Vec::new(), |out, frame| gen_frame(frame)(WriteContext::from(out)).unwrap().into_inner().0)
    }

    fn conversation() -> Vec<u8> {
        let basic = |method| AMQPFrame::Method(1, AMQPClass::Basic(method));
        let deliver = basic::Deliver {
            consumer_tag: "consumer".into(),
            delivery_tag: 5,
            redelivered: true,
            exchange: "e".into(),
            routing_key: "key".into(),
        };
        let header = AMQPContentHeader {
            class_id: 60,
            body_size: 3,
            properties: basic::AMQPProperties::default().with_delivery_mode(2),
        };
        encoded(&[
            basic(basic::AMQPMethod::Deliver(deliver)),
            AMQPFrame::Header(1, header),
            AMQPFrame::Body(1, vec![1, 2]),
            AMQPFrame::Body(1, vec![3]),
            AMQPFrame::Heartbeat,
            basic(basic::AMQPMethod::Ack(basic::Ack { delivery_tag: 6, multiple: true })),
            basic(basic::AMQPMethod::Nack(basic::Nack { delivery_tag: 7, multiple: false, requeue: true })),
            basic(basic::AMQPMethod::CancelOk(basic::CancelOk { consumer_tag: "c".into() })),
        ])
    }

    fn all(bytes: &[u8]) -> (Vec<Event<'_>>, usize) {
        let mut frames = Frames::new(bytes);
        let mut events = Vec::new();
        while let Some(event) = frames.next_event().unwrap() {
            events.push(event);
        }
        (events, frames.consumed())
    }

    #[test]
    fn what_amq_protocol_writes_is_read_as_it_was_meant() {
        let bytes = conversation();
        let (events, consumed) = all(&bytes);
        assert_eq!(consumed, bytes.len());
        let Event::Deliver(deliver) = events[0] else { panic!("{:?}", events[0]) };
        assert_eq!((deliver.tag, deliver.redelivered), (5, true));
        assert_eq!(deliver.route(), Some((&b"e"[..], &b"key"[..])));
        assert_eq!(
            events[1..7],
            [
                Event::Header(3),
                Event::Body(&[1, 2]),
                Event::Body(&[3]),
                Event::Heartbeat,
                Event::Ack(6, true),
                Event::Nack(7, false),
            ]
        );
        assert_eq!(events[7], Event::Other(&[0, 60, 0, 31, 1, b'c']));
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_events() {
        let bytes = conversation();
        let whole = format!("{:?}", all(&bytes).0);
        for cut in 0..bytes.len() {
            let (first, consumed) = all(&bytes[..cut]);
            let (second, rest) = all(&bytes[consumed..]);
            assert_eq!(consumed + rest, bytes.len());
            assert_eq!(format!("{:?}", [first, second].concat()), whole, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let good = conversation();
        let mut end = good.clone();
        let first = Frames::new(&good).next_frame().unwrap().unwrap().payload.len() + 7;
        end[first] = 0;
        let mut size = good.clone();
        size[3] = 0xFF;
        let mut kind = good.clone();
        kind[0] = 4;
        for bytes in [end, size, kind] {
            assert!(Frames::new(&bytes).next_event().is_err());
        }
    }

    #[test]
    fn a_truncated_method_is_an_error_and_no_panic() {
        for arguments in 0..12 {
            for method in [60, 80, 120] {
                let mut payload = vec![0, 60, 0, method];
                payload.extend(vec![1; arguments]);
                let mut bytes = vec![1, 0, 1];
                bytes.extend((payload.len() as u32).to_be_bytes());
                bytes.extend(&payload);
                bytes.push(END);
                let _ = Frames::new(&bytes).next_event();
            }
        }
    }
}
