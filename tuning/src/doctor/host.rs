//! A host's `/proc` and `/sys`: the real ones, or a copy under another root.
//!
//! Everything is read as it is wanted, and what cannot be read is not there. Paths are given without the
//! leading slash.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cpus;

/// See the module.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// The host that this process runs on.
    pub fn this() -> Host {
        Host::at(Path::new("/"))
    }

    /// A host whose files stand under this directory.
    pub fn at(root: &Path) -> Host {
        Host { root: root.to_owned() }
    }

    /// `/`, or what stands for it.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The file's text without the space around it.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_owned())
    }

    /// A file that holds one number.
    pub(super) fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// A file that holds a list such as `0-3,8`; an empty one is an empty list.
    pub(super) fn cpu_list(&self, path: impl AsRef<Path>) -> Option<Vec<usize>> {
        match self.text(path)?.as_str() {
            "" => Some(Vec::new()),
            list => cpus::parse_list(list),
        }
    }

    /// The names in a directory, in order; none if it is not there.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Option<Vec<String>> {
        let entries = fs::read_dir(self.root.join(path)).ok()?;
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        Some(names)
    }

    /// A path with its links followed, to be given to the other functions.
    pub(super) fn follow(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let root = self.root.canonicalize().ok()?;
        let real = self.root.join(path).canonicalize().ok()?;
        real.strip_prefix(root).ok().map(Path::to_owned)
    }

    /// The choice in brackets of a file such as `always [madvise] never`.
    pub(super) fn chosen(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.text(path)?;
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    /// A host that has these files, as long as the directory lasts.
    pub(in crate::doctor) fn host(files: &[(&str, &str)]) -> (Host, TestDir) {
        let dir = TestDir::new();
        for (name, content) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        (Host::at(dir.path()), dir)
    }

    #[test]
    fn files_are_read_under_the_root_and_a_missing_one_is_none() {
        let (host, _dir) =
            host(&[("proc/n", "12\n"), ("sys/l", "0-2\n"), ("sys/none", "\n"), ("c", "a [b] c")]);
        assert_eq!(host.number::<u64>("proc/n"), Some(12));
        assert_eq!(host.cpu_list("sys/l"), Some(vec![0, 1, 2]));
        assert_eq!(host.cpu_list("sys/none"), Some(vec![]));
        assert_eq!(host.chosen("c").as_deref(), Some("b"));
        assert_eq!(host.names("sys"), Some(vec!["l".to_owned(), "none".to_owned()]));
        assert_eq!((host.text("proc/x"), host.names("x"), host.follow("x")), (None, None, None));
    }

    #[test]
    fn links_are_followed_and_stay_under_the_root() {
        let (host, dir) = host(&[("sys/devices/pci0/vda/x", "1")]);
        fs::create_dir_all(dir.path().join("sys/block")).unwrap();
        std::os::unix::fs::symlink("../devices/pci0/vda", dir.path().join("sys/block/vda")).unwrap();
        assert_eq!(host.follow("sys/block/vda"), Some(PathBuf::from("sys/devices/pci0/vda")));
    }
}
