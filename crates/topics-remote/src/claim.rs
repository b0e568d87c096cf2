//! Whose a prefix is: what a directory knows of it, compared with what HEAD says.

use std::fmt;
use std::sync::Arc;

use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_storage::dir::{Paths, RemoteRecord};

use crate::format::head::Head;
use crate::{RemoteError, Result, Retry, read};

/// Keeps the [`RemoteRecord`] of a data directory.
pub trait KeepRecord: fmt::Debug + Send + Sync {
    /// The record; `None`: the directory has never written to a prefix.
    fn load(&self) -> Result<Option<RemoteRecord>>;

    /// Replaces the record, and makes it durable.
    fn save(&self, record: &RemoteRecord) -> Result<()>;
}

/// The record in a data directory.
#[derive(Clone, Debug)]
pub struct DirectoryRecord {
    pub env: Env,
    pub paths: Paths,
}

impl KeepRecord for DirectoryRecord {
    fn load(&self) -> Result<Option<RemoteRecord>> {
        Ok(RemoteRecord::read(&self.env, &self.paths)?)
    }

    fn save(&self, record: &RemoteRecord) -> Result<()> {
        Ok(record.write(&self.env, &self.paths)?)
    }
}

/// A data directory that is to write to a prefix.
#[derive(Clone, Debug)]
pub struct Claimant {
    pub store_id: [u8; 16],
    /// Its process, described for a person.
    pub holder: String,
    /// Whether a snapshot of it names packs.
    pub has_packs: bool,
    /// What it knows of its prefix.
    pub record: Arc<dyn KeepRecord>,
}

/// Why a directory may not write to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// HEAD exists, and the directory has never written to a prefix.
    InUse {
        /// The owner, as it describes itself.
        holder: String,
    },
    /// HEAD is missing, although the directory has written to its prefix.
    Emptied {
        /// The epoch of its last write, 0: unknown.
        epoch: u64,
    },
    /// The prefix has another id than the one that the directory has written to.
    OtherPrefix {
        /// The owner, as it describes itself.
        holder: String,
    },
    /// The prefix is the directory's, but its last writer was a copy of it, or it is one.
    Copied {
        /// The last writer, as it describes itself.
        holder: String,
        epoch: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { holder } => write!(
                f,
                "the prefix is in use by {holder}: set another prefix, or make a new data directory \
                 of its content with `topics restore`"
            ),
            Self::Emptied { epoch } => {
                f.write_str("the prefix is empty, but this directory has written to one")?;
                if *epoch > 0 {
                    write!(f, " (epoch {epoch})")?;
                }
                f.write_str(
                    ": is it another bucket, or a folder that is not mounted? If it is gone for good, \
                     `topics remote forget` begins anew",
                )
            }
            Self::OtherPrefix { holder } => write!(
                f,
                "the prefix is not the one that this directory has written to; it belongs to \
                 {holder}. Set the one that it was archived to, or run `topics remote forget` and set \
                 a new one"
            ),
            Self::Copied { holder, epoch } => write!(
                f,
                "this directory is a copy, or an older state of one: {holder} has written to the \
                 prefix since (epoch {epoch}). Go on with that directory, or run `topics remote \
                 forget` and set a new prefix"
            ),
        }
    }
}

/// Reads HEAD of the prefix that a directory writes to. Fails with `NotOurs` if the prefix is another one, is
/// empty, or has been written to by another directory since. Writes nothing.
pub fn head_of(store: &dyn ObjectStore, retry: &Retry, record: &dyn KeepRecord) -> Result<Head> {
    let found = read::head(store, retry)?.map(|(head, _)| head);
    let refused = |why| Err(RemoteError::NotOurs(why));
    match (judge(record.load()?, true, found.as_ref()), found) {
        (Verdict::Refused(why), _) => refused(why),
        (_, None) => refused(Refusal::Emptied { epoch: 0 }),
        (_, Some(head)) => Ok(head),
    }
}

/// What a directory may do with a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Create HEAD. The record is that of an attempt whose outcome is not known.
    Create(Option<RemoteRecord>),
    /// Raise the epoch.
    Continue(RemoteRecord),
    /// Write nothing.
    Refused(Refusal),
}

/// Compares the record with HEAD.
pub(crate) fn judge(record: Option<RemoteRecord>, has_packs: bool, head: Option<&Head>) -> Verdict {
    let holder = |h: &Head| h.holder.clone();
    match (record, head) {
        (None, None) if !has_packs => Verdict::Create(None),
        (None, None) => Verdict::Refused(Refusal::Emptied { epoch: 0 }),
        (None, Some(h)) => Verdict::Refused(Refusal::InUse { holder: holder(h) }),
        // The first write of HEAD has not arrived, and no pack was written before it.
        (Some(r), None) if r.seen.is_none() && !has_packs => Verdict::Create(Some(r)),
        (Some(r), None) => Verdict::Refused(Refusal::Emptied { epoch: r.epoch }),
        // Another directory was the first after an attempt that did not arrive.
        (Some(r), Some(h)) if h.prefix_id != r.prefix_id && r.seen.is_none() => {
            Verdict::Refused(Refusal::InUse { holder: holder(h) })
        }
        (Some(r), Some(h)) if h.prefix_id != r.prefix_id => {
            Verdict::Refused(Refusal::OtherPrefix { holder: holder(h) })
        }
        (Some(r), Some(h)) if r.knows(&h.nonce) => Verdict::Continue(r),
        (Some(_), Some(h)) => {
            Verdict::Refused(Refusal::Copied { holder: holder(h), epoch: h.epoch })
        }
    }
}
