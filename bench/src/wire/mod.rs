//! AMQP 0-9-1 on the wire, as far as it is hot: messages encoded before the clock starts, and frames that are read
//! where they lie. Everything else goes through `amq-protocol`, which the tests here compare with.

pub mod deck;
pub mod encode;
pub mod scan;
