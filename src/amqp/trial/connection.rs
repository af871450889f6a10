//! Scripts: what up to two clients send, how it is cut, and when time passes; and what must hold whatever
//! they do.

use std::fmt;

use amq_protocol::frame::{AMQPFrame, parse_frame};

use super::{Trial, frame, handshake, method};
use crate::amqp::codec::{
    BODY, ContentHeader, FRAME_END, FrameHead, HEADER, HEARTBEAT, HEARTBEAT_FRAME, METHOD,
};
use crate::amqp::properties::Properties;
use crate::amqp::table::{Malformed, short, skip};
use crate::amqp::{Disposition, disconnected};

/// What may be kept of each byte that was sent: it lies in one buffer, which may have grown to twice its
/// contents; the stash keeps its room when its frames have gone to another.
const KEPT_PER_BYTE: usize = 8;
/// What may be said for each byte that was sent, contents of messages apart. The most is asked for by
/// declaring passively what was declared last: 20 bytes for an answer with a name of 255.
const SAID_PER_BYTE: usize = 16;
/// Beside that, for each connection: the server's properties, its close.
const SAID_BESIDE: usize = 1_024;
/// A heartbeat is due every half interval; the least is one second.
const HEARTBEAT_MS: u64 = 500;

/// With this much memory for messages, and for bodies that are not complete, it is soon short.
const SHORT_BUDGET_BYTES: u64 = 1_000;
const SHORT_ASSEMBLY_BYTES: u64 = 200;

/// One thing that happens.
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// These bytes come in one read.
    Send(Vec<u8>),
    /// Time passes, and what is to be closed is closed. Who comes back then, connects again.
    Wait {
        /// How much.
        ms: u64,
    },
    /// From now on it is the other client that sends.
    Other,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Send(bytes) => write!(f, "Send(b\"{}\")", bytes.escape_ascii()),
            Step::Wait { ms } => write!(f, "Wait({ms} ms)"),
            Step::Other => f.write_str("Other"),
        }
    }
}

/// All that happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// The first client has a connection with channel 1 open; else it has just connected.
    pub open: bool,
    /// The clients read what is sent to them only when time passes.
    pub lazy: bool,
    /// Memory for messages and incomplete bodies is short.
    pub short: bool,
    /// In this order.
    pub steps: Vec<Step>,
}

impl Script {
    /// Reads a script out of any bytes. The lowest bits of the first are `open`, `lazy` and `short`. Then
    /// each step begins with a byte:
    ///
    /// | byte | step |
    /// |---|---|
    /// | 0 to 199 | what is sent follows; this is its length less one |
    /// | 200 to 239 | a whole frame is sent, of the kind that [`FRAMES`] has there: a byte with its channel, a byte with the length of what is in it, and that |
    /// | 240 to 254 | 239 and the seconds that pass |
    /// | 255 | the other client's turn |
    pub fn read(bytes: &[u8]) -> Script {
        let (first, mut rest) = bytes.split_first().map_or((0, bytes), |(first, rest)| (*first, rest));
        let mut steps = Vec::new();
        while let Some((&control, behind)) = rest.split_first() {
            rest = behind;
            let mut take = |most: usize| {
                let (taken, behind) = rest.split_at(rest.len().min(most));
                rest = behind;
                taken
            };
            steps.push(match control {
                0..=199 => Step::Send(take(usize::from(control) + 1).to_vec()),
                200..=239 => {
                    let channel = take(1).first().map_or(0, |byte| u16::from(*byte));
                    let count = take(1).first().map_or(0, |byte| usize::from(*byte));
                    let (kind, ids) = FRAMES[usize::from(control - 200) % FRAMES.len()];
                    Step::Send(frame(kind, channel, &[ids, take(count)].concat()))
                }
                240..=254 => Step::Wait { ms: u64::from(control - 239) * 1_000 },
                255 => Step::Other,
            });
        }
        Script { open: first & 1 != 0, lazy: first & 2 != 0, short: first & 4 != 0, steps }
    }
}

