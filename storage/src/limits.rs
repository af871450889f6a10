//! Every bound of the stores.

/// The format of the data directory that this version writes, and the newest that it reads.
pub const DATA_FORMAT: u32 = 1;

/// Most commits that a topology store holds before their completions are taken. A declare is a few
/// hundred bytes, so this is a fraction of a megabyte, and more than one synchronous write can use up.
pub const COMMITS_OUTSTANDING_MAX: usize = 1024;

/// Pages of the topology file kept in memory. Rows are read once, at start: the cache only serves
/// the inner pages that commits touch.
pub const TOPOLOGY_CACHE_BYTES: usize = 16 * 1024 * 1024;
