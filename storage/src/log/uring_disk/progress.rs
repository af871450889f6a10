//! How far a write has come, told from the results of its operations. No system call is made here.
//!
//! Invariants: a write that asked for stable storage is done only when all its bytes were synced, and a
//! sync that failed is never tried again alone: what it should have written may be forgotten by then.

use std::io;

use crate::log::format::BLOCK_BYTES;

/// What brings a write to stable storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sync {
    /// Nothing: it need not get there yet.
    None,
    /// The write itself, by `RWF_DSYNC`.
    Dsync,
    /// A linked `fdatasync`, which the kernel starts once the write is whole.
    Fsync,
}

/// One operation of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Write,
    Sync,
}

/// What to do after a result.
#[derive(Debug)]
pub(super) enum Next {
    /// Other operations of the round are still under way.
    Wait,
    /// Begin a round with what is left.
    Again,
    Done(io::Result<()>),
}

/// A write as a row of rounds; mostly of one.
#[derive(Debug)]
pub(super) struct Progress {
    len: usize,
    written: usize,
    direct: bool,
    sync: Sync,
    /// Operations of this round whose results are not known.
    outstanding: u32,
    wrote: i32,
    synced: i32,
    /// The kernel took the write without the sync that is linked to it: they ran in any order.
    cut: bool,
}

impl Progress {
    /// A write of this many bytes.
    pub fn new(len: usize, direct: bool, sync: Sync) -> Progress {
        Progress { len, written: 0, direct, sync, outstanding: 0, wrote: 0, synced: 0, cut: false }
    }

    pub fn sync(&self) -> Sync {
        self.sync
    }

    /// Bytes from the front that need not be written again.
    pub fn written(&self) -> usize {
        self.written
    }

    /// The kernel may hold the buffer.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// The operations of a round are queued.
    pub fn begin_round(&mut self) {
        assert_eq!(self.outstanding, 0, "one round at a time");
        self.outstanding = if self.sync == Sync::Fsync { 2 } else { 1 };
        self.cut = false;
        self.synced = 0;
    }

    /// The kernel took only a part of the round's operations.
    pub fn cut_link(&mut self) {
        self.cut = true;
    }

    /// The result of an operation, as in a completion: a count, or an error number below zero.
    pub fn completed(&mut self, operation: Operation, result: i32) -> Next {
        match operation {
            Operation::Write => self.wrote = result,
            Operation::Sync => self.synced = result,
        }
        self.outstanding -= 1;
        if self.outstanding > 0 { Next::Wait } else { self.end_round() }
    }

    fn end_round(&mut self) -> Next {
        let cancelled = self.synced == -libc::ECANCELED;
        if self.synced < 0 && !cancelled && !is_transient(self.synced) {
            return Next::Done(Err(io::Error::from_raw_os_error(-self.synced)));
        }
        let Ok(wrote) = usize::try_from(self.wrote) else {
            return if is_transient(self.wrote) {
                Next::Again
            } else {
                Next::Done(Err(io::Error::from_raw_os_error(-self.wrote)))
            };
        };
        let mut written = self.written + wrote;
        if self.direct && written < self.len {
            // The next one has to begin at a block again.
            written -= written % BLOCK_BYTES;
        }
        if written == self.written {
            return Next::Done(Err(io::ErrorKind::WriteZero.into()));
        }
        self.written = written;
        if written < self.len {
            return Next::Again;
        }
        if self.cut || self.synced < 0 {
            self.written = 0;
            return Next::Again;
        }
        Next::Done(Ok(()))
    }
}

