//! The yardstick of the log's latency: synchronous overwrites of 4 KiB in a prepared segment, one at a
//! time, turn by turn as a plain `pwritev2(RWF_DSYNC)` and through [`UringDisk`], whose completion is
//! awaited in each of the ways that a thread can: looking without a pause, looking and yielding the
//! processor in between, and sleeping on the eventfd.
//!
//! Where the device cannot write through its cache (`queue/fua` is 0), a synchronous write ends in a
//! kernel thread on the processor that took the interrupt. A thread that looks without a pause on that
//! same processor can keep it from running until the scheduler's next tick.
//!
//! `cargo run --release -p lepus-storage --example sync_write -- DIRECTORY [WRITES]`

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, hint, thread};

use lepus_storage::log::{AlignedBuffer, Completion, Disk as _, UringDisk, UringOptions};

const BLOCK_BYTES: u64 = 4096;
const SEGMENT_BYTES: u64 = 64 << 20;
/// Left out of the figures.
const WARM_UP: u64 = 100;

fn main() -> io::Result<()> {
    let mut arguments = env::args_os().skip(1);
    let directory = arguments.next().map_or_else(|| PathBuf::from("sync-write"), PathBuf::from);
    let writes = arguments.next().and_then(|count| count.to_str()?.parse().ok()).unwrap_or(2000_u64);

    let mut disk = UringDisk::open(&directory, UringOptions::default())?;
    let start = Instant::now();
    disk.prepare(1, SEGMENT_BYTES, None);
    match wait(&mut disk, thread::yield_now) {
        Completion::Prepared(_, result) => result?,
        other => unreachable!("{other:?} was not asked for"),
    }
    println!("written with {}; 64 MiB prepared in {:.0?}", disk.method(), start.elapsed());

    // As the disk itself writes: past the page cache if the file system lets it.
    let path = directory.join("segment-0000000000000001.log");
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path);
    let file = direct.or_else(|_| OpenOptions::new().write(true).open(&path))?;
    let eventfd = eventfd()?;
    disk.register_eventfd(eventfd.as_fd())?;
    let sleep = || {
        // It may be rung already for what was looked at before; then it is read once more.
        let _ = (&eventfd).read(&mut [0; 8]);
    };
    let pauses: [(&str, &dyn Fn()); 3] = [
        ("UringDisk, spinning", &hint::spin_loop),
        ("UringDisk, yielding", &thread::yield_now),
        ("UringDisk, sleeping", &sleep),
    ];

    let mut buffer = AlignedBuffer::default();
    buffer.pad_to(BLOCK_BYTES as usize);
    buffer.as_mut_slice().fill(0xa5);
    let mut times: [Vec<Duration>; 4] = Default::default();
    let mut offsets = (0..SEGMENT_BYTES / BLOCK_BYTES).map(|block| block * BLOCK_BYTES).cycle();
    let mut offset = || offsets.next().expect("it begins again");
    for round in 0..WARM_UP + writes {
        let start = Instant::now();
        write_plainly(&file, buffer.as_slice(), offset())?;
        let mut took = [start.elapsed(); 4];
        for ((_, pause), took) in pauses.iter().zip(&mut took[1..]) {
            let start = Instant::now();
            disk.write(1, offset(), buffer, true);
            match wait(&mut disk, pause) {
                Completion::Written(back, result) => {
                    result?;
                    buffer = back;
                }
                other => unreachable!("{other:?} was not asked for"),
            }
            *took = start.elapsed();
        }
        if round >= WARM_UP {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
    }
    disk.remove(1);

    times.iter_mut().for_each(|times| times.sort_unstable());
    let plain = quantile(&times[0], 0.5);
    let names = ["pwritev2(RWF_DSYNC)"].into_iter().chain(pauses.map(|(name, _)| name));
    for (name, times) in names.zip(&times) {
        let [median, most, longest] = [0.5, 0.99, 1.0].map(|share| quantile(times, share));
        let ratio = median.as_secs_f64() / plain.as_secs_f64();
        println!("{name}  median {median:.1?}  99% {most:.1?}  longest {longest:.1?}  ratio {ratio:.3}");
    }
    Ok(())
}

fn wait(disk: &mut UringDisk, pause: impl Fn()) -> Completion {
    loop {
        if let Some(completion) = disk.poll() {
            return completion;
        }
        pause();
    }
}

fn eventfd() -> io::Result<File> {
    // SAFETY: it takes numbers, and the descriptor that it makes is owned by the file alone.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC) {
            fd if fd >= 0 => Ok(File::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn write_plainly(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the vector and the bytes outlive the call, which only reads them; `file` is open.
    let written =
        unsafe { libc::pwritev2(file.as_raw_fd(), &vector, 1, offset as libc::off_t, libc::RWF_DSYNC) };
    match written {
        count if count == bytes.len() as isize => Ok(()),
        count if count >= 0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share) as usize).copied().unwrap_or_default()
}
