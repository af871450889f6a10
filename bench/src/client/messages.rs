//! Whole messages on a blocking client, one at a time: for round trips, where nothing is hot but the wait.

use std::io;
use std::time::Duration;

use amq_protocol::protocol::basic::parse_properties;

use super::Client;
use super::blocking::refusal;
use crate::error::BenchError;
use crate::wire::scan::{Event, Frames};

/// How often somebody who waits without end looks whether to go on.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// Where the reply should go.
    pub reply_to: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Client {
    /// The next delivery, which is due.
    ///
    /// # Errors
    /// When it does not come in time, or the broker closes the channel.
    pub fn due_message(&mut self) -> Result<Message, BenchError> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(message);
            }
            self.read("a reply")?;
        }
    }

    /// The next delivery, or none when `on` says so while nothing comes.
    ///
    /// # Errors
    /// When the broker closes the channel.
    pub fn next_message(&mut self, on: impl Fn() -> bool) -> Result<Option<Message>, BenchError> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            match self.read("a request") {
                Err(BenchError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    if !on() {
                        return Ok(None);
                    }
                }
                other => other?,
            }
        }
    }

    /// Makes [`Self::next_message`] look at its condition often.
    ///
    /// # Errors
    /// When the socket does not take it.
    pub fn wait_in_small_steps(&mut self) -> Result<(), BenchError> {
        Ok(self.socket.set_read_timeout(Some(LOOK_EVERY))?)
    }

    /// A message, if all of it is here.
    fn take_message(&mut self) -> Result<Option<Message>, BenchError> {
        if !self.kept.is_empty() {
            self.kept.append(&mut self.input);
            self.input = std::mem::take(&mut self.kept);
        }
        let mut frames = Frames::new(&self.input);
        let (mut message, mut left) = (None, 0);
        while let Some(frame) = frames.next_frame()? {
            let event = frame.event().ok_or_else(|| BenchError::Unexpected("an unknown frame".to_owned()))?;
            match event {
                Event::Header(size) => {
                    left = size;
                    message = Some(Message { reply_to: reply_to(&frame.payload[12..])?, body: Vec::new() });
                }
                Event::Body(part) => {
                    let message = message.get_or_insert_with(Message::default);
                    message.body.extend_from_slice(part);
                    left = left.saturating_sub(part.len() as u64);
                }
                Event::Other(payload) => {
                    if let Some(error) = refusal("a message", payload)? {
                        return Err(error);
                    }
                }
                _ => {}
            }
            if left == 0 && message.is_some() {
                let consumed = frames.consumed();
                self.input.drain(..consumed);
                return Ok(message);
            }
        }
        Ok(None)
    }
}

fn reply_to(properties: &[u8]) -> Result<Option<String>, BenchError> {
    // Most messages have none, and then there is nothing to read.
    if properties.starts_with(&[0, 0]) {
        return Ok(None);
    }
    match parse_properties(properties) {
        Ok((_, properties)) => Ok(properties.reply_to().as_ref().map(|to| to.as_str().to_owned())),
        Err(_) => Err(BenchError::Unexpected("properties that cannot be read".to_owned())),
    }
}
