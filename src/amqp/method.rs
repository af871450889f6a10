//! Methods that are not hot, through `amq-protocol`.

use amq_protocol::frame::WriteContext;
use amq_protocol::protocol::{AMQPClass, gen_class, parse_class};

use super::codec::put_method;
use super::failure::Ids;
use super::table::{Malformed, check_table, short, skip};

/// Class and method at the start of a method frame's payload.
pub fn ids(payload: &[u8]) -> Option<Ids> {
    let head = payload.first_chunk::<4>()?;
    Some((u16::from_be_bytes([head[0], head[1]]), u16::from_be_bytes([head[2], head[3]])))
}

/// Why a method cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// There is no such method.
    Unknown,
    /// Its arguments are not well-formed.
    Malformed,
}

/// Reads a method.
///
/// # Errors
/// [`Unreadable`]; tables that are nested too deep count as malformed, and are found before anything
/// recursive looks at them.
pub fn read(payload: &[u8]) -> Result<AMQPClass, Unreadable> {
    let ids = ids(payload).ok_or(Unreadable::Malformed)?;
    check_tables(ids, &payload[4..]).map_err(|Malformed| Unreadable::Malformed)?;
    match parse_class(payload) {
        Ok(([], class)) => Ok(class),
        Ok(_) => Err(Unreadable::Malformed),
        Err(_) if is_known(ids) => Err(Unreadable::Malformed),
        Err(_) => Err(Unreadable::Unknown),
    }
}

/// Checks the table among the arguments of a method that has one.
fn check_tables(ids: Ids, arguments: &[u8]) -> Result<(), Malformed> {
    // What stands before the table: bytes to skip, short strings, a byte of bits.
    let (bytes, strings, bits) = match ids {
        (10, 11) => (0, 0, 0),
        (40, 10) => (2, 2, 1),
        (40, 30 | 40) => (2, 3, 1),
        (50, 10) => (2, 1, 1),
        (50, 20) => (2, 3, 1),
        (50, 50) => (2, 3, 0),
        (60, 20) => (2, 2, 1),
        _ => return Ok(()),
    };
    let mut rest = skip(arguments, bytes)?;
    for _ in 0..strings {
        rest = short(rest)?.1;
    }
    check_table(skip(rest, bits)?).map(|_| ())
}

fn is_known((class, method): Ids) -> bool {
    match class {
        10 => matches!(method, 10 | 11 | 20 | 21 | 30 | 31 | 40 | 41 | 50 | 51 | 60 | 61 | 70 | 71),
        20 => matches!(method, 10 | 11 | 20 | 21 | 40 | 41),
        30 => matches!(method, 10 | 11),
        40 => matches!(method, 10 | 11 | 20 | 21 | 30 | 31 | 40 | 51),
        50 => matches!(method, 10 | 11 | 20 | 21 | 30 | 31 | 40 | 41 | 50 | 51),
        60 => matches!(
            method,
            10 | 11 | 20 | 21 | 30 | 31 | 40 | 50 | 60 | 70 | 71 | 72 | 80 | 90 | 100 | 110 | 111 | 120
        ),
        85 => matches!(method, 10 | 11),
        90 => matches!(method, 10 | 11 | 20 | 21 | 30 | 31),
        _ => false,
    }
}

/// Appends a method frame.
pub fn write(out: &mut Vec<u8>, channel: u16, class: &AMQPClass) {
    put_method(out, channel, |out| {
        let buffer = std::mem::take(out);
        let written = gen_class(class)(WriteContext::from(buffer));
        *out = written.expect("a vector takes everything").into_inner().0;
    });
}
