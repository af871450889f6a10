//! A thread that makes and removes segment files for one disk, or reads them, in the order in which it was
//! asked, and the doorbell that it shares with the ring.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use super::files::Files;
use crate::log::disk::{AlignedBuffer, Completion};

/// Wakes the shard, once it has said how.
#[derive(Clone, Default)]
pub(super) struct Doorbell(Arc<OnceLock<File>>);

impl Doorbell {
    /// From now on this eventfd is rung. Only the first one counts.
    pub fn connect(&self, eventfd: OwnedFd) {
        let _ = self.0.set(File::from(eventfd));
    }

    pub fn ring(&self) {
        if let Some(mut eventfd) = self.0.get() {
            // It can only be refused because the counter is at its end: it has been rung, then.
            let _ = eventfd.write(&1_u64.to_ne_bytes());
        }
    }
}

pub(super) enum Job {
    Prepare { segment: u64, bytes: u64, recycled: Option<u64> },
    Remove(u64),
    Read { segment: u64, offset: u64, bytes: usize },
    Summarize { segment: u64, summary: Vec<u8> },
    Free(AlignedBuffer),
}

pub(super) struct Helper {
    /// There until the drop.
    jobs: Option<Sender<Job>>,
    done: Receiver<Completion>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Its thread gives way to the shard by `niceness`, from 0 to 19: both may find themselves on the same core.
    pub fn start(files: Files, doorbell: Doorbell, niceness: i32) -> io::Result<Helper> {
        let (jobs, asked) = mpsc::channel();
        let (tell, done) = mpsc::channel();
        let run = move || {
            // It works without it.
            let _ = rustix::process::nice(niceness);
            for job in asked {
                if let Some(completion) = perform(&files, job) {
                    // Nobody listens while the disk is dropped; the rest of the queue is done all the same.
                    let _ = tell.send(completion);
                    doorbell.ring();
                }
            }
        };
        let thread = thread::Builder::new().name("lepus-segments".to_owned()).spawn(run)?;
        Ok(Helper { jobs: Some(jobs), done, thread: Some(thread) })
    }

    pub fn ask(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("there until the drop");
        assert!(jobs.send(job).is_ok(), "the helper thread of the log is gone");
    }

    /// What is done, if something is.
    pub fn poll(&self) -> Option<Completion> {
        self.done.try_recv().ok()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has said its reason already.
            let _ = thread.join();
        }
    }
}

fn perform(files: &Files, job: Job) -> Option<Completion> {
    match job {
        Job::Prepare { segment, bytes, recycled } => {
            Some(Completion::Prepared(segment, files.prepare(segment, bytes, recycled)))
        }
        Job::Remove(segment) => {
            if let Err(error) = files.remove(segment) {
                tracing::warn!(directory = %files.directory.display(), segment, %error, "a segment stays");
            }
            None
        }
        Job::Read { segment, offset, bytes } => {
            Some(Completion::Read(segment, offset, files.read(segment, offset, bytes)))
        }
        Job::Free(buffer) => {
            drop(buffer);
            None
        }
        Job::Summarize { segment, summary } => {
            // Without it the next start reads the segment.
            if let Err(error) = files.summarize(segment, &summary) {
                tracing::debug!(directory = %files.directory.display(), segment, %error, "no summary is written");
            }
            None
        }
    }
}
