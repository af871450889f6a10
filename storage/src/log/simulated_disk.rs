//! A disk for tests: on a seed it is slow, and when the power goes it loses what was not synced, block by
//! block.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use super::disk::{AlignedBuffer, Completion, Disk};
use super::recovery::SegmentFiles;

const SECTOR_BYTES: usize = 512;

enum Errand {
    Prepare { segment: u64, bytes: u64, recycled: Option<u64> },
    Remove(u64),
    Read { segment: u64, offset: u64, bytes: usize },
}

struct Write {
    segment: u64,
    offset: u64,
    buffer: AlignedBuffer,
    sync: bool,
}

/// How a disk misbehaves.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// Says that a write is on stable storage when it is not.
    pub lies: bool,
    /// One write in so many fails, after some of its sectors were written.
    pub fails_one_in: Option<u32>,
    /// Bytes that fit.
    pub capacity: Option<u64>,
}

/// What outlives the process.
pub struct World {
    /// What would be read now.
    files: BTreeMap<u64, Vec<u8>>,
    /// What was written beside them; a power loss tears some.
    summaries: BTreeMap<u64, Vec<u8>>,
    /// Sectors that were overwritten and may come back when the power goes: segment, offset, old bytes.
    unsynced: Vec<(u64, usize, Vec<u8>)>,
    writing: Option<Write>,
    errands: VecDeque<Errand>,
    rng: fastrand::Rng,
    pub faults: Faults,
}

/// A handle on it: the log's, and the test's.
#[derive(Clone)]
pub struct SimulatedDisk(pub Rc<RefCell<World>>);

impl SimulatedDisk {
    pub fn new(seed: u64) -> SimulatedDisk {
        let world = World {
            files: BTreeMap::new(),
            summaries: BTreeMap::new(),
            unsynced: Vec::new(),
            writing: None,
            errands: VecDeque::new(),
            rng: fastrand::Rng::with_seed(seed),
            faults: Faults::default(),
        };
        SimulatedDisk(Rc::new(RefCell::new(world)))
    }

    /// The power goes: errands are done up to some point, and of each sector that was not synced there is
    /// the old or the new.
    pub fn lose_power(&self) {
        let mut world = self.0.borrow_mut();
        let errands = world.errands.len();
        let done = world.rng.usize(..=errands);
        for _ in 0..done {
            world.run_errand();
        }
        world.errands.clear();
        if let Some(write) = world.writing.take() {
            world.apply(&write);
        }
        let World { summaries, rng, .. } = &mut *world;
        for summary in summaries.values_mut() {
            if rng.u8(..4) == 0 {
                summary.truncate(rng.usize(..=summary.len()));
            }
        }
        for (segment, offset, old) in std::mem::take(&mut world.unsynced).into_iter().rev() {
            let lost = world.rng.bool();
            if lost && let Some(file) = world.files.get_mut(&segment) {
                file[offset..offset + old.len()].copy_from_slice(&old);
            }
        }
    }

    /// The process is killed: what the kernel has stays; the write under way is done or not.
    pub fn kill(&self) {
        let mut world = self.0.borrow_mut();
        world.errands.clear();
        if let Some(write) = world.writing.take()
            && world.rng.bool()
        {
            world.apply(&write);
        }
    }

    /// What was written to a segment is on stable storage now.
    pub fn sync(&self, segment: u64) {
        self.0.borrow_mut().unsynced.retain(|(other, ..)| *other != segment);
    }

    pub fn segments(&self) -> Vec<u64> {
        self.0.borrow().files.keys().copied().collect()
    }

    /// Damages a file.
    pub fn change(&self, segment: u64, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.0.borrow_mut().files.get_mut(&segment).expect("the file is there"));
    }
}

