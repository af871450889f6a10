//! The harness of the whole-broker tests: a broker process, a raw AMQP client, and what the operating system
//! says about both.
//!
//! The tests themselves are in `broker/`. They start the real binary on a free port, each with a data
//! directory of its own. With `LEPUS_TEST_URL=amqp://guest:guest@127.0.0.1:5672` in the environment the tests that
//! need nothing but AMQP run against that broker instead; `LEPUS_BIN` names a binary to test.

#[path = "harness/frames.rs"]
pub mod frames;
#[path = "harness/limits.rs"]
pub mod limits;
#[path = "harness/method.rs"]
pub mod method;
#[path = "harness/os.rs"]
pub mod os;
#[path = "harness/process.rs"]
pub mod process;
#[path = "harness/verbs.rs"]
mod verbs;
#[path = "harness/wire.rs"]
pub mod wire;

pub use method::{Arguments, Method, Properties};
pub use process::{Broker, Setup};
pub use wire::{Close, Delivery, Event, Login, Wire};
