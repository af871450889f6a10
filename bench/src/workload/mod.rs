//! The workloads, one a file. Each takes its options and gives a [`crate::report::Report`], and leaves no queue behind.

pub mod backlog;
pub mod churn;
pub mod confirms;
pub mod fanout;
pub mod idle;
pub mod latency;
pub mod limit;
pub mod loopback;
pub mod parties;
pub mod raw_write;
pub mod rpc;
pub mod sweep;
pub mod throughput;
pub mod together;
