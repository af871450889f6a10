//! Batches between shards.
//!
//! Each ordered pair of shards has two bounded rings, with one producer and one consumer each: one for
//! [`Lane::Forward`], publishes and requests, which may fill and then stops the reading of the
//! sockets that fill it, and one for [`Lane::Reply`], what is bounded by credit and must always come
//! through: replies, deliveries, settlements. A third ring carries emptied batches back, so that the
//! memory of a one-way flow returns to where it is filled.
//!
//! A [`MeshPort`] belongs to one shard and is used on its thread only. Atomics are touched once per
//! batch, never per message. A receiver that sleeps is woken by the protocol in [`parking`].
//!
//! # Order
//!
//! Within one lane from one shard to another, batches arrive in the order in which they were sent.
//! Across the lanes one promise holds: *what was sent on the Reply lane before something was sent on
//! the Forward lane is received before it*. (A settlement that precedes a request must not be
//! overtaken by it.) Two rules make it true:
//!
//! - A sender hands in its Reply batches of a turn before its Forward batches, and while a Reply batch
//!   has been given back to it by a full ring, it hands in no Forward batch for the same shard.
//! - [`MeshPort::drain`] first notes how many Forward batches there are, then takes the replies, and
//!   then takes as many Forward batches as it noted. A Forward batch that arrives in between, whose
//!   replies may not have been seen, waits for the next call.
#![forbid(unsafe_code)]

mod parking;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_utils::CachePadded;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::ShardId;
use crate::limits::RING_BATCHES;

pub use parking::{Bell, Parking};

/// Which of the two ways to another shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// Replies, deliveries, settlements, credit: bounded by credit, never behind Forward.
    Reply,
    /// Publishes and requests: when it is full, whoever fills it has to wait.
    Forward,
}

/// Makes the ports of all shards.
#[derive(Debug)]
pub struct Mesh;

impl Mesh {
    /// One port for each bell, in the order of the shards. The bell wakes its shard out of
    /// [`MeshPort::try_park`].
    pub fn build<B: Send>(bells: Vec<Arc<dyn Bell>>) -> Vec<MeshPort<B>> {
        let parkings: Vec<Arc<Parking>> =
            bells.into_iter().map(|bell| Arc::new(Parking::new(bell))).collect();
        let mut ports: Vec<MeshPort<B>> = parkings
            .iter()
            .enumerate()
            .map(|(index, parking)| MeshPort {
                id: shard_id(index),
                parking: Arc::clone(parking),
                links: Vec::with_capacity(parkings.len()),
            })
            .collect();
        // Every sender gets one outgoing half for each receiver; a shard's way to itself has none.
        let mut outgoing: Vec<Vec<Option<Outgoing<B>>>> = Vec::with_capacity(ports.len());
        let mut incoming: Vec<Vec<Option<Incoming<B>>>> =
            ports.iter().map(|_| Vec::with_capacity(parkings.len())).collect();
        for sender in 0..ports.len() {
            let mut row = Vec::with_capacity(ports.len());
            for (receiver, column) in incoming.iter_mut().enumerate() {
                if sender == receiver {
                    row.push(None);
                    column.push(None);
                } else {
                    let (out, inn) = ring_set(&parkings[sender], &parkings[receiver]);
                    row.push(Some(out));
                    column.push(Some(inn));
                }
            }
            outgoing.push(row);
        }
        for ((port, row), column) in ports.iter_mut().zip(outgoing).zip(incoming) {
            port.links = row
                .into_iter()
                .zip(column)
                .map(|(outgoing, incoming)| Some(Link { outgoing: outgoing?, incoming: incoming? }))
                .collect();
        }
        ports
    }
}

fn shard_id(index: usize) -> ShardId {
    ShardId(u16::try_from(index).expect("SHARDS_MAX fits 16 bits"))
}

fn ring_set<B>(sender: &Arc<Parking>, receiver: &Arc<Parking>) -> (Outgoing<B>, Incoming<B>) {
    let starved = Arc::new(CachePadded::new(AtomicBool::new(false)));
    let (receiver, sender) = (Arc::clone(receiver), Arc::clone(sender));
    let (reply_in, reply_out) = RingBuffer::new(RING_BATCHES);
    let (forward_in, forward_out) = RingBuffer::new(RING_BATCHES);
    let (spent_in, spent_out) = RingBuffer::new(RING_BATCHES);
    (
        Outgoing {
            reply: reply_in,
            forward: forward_in,
            spent: spent_out,
            receiver,
            unannounced: false,
            starved: Arc::clone(&starved),
        },
        Incoming { reply: reply_out, forward: forward_out, spent: spent_in, sender, starved },
    )
}

struct Outgoing<B> {
    reply: Producer<B>,
    forward: Producer<B>,
    spent: Consumer<B>,
    receiver: Arc<Parking>,
    /// Something was handed in and the receiver has not been told.
    unannounced: bool,
    starved: Arc<Starved>,
}

impl<B> Outgoing<B> {
    fn ring(&mut self, lane: Lane) -> &mut Producer<B> {
        match lane {
            Lane::Reply => &mut self.reply,
            Lane::Forward => &mut self.forward,
        }
    }
}

/// The sender has found a ring full and is to be woken when there is room.
type Starved = CachePadded<AtomicBool>;

struct Incoming<B> {
    reply: Consumer<B>,
    forward: Consumer<B>,
    spent: Producer<B>,
    sender: Arc<Parking>,
    starved: Arc<Starved>,
}

