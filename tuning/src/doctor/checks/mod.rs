//! The checks, one function each, by what they look at.

pub(super) mod cpu;
pub(super) mod disk;
pub(super) mod kernel;
pub(super) mod limits;
pub(super) mod memory;
pub(super) mod net;
pub(super) mod numa;