/// Kinds of frames with what their payloads begin with: all that a client may send.
const FRAMES: [(u8, &[u8]); 36] = [
    (METHOD, &[0, 60, 0, 40, 0, 0]),
    (HEADER, &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0]),
    (BODY, &[]),
    (METHOD, &[0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0]),
    (METHOD, &[0, 60, 0, 90, 0, 0, 0, 0, 0, 0, 0]),
    (METHOD, &[0, 60, 0, 120, 0, 0, 0, 0, 0, 0, 0]),
    (METHOD, &[0, 60, 0, 10, 0, 0, 0, 0, 0]),
    (METHOD, &[0, 60, 0, 20, 0, 0]),
    (METHOD, &[0, 60, 0, 30]),
    (METHOD, &[0, 60, 0, 70, 0, 0]),
    (METHOD, &[0, 60, 0, 100]),
    (METHOD, &[0, 60, 0, 110]),
    (METHOD, &[0, 50, 0, 10, 0, 0]),
    (METHOD, &[0, 50, 0, 20, 0, 0]),
    (METHOD, &[0, 50, 0, 30, 0, 0]),
    (METHOD, &[0, 50, 0, 40, 0, 0]),
    (METHOD, &[0, 50, 0, 50, 0, 0]),
    (METHOD, &[0, 40, 0, 10, 0, 0]),
    (METHOD, &[0, 40, 0, 20, 0, 0]),
    (METHOD, &[0, 40, 0, 30, 0, 0]),
    (METHOD, &[0, 40, 0, 40, 0, 0]),
    (METHOD, &[0, 20, 0, 10]),
    (METHOD, &[0, 20, 0, 20]),
    (METHOD, &[0, 20, 0, 21]),
    (METHOD, &[0, 20, 0, 40]),
    (METHOD, &[0, 20, 0, 41]),
    (METHOD, &[0, 85, 0, 10]),
    (METHOD, &[0, 90, 0, 10]),
    (METHOD, &[0, 10, 0, 11]),
    (METHOD, &[0, 10, 0, 31]),
    (METHOD, &[0, 10, 0, 40]),
    (METHOD, &[0, 10, 0, 50]),
    (METHOD, &[0, 10, 0, 51]),
    (METHOD, &[0, 10, 0, 70]),
    (METHOD, &[]),
    (HEARTBEAT, &[]),
];

/// Plays the script that any bytes are.
pub fn check_connection(bytes: &[u8]) {
    play(&Script::read(bytes));
}

/// Plays a script and checks that it does no harm: no panic, output that is well-formed, memory in proportion
/// to what was sent, nothing left behind, and others served as ever.
pub fn play(script: &Script) {
    let mut stage = Stage::new(script);
    for step in &script.steps {
        match step {
            Step::Send(bytes) => stage.send(bytes),
            Step::Wait { ms } => stage.wait(*ms),
            Step::Other => stage.turn = 1 - stage.turn,
        }
        if !script.lazy {
            stage.read_all();
        }
        stage.check_kept();
    }
    stage.leave();
    let Trial { shard, around, .. } = &mut stage.trial;
    assert!(around.front.is_empty(), "no connection is left");
    assert_eq!(around.front.assembly_reserved_bytes, 0, "no part of a body is left");
    assert_eq!(around.front.assembly_turn, None, "nobody is waited for who is gone");
    let exclusive = shard.topology().queues().find(|queue| queue.exclusive.is_some());
    assert_eq!(exclusive, None, "no queue is left to a connection that is gone");
    shard.assert_consistent();
    let healthy = stage.trial.open();
    stage.trial.send(healthy, &method(1, 50, 10, &[0, 0, 0, 4, 0, 0, 0, 0]));
    let said = stage.trial.take(healthy);
    assert_eq!(said.get(7..11), Some(&[0, 50, 0, 11][..]), "an exclusive queue is declared");
    assert_eq!(stage.trial.around.front.disposition(healthy), Disposition::Open);
}

/// A trial and its clients.
struct Stage {
    trial: Trial,
    slots: [Option<u32>; 2],
    /// Whose turn it is to send.
    turn: usize,
    sent: usize,
    /// Contents of messages apart.
    said: usize,
    connected: usize,
}

impl Stage {
    fn new(script: &Script) -> Stage {
        let trial = match script.short {
            true => Trial::with_budgets(SHORT_BUDGET_BYTES, SHORT_ASSEMBLY_BYTES),
            false => Trial::new(u64::MAX),
        };
        let mut stage = Stage { trial, slots: [None; 2], turn: 0, sent: 0, said: 0, connected: 0 };
        stage.connect(script.open);
        stage
    }

    fn connect(&mut self, open: bool) -> u32 {
        let slot = if open { self.trial.open() } else { self.trial.accept() };
        self.slots[self.turn] = Some(slot);
        self.connected += 1;
        slot
    }

    fn send(&mut self, bytes: &[u8]) {
        // Who comes later has shaken hands.
        let slot = self.slots[self.turn].unwrap_or_else(|| self.connect(true));
        self.sent += bytes.len();
        self.trial.send(slot, bytes);
    }

