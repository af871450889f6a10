//! The data directory, held by one process at a time.
//!
//! Opened on the main thread before anything in the directory is read, and held until the process
//! ends. Invariants: while a [`DataDir`] lives, no other process has one for the same directory, and
//! the directory's format is one that this version reads and writes.
//!
//! # What lies in it
//!
//! | file | content |
//! |---|---|
//! | `lock` | decimal process id of the holder and a line feed. What counts is the `flock` on it; the number is for people. Left in place when the process ends |
//! | `format` | `lepus-data N` and a line feed, N being the version of the directory's layout |
//! | `topology.redb` | the topology store, see [`crate::topology_store`] |

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::limits::DATA_FORMAT;

const LOCK_FILE: &str = "lock";
const FORMAT_FILE: &str = "format";
const FORMAT_WORD: &str = "lepus-data";

/// Why a data directory cannot be used.
#[derive(Debug, Error)]
pub enum DataDirError {
    /// It does not exist and cannot be made, or cannot be written.
    #[error(
        "cannot write to the data directory {}: {source}; make it writable for this user, or choose another \
         one with --data-dir", path.display()
    )]
    Unwritable {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error(
        "the data directory {} is in use by {}; stop that one, or choose another directory with --data-dir",
        path.display(), holder(*pid)
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, if it has written its number yet.
        pid: Option<u32>,
    },
    /// It was written by a later version.
    #[error(
        "the data directory {} has format {found}, and this version of lepus reads up to {DATA_FORMAT}; start \
         the version that wrote it, or choose another directory with --data-dir", path.display()
    )]
    NewerFormat {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Its format file is not one of ours.
    #[error(
        "{} does not say `{FORMAT_WORD} N`: {} is damaged or not a data directory of lepus; choose another one \
         with --data-dir", path.join(FORMAT_FILE).display(), path.display()
    )]
    UnknownFormat {
        /// The directory.
        path: PathBuf,
    },
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("the process with pid {pid}"),
        None => "another process".to_owned(),
    }
}

/// A data directory that this process holds.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Closing it gives the directory back.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if need be, takes it for this process, and checks its format.
    ///
    /// # Errors
    /// [`DataDirError`], each with what the user can do about it.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let unwritable = |source| DataDirError::Unwritable { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(|error| match error.kind() {
            // The path is there, and is something else.
            io::ErrorKind::AlreadyExists => unwritable(io::ErrorKind::NotADirectory.into()),
            _ => unwritable(error),
        })?;
        let lock = take_lock(path)?;
        match fs::read_to_string(path.join(FORMAT_FILE)) {
            Ok(text) => check_format(path, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_format(path).map_err(unwritable)?
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(DataDirError::UnknownFormat { path: path.to_owned() });
            }
            Err(error) => return Err(unwritable(error)),
        }
        // The lock file may be writable in a directory that is not; segments and stores are made later.
        probe(path).map_err(unwritable)?;
        Ok(DataDir { path: path.to_owned(), _lock: lock })
    }

    /// Where it is, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the names of files that were just created in it survive a power loss.
    ///
    /// # Errors
    /// What the system says of the synchronisation.
    pub fn sync_names(&self) -> io::Result<()> {
        sync_directory(&self.path)
    }
}

fn take_lock(directory: &Path) -> Result<File, DataDirError> {
    let unwritable = |source| DataDirError::Unwritable { path: directory.to_owned(), source };
    let path = directory.join(LOCK_FILE);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false) // until we hold it, it says who does
        .open(&path)
        .map_err(unwritable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(DataDirError::Locked { path: directory.to_owned(), pid });
        }
        Err(TryLockError::Error(error)) => return Err(unwritable(error)),
    }
    let write_pid = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write_pid(&mut file).map_err(unwritable)?;
    Ok(file)
}