impl<B> Incoming<B> {
    /// Takes one batch that is known to be there.
    fn take(&mut self, lane: Lane, take: impl FnOnce(&mut B)) {
        let ring = match lane {
            Lane::Reply => &mut self.reply,
            Lane::Forward => &mut self.forward,
        };
        let mut batch = ring.pop().expect("only this shard takes from the ring, and it has counted");
        take(&mut batch);
        // When enough are on their way back already, this one is freed here.
        drop(self.spent.push(batch));
    }

    /// There is room again, for a sender that wants to know.
    fn wake_starved(&self) {
        fence(Ordering::SeqCst);
        if self.starved.load(Ordering::Relaxed) && self.starved.swap(false, Ordering::AcqRel) {
            self.sender.wake();
        }
    }
}

struct Link<B> {
    outgoing: Outgoing<B>,
    incoming: Incoming<B>,
}

/// One shard's end of all its rings. Sent to the shard's thread at start and stays there.
pub struct MeshPort<B> {
    id: ShardId,
    parking: Arc<Parking>,
    /// By the other shard's number; none for the shard itself.
    links: Vec<Option<Link<B>>>,
}

impl<B: Send> MeshPort<B> {
    /// Whose port this is.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// How many shards there are, this one included.
    pub fn shards(&self) -> usize {
        self.links.len()
    }

    /// How others wake this shard after leaving something for it outside the mesh.
    pub fn parking(&self) -> &Arc<Parking> {
        &self.parking
    }

    /// Hands a batch in, or gives it back when the ring is full. The receiver is told by
    /// [`Self::announce_sent`]. After a batch was given back, this shard is woken once there is room.
    ///
    /// # Panics
    /// When `to` is this shard or does not exist.
    pub fn try_send(&mut self, to: ShardId, lane: Lane, batch: B) -> Result<(), B> {
        let outgoing = &mut self.link(to).outgoing;
        if let Err(rtrb::PushError::Full(batch)) = outgoing.ring(lane).push(batch) {
            // The mark comes before the sender's last look for room ([`Self::has_room`], on its way to
            // sleep), and the receiver looks at it after making room: see `parking` for why one of
            // them sees the other.
            outgoing.starved.store(true, Ordering::Relaxed);
            return Err(batch);
        }
        outgoing.unannounced = true;
        Ok(())
    }

    /// Whether [`Self::try_send`] would take a batch now.
    pub fn has_room(&self, to: ShardId, lane: Lane) -> bool {
        let link = self.links[to.index()].as_ref().expect("a shard has no way to itself");
        match lane {
            Lane::Reply => !link.outgoing.reply.is_full(),
            Lane::Forward => !link.outgoing.forward.is_full(),
        }
    }

    /// Wakes the sleeping ones among the shards that were sent something since the last call. Once a
    /// turn, after the last [`Self::try_send`].
    pub fn announce_sent(&mut self) {
        for link in self.links.iter_mut().flatten() {
            if std::mem::take(&mut link.outgoing.unannounced) {
                link.outgoing.receiver.wake();
            }
        }
    }

    /// Shows what has arrived to `take`, which leaves each batch empty, in the order that the module's
    /// page promises; the emptied batches go back to their senders. Takes at most what was there at
    /// the beginning: at most two rings full from each peer. Returns how many batches.
    pub fn drain(&mut self, mut take: impl FnMut(ShardId, Lane, &mut B)) -> usize {
        let mut taken = 0;
        for (index, link) in self.links.iter_mut().enumerate() {
            let Some(Link { incoming, .. }) = link else { continue };
            let from = shard_id(index);
            // Looking at the Forward ring acquires what its sender did before: the replies that were
            // handed in earlier are visible to the second look.
            let forward = incoming.forward.slots();
            let replies = incoming.reply.slots();
            for _ in 0..replies {
                incoming.take(Lane::Reply, |batch| take(from, Lane::Reply, batch));
            }
            for _ in 0..forward {
                incoming.take(Lane::Forward, |batch| take(from, Lane::Forward, batch));
            }
            if replies + forward > 0 {
                incoming.wake_starved();
            }
            taken += replies + forward;
        }
        taken
    }

    /// Whether anything has arrived that [`Self::drain`] would take.
    pub fn has_arrivals(&self) -> bool {
        self.links
            .iter()
            .flatten()
            .any(|link| !link.incoming.reply.is_empty() || !link.incoming.forward.is_empty())
    }

    /// An emptied batch that came back from this shard, to be filled again.
    pub fn take_spent(&mut self, from: ShardId) -> Option<B> {
        self.link(from).outgoing.spent.pop().ok()
    }

    /// Says that this shard is about to sleep, and looks once more. True: it may sleep, and its bell
    /// is rung once when something arrives; false: there is something to do. `has_work` tells whether
    /// anything waits outside the mesh whose senders use [`Parking::wake`], or whether there is room again
    /// for a batch that was given back.
    pub fn try_park(&mut self, has_work: impl FnOnce(&MeshPort<B>) -> bool) -> bool {
        self.parking.announce();
        if self.has_arrivals() || has_work(self) {
            self.parking.cancel();
            return false;
        }
        true
    }

    /// Says that this shard is awake, for whatever reason it woke.
    pub fn unpark(&mut self) {
        self.parking.cancel();
    }

    fn link(&mut self, peer: ShardId) -> &mut Link<B> {
        self.links[peer.index()].as_mut().expect("a shard sends nothing to itself through the mesh")
    }
}

impl<B> std::fmt::Debug for MeshPort<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeshPort").field("id", &self.id).field("shards", &self.links.len()).finish()
    }
}

#[cfg(test)]
mod tests;