impl SegmentFiles for SimulatedDisk {
    fn segment(&self, segment: u64) -> io::Result<Vec<u8>> {
        self.0.borrow().files.get(&segment).cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    fn summary(&self, segment: u64) -> Option<Vec<u8>> {
        self.0.borrow().summaries.get(&segment).cloned()
    }
}

impl World {
    fn apply(&mut self, write: &Write) {
        let file = self.files.get_mut(&write.segment).expect("a prepared segment is written");
        let start = write.offset as usize;
        assert!(start + write.buffer.len() <= file.len(), "no write goes past the end of a segment");
        assert!(
            start.is_multiple_of(4096) && write.buffer.len().is_multiple_of(4096),
            "whole blocks are written"
        );
        for (index, sector) in write.buffer.as_slice().chunks(SECTOR_BYTES).enumerate() {
            let offset = start + index * SECTOR_BYTES;
            let place = &mut file[offset..offset + sector.len()];
            self.unsynced.push((write.segment, offset, place.to_vec()));
            place.copy_from_slice(sector);
        }
    }

    fn run_errand(&mut self) -> Option<Completion> {
        match self.errands.pop_front()? {
            Errand::Prepare { segment, bytes, recycled } => {
                let old = recycled.and_then(|number| self.remove(number));
                let taken: u64 = self.files.values().map(|file| file.len() as u64).sum();
                if self.faults.capacity.is_some_and(|capacity| taken + bytes > capacity) {
                    return Some(Completion::Prepared(segment, Err(io::ErrorKind::StorageFull.into())));
                }
                let mut file = old.or_else(|| self.files.remove(&segment)).unwrap_or_default();
                file.resize(bytes as usize, 0);
                self.files.insert(segment, file);
                Some(Completion::Prepared(segment, Ok(())))
            }
            Errand::Remove(segment) => {
                self.remove(segment);
                None
            }
            Errand::Read { segment, offset, bytes } => {
                let content = match self.files.get(&segment) {
                    Some(file) => {
                        let from = (offset as usize).min(file.len());
                        let to = (from + bytes).min(file.len());
                        let mut buffer = AlignedBuffer::default();
                        buffer.append(to - from, |out| out.extend_from_slice(&file[from..to]));
                        Ok(buffer)
                    }
                    None => Err(io::ErrorKind::NotFound.into()),
                };
                Some(Completion::Read(segment, offset, content))
            }
        }
    }

    fn remove(&mut self, segment: u64) -> Option<Vec<u8>> {
        self.summaries.remove(&segment);
        self.files.remove(&segment)
    }
}

impl Disk for SimulatedDisk {
    fn write(&mut self, segment: u64, offset: u64, buffer: AlignedBuffer, sync: bool) {
        let former = self.0.borrow_mut().writing.replace(Write { segment, offset, buffer, sync });
        assert!(former.is_none(), "one write at a time");
    }

    fn prepare(&mut self, segment: u64, bytes: u64, recycled: Option<u64>) {
        self.0.borrow_mut().errands.push_back(Errand::Prepare { segment, bytes, recycled });
    }

    fn remove(&mut self, segment: u64) {
        self.0.borrow_mut().errands.push_back(Errand::Remove(segment));
    }

    fn read(&mut self, segment: u64, offset: u64, bytes: usize) {
        self.0.borrow_mut().errands.push_back(Errand::Read { segment, offset, bytes });
    }

    fn free(&mut self, _buffer: AlignedBuffer) {}

    fn summarize(&mut self, segment: u64, summary: Vec<u8>) {
        let mut world = self.0.borrow_mut();
        if !world.faults.lies {
            world.unsynced.retain(|(other, ..)| *other != segment);
        }
        world.summaries.insert(segment, summary);
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut world = self.0.borrow_mut();
        if world.rng.bool()
            && let Some(write) = world.writing.take()
        {
            let fails = world.faults.fails_one_in;
            if fails.is_some_and(|one_in| world.rng.u32(..one_in) == 0) {
                world.apply(&write);
                return Some(Completion::Written(write.buffer, Err(io::Error::from_raw_os_error(5))));
            }
            world.apply(&write);
            if write.sync && !world.faults.lies {
                let (segment, from) = (write.segment, write.offset as usize);
                let to = from + write.buffer.len();
                world.unsynced.retain(|(other, offset, _)| *other != segment || !(from..to).contains(offset));
            }
            return Some(Completion::Written(write.buffer, Ok(())));
        }
        while world.rng.u8(..3) == 0 && !world.errands.is_empty() {
            if let Some(completion) = world.run_errand() {
                return Some(completion);
            }
        }
        None
    }
}
