//! What Lepus needs of its host, asked and judged.
//!
//! | module | question |
//! |---|---|
//! | [`kernel`] | which version is this |
//! | [`uring`] | may this process use io_uring, and can it do what the executor submits |
//! | [`limits`] | how much memory may be locked, how many files be open |
//! | [`cpus`] | which CPUs may this process run on, and how many of them at full speed |
//! | [`disk`] | how much space does a file system have |
//! | [`memory`] | how much memory is there for this process |
//! | [`cgroup`] | what the control group allows |
//! | [`doctor`] | all in all, is this host fit, and what would make it better |
//! | [`files`] | what does an operator install |
//!
//! All of it runs on the main thread, before shards exist or without any. Each answer is a value; each error is typed
//! and its text says what to do. Nothing here knows what a broker is.

#![deny(unsafe_code)]

pub mod cgroup;
pub mod cpus;
pub mod disk;
pub mod doctor;
pub mod files;
pub mod kernel;
pub mod limits;
pub mod memory;
#[allow(unsafe_code)]
mod sys;
pub mod uring;

#[cfg(test)]
mod test_dir;