fn check_format(directory: &Path, text: &str) -> Result<(), DataDirError> {
    let mut words = text.split_ascii_whitespace();
    let format = match (words.next(), words.next(), words.next()) {
        (Some(FORMAT_WORD), Some(number), None) => number.parse::<u32>().ok(),
        _ => None,
    };
    match format {
        Some(found) if found > DATA_FORMAT => {
            Err(DataDirError::NewerFormat { path: directory.to_owned(), found })
        }
        Some(1..) => Ok(()),
        _ => Err(DataDirError::UnknownFormat { path: directory.to_owned() }),
    }
}

/// Written under another name first: a format file is whole or absent, whenever the power goes.
fn write_format(directory: &Path) -> io::Result<()> {
    let draft = directory.join("format.new");
    let mut file = File::create(&draft)?;
    writeln!(file, "{FORMAT_WORD} {DATA_FORMAT}")?;
    file.sync_all()?;
    fs::rename(&draft, directory.join(FORMAT_FILE))?;
    sync_directory(directory)
}

fn probe(directory: &Path) -> io::Result<()> {
    let path = directory.join("writable.probe");
    File::create(&path)?;
    fs::remove_file(&path)
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn a_missing_directory_is_made_with_its_parents_and_marked() {
        let parent = TestDir::new();
        let path = parent.path().join("a/b");
        let held = DataDir::open(&path).unwrap();
        assert_eq!(held.path(), path);
        assert_eq!(fs::read_to_string(path.join("format")).unwrap(), "lepus-data 1\n");
        assert_eq!(fs::read_to_string(path.join("lock")).unwrap(), format!("{}\n", std::process::id()));
        let mut names: Vec<_> =
            fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["format", "lock"], "no drafts and probes are left behind");
    }

    #[test]
    fn a_held_directory_is_refused_with_the_pid_of_its_holder() {
        let parent = TestDir::new();
        let held = DataDir::open(parent.path()).unwrap();
        let error = DataDir::open(parent.path()).unwrap_err();
        assert!(matches!(error, DataDirError::Locked { pid: Some(pid), .. } if pid == std::process::id()));
        let text = error.to_string();
        assert!(text.contains(&std::process::id().to_string()) && text.contains("--data-dir"), "{text}");
        drop(held);
        DataDir::open(parent.path()).expect("given back");
    }

    #[test]
    fn the_pid_of_an_earlier_holder_is_replaced_even_by_a_shorter_one() {
        let parent = TestDir::new();
        fs::write(parent.path().join("lock"), "12345678901234567890\n").unwrap();
        let _held = DataDir::open(parent.path()).unwrap();
        let text = fs::read_to_string(parent.path().join("lock")).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_that_says_what_to_do() {
        let parent = TestDir::new();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.join("data"), file] {
            let error = DataDir::open(&path).unwrap_err();
            assert!(matches!(error, DataDirError::Unwritable { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains("--data-dir"), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let parent = TestDir::new();
        let format = parent.path().join("format");
        fs::write(&format, "lepus-data 2\n").unwrap();
        let error = DataDir::open(parent.path()).unwrap_err();
        assert!(matches!(error, DataDirError::NewerFormat { found: 2, .. }), "{error}");
        assert_eq!(fs::read_to_string(&format).unwrap(), "lepus-data 2\n");
    }

    #[test]
    fn a_format_file_of_something_else_is_refused() {
        for content in ["", "lepus-data", "lepus-data one", "lepus-data 0", "lepus-data 1 2", "16\n", "\u{0}"]
        {
            let parent = TestDir::new();
            fs::write(parent.path().join("format"), content).unwrap();
            let error = DataDir::open(parent.path()).unwrap_err();
            assert!(matches!(error, DataDirError::UnknownFormat { .. }), "{content:?}: {error}");
        }
        let parent = TestDir::new();
        fs::write(parent.path().join("format"), [0xff, 0xfe]).unwrap();
        assert!(matches!(DataDir::open(parent.path()).unwrap_err(), DataDirError::UnknownFormat { .. }));
    }

    #[test]
    fn the_present_format_is_opened_again() {
        let parent = TestDir::new();
        drop(DataDir::open(parent.path()).unwrap());
        DataDir::open(parent.path()).unwrap();
    }
}
