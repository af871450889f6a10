//! Lepus, an AMQP 0-9-1 broker.

pub mod amqp;
pub mod boot;
pub mod check_store;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod policies;
pub mod server;
pub mod stored_topology;

#[cfg(test)]
mod test_dir;
