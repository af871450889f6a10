//! What the server needs of a protocol, to run it on sockets.
//!
//! A protocol is sans-IO: bytes in, bytes out, by the slot of a connection that it chose when the
//! connection was accepted. It keeps all its connections of one shard in one value, which is also the
//! shard's front end. Methods that may have effects get the shard and its surroundings; the
//! protocol's own value is then [`Surroundings::front`].

use std::net::SocketAddr;

use lepus_shards::ConnectionId;
use lepus_shards::shard::{FrontEnd, Shard};

use super::surroundings::Surroundings;

/// What is to become of a connection's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// It goes on.
    Keep,
    /// Nothing more is said to the client than what is in the output; then the socket closes. What it
    /// still sends is ignored.
    CloseWhenWritten,
    /// It closes at once.
    CloseNow,
}

/// A protocol, and its connections on one shard.
pub trait Protocol: FrontEnd + Sized + 'static {
    /// A new connection of a client, to this address of ours. Returns its slot, which is its own until
    /// [`Self::disconnected`].
    fn accept(&mut self, peer: SocketAddr, local: SocketAddr, now_ms: u64) -> u32;

    /// Bytes have come in. They are taken whole, or copied where they must wait.
    fn receive(shard: &mut Shard, around: &mut Surroundings<Self>, slot: u32, bytes: &[u8]);

    /// Goes on with input that had to wait for an answer, as far as it can.
    fn resume(shard: &mut Shard, around: &mut Surroundings<Self>);

    /// The socket is gone: so is everything that the connection held. Frees the slot.
    fn disconnected(shard: &mut Shard, around: &mut Surroundings<Self>, slot: u32);

    /// What is due by the clock: heartbeats both ways, limits of time.
    fn tick(shard: &mut Shard, around: &mut Surroundings<Self>, now_ms: u64);

    /// The broker stops: every connection is told and closed.
    fn shutdown(shard: &mut Shard, around: &mut Surroundings<Self>, reason: &str);

    /// Bytes for the client that have not been written.
    fn pending(&mut self, slot: u32) -> &[u8];

    /// The first so many of the pending bytes have been written.
    fn written(&mut self, slot: u32, count: usize);

    /// A connection whose output or disposition has changed since it was last named here.
    fn next_dirty(&mut self) -> Option<u32>;

    /// What is to become of the socket.
    fn disposition(&self, slot: u32) -> Disposition;

    /// Whether the socket should be read.
    fn wants_input(&self, slot: u32) -> bool;

    /// The shard's name for the connection, once it has one.
    fn connection_id(&self, slot: u32) -> Option<ConnectionId>;
}
