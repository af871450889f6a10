//! What is refused: with which code, ids and text, and what stays open.
//!
//! `channel_rows` and `connection_rows` list the situations one by one, each with what is sent and how it is
//! answered; `logins` has those before a channel is open, `waits` those that come by themselves, and `frames` what
//! is wrong below the level of methods. What is asked of every row: a channel error leaves the connection and its
//! other channels open, a connection error closes the socket once it is answered, and nobody else notices either.

mod bench;
mod channel_rows;
mod connection_rows;
mod frames;
mod kinder;
mod logins;
mod waits;
