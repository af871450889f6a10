//! Whole-broker tests: a real process, real sockets, and clients that others wrote.
//!
//! Most tests use the harness's own blocking client, because it hides nothing and writes wrong bytes when it is told
//! to. A name starting with `lapin` or `amqprs` says which foreign client a test uses. What is asked of Lepus alone
//! starts its broker with [`lepus_tests::Broker::own`], and passes without a word when the tests run against another one.

mod backlog;
mod bench;
mod clients;
mod compete;
mod content;
mod crash;
mod declare;
mod delayed;
mod durable;
mod errors;
mod exchanges;
mod expiry;
mod firehose;
mod flood;
mod handshake;
mod hostile;
mod idle;
mod ledger;
mod lifecycle;
mod policies;
mod prefetch;
mod queues;
mod replies;
mod supervisor;
mod timings;
mod transactions;
