//! Batches on their way out of a shard: filled during a turn, handed to the mesh at its end.

use std::collections::VecDeque;

use lepus_shards::ShardId;
use lepus_shards::mesh::MeshPort;
use lepus_shards::shard::{Batch, Lane};

use super::limits::{OUTBOX_BATCHES_MAX, SPARE_BATCHES_MAX};

/// What waits for one peer on one lane: full batches in order, then the one that is being filled.
#[derive(Debug, Default)]
struct Outbox {
    full: VecDeque<Batch>,
    filling: Batch,
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.filling.is_empty()
    }
}

/// Both lanes' outboxes, for each peer.
#[derive(Debug)]
pub struct Outboxes {
    /// Reply and Forward, by the peer's number; the shard's own stay empty.
    lanes: [Vec<Outbox>; 2],
    spare: Vec<Batch>,
    /// Forward batches begun or gone on with: tells whether a connection's input made any.
    forwarded: u64,
}

fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::Reply => 0,
        Lane::Forward => 1,
    }
}

impl Outboxes {
    /// Empty ones.
    pub fn new(shards: usize) -> Outboxes {
        let lane = || (0..shards).map(|_| Outbox::default()).collect();
        Outboxes { lanes: [lane(), lane()], spare: Vec::new(), forwarded: 0 }
    }

    /// The batch that goes to this peer on this lane next, with room in it.
    pub fn outgoing(&mut self, to: ShardId, lane: Lane) -> &mut Batch {
        if lane == Lane::Forward {
            self.forwarded += 1;
        }
        let outbox = &mut self.lanes[lane_index(lane)][to.index()];
        if outbox.filling.is_full() {
            let next = self.spare.pop().unwrap_or_default();
            outbox.full.push_back(std::mem::replace(&mut outbox.filling, next));
        }
        &mut outbox.filling
    }

    /// Counts up whenever something is put on a Forward lane.
    pub fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Some peer takes in less on its Forward lane than this shard has for it.
    pub fn congested(&self) -> bool {
        self.lanes[lane_index(Lane::Forward)].iter().any(|outbox| outbox.full.len() >= OUTBOX_BATCHES_MAX)
    }

    /// Hands to the mesh what it takes, Reply before Forward, and nothing on a peer's Forward lane
    /// while some of its Reply waits: the order that the mesh promises rests on it.
    /// `now_us` is for the receiver, to see how long it took.
    pub fn send(&mut self, port: &mut MeshPort<Batch>, now_us: u64) {
        for index in 0..port.shards() {
            let to = ShardId(index as u16);
            if to == port.id() {
                continue;
            }
            while self.spare.len() < SPARE_BATCHES_MAX
                && let Some(batch) = port.take_spent(to)
            {
                self.spare.push(batch);
            }
            for lane in [Lane::Reply, Lane::Forward] {
                if !self.send_lane(port, to, lane, now_us) {
                    break;
                }
            }
        }
        port.announce_sent();
    }

    /// True if nothing is left.
    fn send_lane(&mut self, port: &mut MeshPort<Batch>, to: ShardId, lane: Lane, now_us: u64) -> bool {
        let outbox = &mut self.lanes[lane_index(lane)][to.index()];
        while let Some(mut batch) = outbox.full.pop_front() {
            batch.sent_us = now_us;
            if let Err(batch) = port.try_send(to, lane, batch) {
                outbox.full.push_front(batch);
                return false;
            }
        }
        if outbox.filling.is_empty() {
            return true;
        }
        outbox.filling.sent_us = now_us;
        let next = self.spare.pop().unwrap_or_default();
        match port.try_send(to, lane, std::mem::replace(&mut outbox.filling, next)) {
            Ok(()) => true,
            Err(batch) => {
                let unused = std::mem::replace(&mut outbox.filling, batch);
                self.spare.push(unused);
                false
            }
        }
    }

    /// Whether [`Self::send`] would get something away now.
    pub fn can_send(&self, port: &MeshPort<Batch>) -> bool {
        (0..port.shards()).map(|index| ShardId(index as u16)).any(|to| {
            let first = [Lane::Reply, Lane::Forward]
                .into_iter()
                .find(|lane| !self.lanes[lane_index(*lane)][to.index()].is_empty());
            first.is_some_and(|lane| to != port.id() && port.has_room(to, lane))
        })
    }

    /// Nothing waits for anybody.
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().flatten().all(Outbox::is_empty)
    }
}
