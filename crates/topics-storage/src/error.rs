//! What can go wrong with bytes on disk.
use std::io;

/// An error of the storage layer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The operating system refused.
    #[error("{what}: {detail}")]
    Io {
        /// What was being done.
        what: String,
        /// The kind.
        kind: io::ErrorKind,
        /// The number of the error, if any.
        raw: Option<i32>,
        /// The text.
        detail: String,
    },
    /// Bytes that are not what was written.
    #[error("{file} is damaged at offset {offset}: {detail}")]
    Corrupt {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
    /// No space.
    #[error("no space: {detail}")]
    Full {
        /// What was being done.
        detail: String,
    },
    /// The shard is poisoned.
    #[error("poisoned: {detail}")]
    Poisoned {
        /// Why.
        detail: String,
    },
    /// The staging room is exhausted.
    #[error("staging is full")]
    Staging,
    /// Another process holds the directory.
    #[error("locked by process {pid}")]
    Locked {
        /// Its process id.
        pid: u32,
        /// Its server's address.
        url: Option<String>,
    },
    /// A format of another version.
    #[error("{what} has version {found}, this build supports {supported}")]
    Version {
        /// What.
        what: String,
        /// Found.
        found: u32,
        /// Supported.
        supported: u32,
    },
    /// Closed.
    #[error("closed")]
    Closed,
    /// A named thing that is not there.
    #[error("{what} is missing")]
    Missing {
        /// What.
        what: String,
    },
}

impl StorageError {
    /// From an I/O error.
    pub fn io(what: impl Into<String>, e: io::Error) -> Self {
        let what = what.into();
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Full { detail: format!("{what}: {e}") }
            }
            kind => Self::Io { what, kind, raw: e.raw_os_error(), detail: e.to_string() },
        }
    }
}

/// A result of the storage layer.
pub type Result<T> = std::result::Result<T, StorageError>;