fn is_transient(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4 * BLOCK_BYTES;
    const ALL: i32 = LEN as i32;

    /// Plays rounds of results; says where each round began and how it ended.
    fn play(direct: bool, sync: Sync, rounds: &[&[(Operation, i32)]]) -> (Vec<usize>, io::Result<()>) {
        let mut progress = Progress::new(LEN, direct, sync);
        let mut began = Vec::new();
        for (number, round) in rounds.iter().enumerate() {
            began.push(progress.written());
            progress.begin_round();
            let (last, others) = round.split_last().unwrap();
            for (operation, result) in others {
                assert!(matches!(progress.completed(*operation, *result), Next::Wait));
            }
            match progress.completed(last.0, last.1) {
                Next::Wait => panic!("the round is over"),
                Next::Again => assert!(number + 1 < rounds.len(), "no end after round {number}"),
                Next::Done(result) => {
                    assert_eq!(number + 1, rounds.len(), "an early end");
                    assert!(!progress.is_outstanding());
                    return (began, result);
                }
            }
        }
        unreachable!("rounds are given");
    }

    fn error(direct: bool, sync: Sync, rounds: &[&[(Operation, i32)]]) -> io::Error {
        play(direct, sync, rounds).1.unwrap_err()
    }

    use Operation::{Sync as Synced, Write as Wrote};

    #[test]
    fn a_whole_write_is_done_in_one_round() {
        for sync in [Sync::None, Sync::Dsync] {
            let (began, result) = play(true, sync, &[&[(Wrote, ALL)]]);
            assert_eq!(began, [0]);
            result.unwrap();
        }
        play(false, Sync::Fsync, &[&[(Wrote, ALL), (Synced, 0)]]).1.unwrap();
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped() {
        let (began, result) = play(false, Sync::Dsync, &[&[(Wrote, 5000)], &[(Wrote, ALL - 5000)]]);
        assert_eq!(began, [0, 5000]);
        result.unwrap();
    }

    #[test]
    fn a_short_direct_write_goes_on_at_a_block() {
        let block = BLOCK_BYTES as i32;
        let (began, result) = play(true, Sync::Dsync, &[&[(Wrote, block + 512)], &[(Wrote, ALL - block)]]);
        assert_eq!(began, [0, BLOCK_BYTES]);
        result.unwrap();
        assert_eq!(error(true, Sync::Dsync, &[&[(Wrote, 512)]]).kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn a_short_write_breaks_the_link_and_the_rest_is_synced() {
        let (began, result) = play(
            false,
            Sync::Fsync,
            &[
                &[(Wrote, 4096), (Synced, -libc::ECANCELED)],
                &[(Synced, -libc::ECANCELED), (Wrote, 4096)],
                &[(Wrote, ALL - 8192), (Synced, 0)],
            ],
        );
        assert_eq!(began, [0, 4096, 8192]);
        result.unwrap();
    }

    #[test]
    fn what_was_interrupted_is_tried_again() {
        for errno in [libc::EINTR, libc::EAGAIN] {
            let (began, result) = play(true, Sync::Dsync, &[&[(Wrote, -errno)], &[(Wrote, ALL)]]);
            assert_eq!(began, [0, 0]);
            result.unwrap();
        }
    }

    #[test]
    fn an_interrupted_sync_is_not_tried_again_without_its_bytes() {
        let (began, result) = play(
            false,
            Sync::Fsync,
            &[
                &[(Wrote, 4096), (Synced, -libc::ECANCELED)],
                &[(Wrote, ALL - 4096), (Synced, -libc::EINTR)],
                &[(Wrote, ALL), (Synced, 0)],
            ],
        );
        assert_eq!(began, [0, 4096, 0]);
        result.unwrap();
    }

    #[test]
    fn a_sync_that_did_not_wait_for_its_write_does_not_count() {
        let mut progress = Progress::new(LEN, true, Sync::Fsync);
        progress.begin_round();
        progress.cut_link();
        assert!(matches!(progress.completed(Synced, 0), Next::Wait));
        assert!(matches!(progress.completed(Wrote, ALL), Next::Again));
        assert_eq!(progress.written(), 0);
        progress.begin_round();
        assert!(matches!(progress.completed(Wrote, ALL), Next::Wait));
        assert!(matches!(progress.completed(Synced, 0), Next::Done(Ok(()))));
    }

    #[test]
    fn other_errors_are_the_writes_error() {
        let refused = error(true, Sync::Dsync, &[&[(Wrote, -libc::ENOSPC)]]);
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        let refused = error(true, Sync::Fsync, &[&[(Wrote, -libc::EIO), (Synced, -libc::ECANCELED)]]);
        assert_eq!(refused.raw_os_error(), Some(libc::EIO));
        let refused = error(true, Sync::Fsync, &[&[(Wrote, ALL), (Synced, -libc::EIO)]]);
        assert_eq!(refused.raw_os_error(), Some(libc::EIO));
        let refused = error(false, Sync::None, &[&[(Wrote, 4096)], &[(Wrote, -libc::ENOSPC)]]);
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(error(false, Sync::None, &[&[(Wrote, 0)]]).kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn a_failed_sync_counts_even_beside_a_short_write() {
        let refused = error(false, Sync::Fsync, &[&[(Wrote, 4096), (Synced, -libc::EIO)]]);
        assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    }
}
