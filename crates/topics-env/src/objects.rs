//! An object store behind a trait.
//!
//! Calls block. An implementation never repeats a request by itself: the caller knows which request
//! may be repeated.

use std::fmt::{self, Debug, Display};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

/// The version of an object's content, chosen by the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ETag(pub String);

impl Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The part of an object to read. A part that reaches beyond the end is cut there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// All of it.
    Full,
    /// From the first offset up to, not including, the second.
    Span(Range<u64>),
    /// The last bytes.
    Last(u64),
}

impl ByteRange {
    /// The offsets of this part in an object of `len` bytes.
    #[must_use]
    pub fn within(&self, len: u64) -> Range<u64> {
        match self {
            Self::Full => 0..len,
            Self::Span(span) => span.start.min(len)..span.end.clamp(span.start.min(len), len),
            Self::Last(n) => len.saturating_sub(*n)..len,
        }
    }
}

/// What a store knows of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    pub key: String,
    pub len: u64,
    pub etag: ETag,
    /// When it was written, by the clock of the store, in milliseconds since the Unix epoch.
    pub modified_ms: u64,
}

/// A part of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectBytes {
    /// The bytes that were asked for.
    pub bytes: Bytes,
    /// The ETag of the object that they are from.
    pub etag: ETag,
    /// The length of the whole object.
    pub len: u64,
}

/// Why a request failed. Each kind says whether the request may have had an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectError {
    /// No object has this key.
    NotFound { key: String },
    /// The condition of the request does not hold. Nothing changed by this request; an earlier
    /// request of the same caller may be the reason.
    Precondition { key: String },
    /// The store refused the request, and will refuse it again. Nothing changed.
    Refused {
        /// What the store said.
        detail: String,
    },
    /// The request had no effect and may succeed later. Every failed read is one of these.
    Unavailable {
        /// What went wrong.
        detail: String,
    },
    /// The request may have had its effect, or may still have it later.
    Ambiguous {
        /// What went wrong.
        detail: String,
    },
}

impl Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { key } => write!(f, "object {key} does not exist"),
            Self::Precondition { key } => {
                write!(f, "the condition of the request for object {key} does not hold")
            }
            Self::Refused { detail } => write!(f, "the object store refused a request: {detail}"),
            Self::Unavailable { detail } => {
                write!(f, "the object store is unavailable, retry later: {detail}")
            }
            Self::Ambiguous { detail } => {
                write!(f, "a request to the object store has an unknown outcome: {detail}")
            }
        }
    }
}

impl std::error::Error for ObjectError {}

/// A result of an object store.
pub type ObjectResult<T> = std::result::Result<T, ObjectError>;

/// A store of objects by key. Keys are relative to the store's prefix: printable ASCII, folders
/// separated by `/`, no empty folder name and none that begins with a dot.
pub trait ObjectStore: Send + Sync + Debug {
    /// Creates an object unless one has this key (`Precondition`).
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag>;

    /// Replaces the object if its ETag is `etag`; otherwise, or if there is none, `Precondition`.
    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag>;

    /// Reads a part of an object. With `if_match`, `Precondition` if the object has another ETag.
    fn get(
        &self,
        key: &str,
        range: ByteRange,
        if_match: Option<&ETag>,
    ) -> ObjectResult<ObjectBytes>;

    /// The same, for a caller that waits at most this long. A store that can hang ends the call then, with
    /// `Unavailable`; the others do not look at it.
    fn get_within(&self, key: &str, range: ByteRange, wait: Duration) -> ObjectResult<ObjectBytes> {
        let _ = wait;
        self.get(key, range, None)
    }

    /// From now on every call ends within this time, those in progress too: the program is closing. A store
    /// that cannot hang does nothing.
    fn end_within(&self, wait: Duration) {
        let _ = wait;
    }

    /// Reads a whole object unless its ETag is still `etag` (`None`).
    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>>;

    /// Looks an object up.
    fn head(&self, key: &str) -> ObjectResult<ObjectInfo>;

    /// Deletes an object. Succeeds if there is none.
    fn delete(&self, key: &str) -> ObjectResult<()>;
}

/// Whether a key has the form that [`ObjectStore`] states.
#[must_use]
pub fn is_valid_key(key: &str) -> bool {
    let folder = |name: &str| {
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(|b| b.is_ascii_graphic())
    };
    key.len() <= 512 && key.split('/').all(folder)
}
