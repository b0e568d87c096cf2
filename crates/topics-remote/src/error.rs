//! Errors of this crate.

use topics_env::objects::ObjectError;
use topics_storage::StorageError;

use crate::claim::Refusal;

#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// A request failed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A local file could not be read, or is damaged.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// An object's bytes differ from those written.
    #[error("object {key} is damaged: {detail}")]
    Damaged {
        key: String,
        /// Which check failed.
        detail: String,
    },
    /// An object from a newer program.
    #[error("object {key} has format version {found}; this program reads version {supported}")]
    Version {
        key: String,
        found: u32,
        /// The version that this program reads.
        supported: u32,
    },
    /// Another writer owns the prefix. This one must not write to it any more.
    #[error(
        "the prefix now belongs to {holder} (epoch {epoch}): this writer has stopped. Open the \
         other one on a prefix of its own, or stop it and open this one again"
    )]
    Fenced {
        /// The new owner, as it describes itself.
        holder: String,
        epoch: u64,
    },
    /// The directory may not write to the prefix.
    #[error("{0}")]
    NotOurs(Refusal),
    /// The prefix does not hold what is to be restored or read.
    #[error("the prefix has no state to read: {detail}")]
    Nothing {
        /// Why.
        detail: String,
    },
    /// The server lacks what the remote needs.
    #[error(
        "the object store lacks what a remote needs: {missing}. Use another server, or set \
         remote_single_writer=true if no other process ever writes to the prefix; `topics doctor \
         --remote URL` shows each finding"
    )]
    Unsuitable {
        /// The features, and what was found instead.
        missing: String,
    },
    /// A caller broke a rule of this crate.
    #[error("invalid use of the remote: {detail}")]
    Usage { detail: String },
}

/// A result of the remote.
pub type Result<T> = std::result::Result<T, RemoteError>;

impl RemoteError {
    /// Damage in the object `key`.
    pub(crate) fn damaged(key: &str, detail: impl Into<String>) -> Self {
        Self::Damaged { key: key.to_owned(), detail: detail.into() }
    }
}