    fn wait(&mut self, ms: u64) {
        self.trial.pass(ms);
        self.read_all();
        self.trial.shard.assert_consistent();
        for slot in &mut self.slots {
            if let Some(gone) =
                slot.take_if(|slot| self.trial.around.front.disposition(*slot) != Disposition::Open)
            {
                disconnected(&mut self.trial.shard, &mut self.trial.around, gone);
            }
        }
        self.trial.turn();
    }

    fn read_all(&mut self) {
        for slot in self.slots.iter().flatten() {
            self.said += check_said(&self.trial.take(*slot)).expect("what is said is well-formed");
        }
        // What waited for the output to be read goes on.
        self.trial.turn();
        let heartbeats = self.trial.now_ms / HEARTBEAT_MS * HEARTBEAT_FRAME.len() as u64;
        let most = SAID_PER_BYTE * self.sent + SAID_BESIDE * self.connected + 2 * heartbeats as usize;
        assert!(self.said <= most, "{} bytes said for {}, not {most}", self.said, self.sent);
    }

    fn check_kept(&self) {
        let slots = self.slots.iter().flatten();
        let kept: usize = slots.map(|slot| self.trial.around.front.kept_bytes(*slot)).sum();
        let most = KEPT_PER_BYTE * (self.sent + self.connected * handshake().len());
        assert!(kept <= most, "{kept} bytes kept of {}, not {most}", self.sent);
    }

    fn leave(&mut self) {
        self.read_all();
        for slot in self.slots.iter_mut().filter_map(Option::take) {
            disconnected(&mut self.trial.shard, &mut self.trial.around, slot);
        }
        self.trial.turn();
    }
}

/// Checks that bytes are a protocol header, if they are one, and whole frames, each content behind its method.
/// Gives the bytes of everything but the messages.
fn check_said(bytes: &[u8]) -> Result<usize, Malformed> {
    let mut rest = bytes.strip_prefix(b"AMQP\0\0\x09\x01").unwrap_or(bytes);
    let mut said = bytes.len() - rest.len();
    while !rest.is_empty() {
        let (head, payload, behind) = take_frame(rest)?;
        let carries_content = match payload {
            [0, 60, 0, 50, arguments @ ..] if head.kind == METHOD => names(arguments, 2, 3, 0)?,
            [0, 60, 0, 60, arguments @ ..] if head.kind == METHOD => {
                let (_tag, rest) = short(arguments)?;
                names(rest, 9, 2, 0)?
            }
            [0, 60, 0, 71, arguments @ ..] if head.kind == METHOD => names(arguments, 9, 2, 4)?,
            _ => false,
        };
        if carries_content {
            rest = take_content(behind, head.channel)?;
            continue;
        }
        // What is not a message is all text that the broker has read, or written itself.
        match parse_frame(&rest[..head.frame_bytes()]) {
            Ok(([], AMQPFrame::Method(channel, _))) if channel == head.channel => {}
            Ok(([], AMQPFrame::Heartbeat)) => {}
            other => panic!("the broker said {other:?}"),
        }
        said += head.frame_bytes();
        rest = behind;
    }
    Ok(said)
}

/// Whether arguments are `before` bytes, so many short strings and `behind` bytes.
fn names(arguments: &[u8], before: usize, strings: usize, behind: usize) -> Result<bool, Malformed> {
    let mut rest = skip(arguments, before)?;
    for _ in 0..strings {
        rest = short(rest)?.1;
    }
    if rest.len() == behind { Ok(true) } else { Err(Malformed) }
}

/// A whole frame: its head, its payload, and what follows it.
fn take_frame(bytes: &[u8]) -> Result<(FrameHead, &[u8], &[u8]), Malformed> {
    let head = FrameHead::read(bytes).ok_or(Malformed)?;
    let (frame, behind) = bytes.split_at_checked(head.frame_bytes()).ok_or(Malformed)?;
    match frame {
        [payload @ .., FRAME_END] => Ok((head, &payload[FrameHead::BYTES..], behind)),
        _ => Err(Malformed),
    }
}

/// A content on this channel, up to its last byte; gives what follows it.
fn take_content(bytes: &[u8], channel: u16) -> Result<&[u8], Malformed> {
    let (head, payload, mut rest) = take_frame(bytes)?;
    let header = ContentHeader::read(payload)?;
    Properties::parse(header.properties)?;
    if (head.kind, head.channel) != (HEADER, channel) {
        return Err(Malformed);
    }
    let mut due = header.body_size;
    while due > 0 {
        let (head, part, behind) = take_frame(rest)?;
        if (head.kind, head.channel) != (BODY, channel) || part.is_empty() {
            return Err(Malformed);
        }
        due = due.checked_sub(part.len() as u64).ok_or(Malformed)?;
        rest = behind;
    }
    Ok(rest)
}
