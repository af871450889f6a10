//! How much space a file system has.

use std::io;
use std::path::Path;

use crate::sys;

/// Bytes that this process could still write to the file system of `path`.
///
/// # Errors
/// What the system says.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    sys::free_bytes(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_some_space_and_a_missing_path_none() {
        assert!(free_bytes(Path::new("/")).unwrap() > 0);
        assert!(free_bytes(Path::new("/no/such/path")).is_err());
    }
}
