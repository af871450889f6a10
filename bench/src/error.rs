//! Why a load run cannot go on, in words for whoever started it.

use std::io;

use thiserror::Error;

/// Why a load run cannot go on.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A URI that names no broker.
    #[error("'{uri}' is not a broker's URI: {reason}")]
    Uri {
        /// As given, without its password.
        uri: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Options that contradict each other.
    #[error("{0}")]
    Options(String),
    /// No connection.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Host and port.
        address: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The broker has closed the socket without a word; while logging in that mostly means a wrong password.
    #[error("the broker closed the connection {0}")]
    Closed(&'static str),
    /// The broker said no, by closing the channel or the connection.
    #[error("the broker refused {what}: {code} {text}")]
    Refused {
        /// What was asked.
        what: String,
        /// Reply code.
        code: u16,
        /// Reply text.
        text: String,
    },
    /// A frame that cannot be read or is not due.
    #[error("the broker sent something unexpected: {0}")]
    Unexpected(String),
    /// A process that cannot be looked at.
    #[error("cannot read about process {pid}: {source}")]
    Process {
        /// As given.
        pid: u32,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file of figures or a plot cannot be written, or a directory to measure in.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// SIGINT or SIGTERM came before there was anything to report.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Whether the command line is at fault, and not the run.
    pub fn is_usage(&self) -> bool {
        matches!(self, BenchError::Uri { .. } | BenchError::Options(_))
    }

    pub(crate) fn file(path: &std::path::Path) -> impl FnOnce(io::Error) -> BenchError + use<> {
        let path = path.display().to_string();
        move |source| BenchError::File { path, source }
    }
}
