//! The history of a prefix, as a restore reads it: a base, and the rounds after it.

use topics_env::objects::{ObjectError, ObjectStore};

use crate::format::base::Base;
use crate::format::head::Head;
use crate::format::round::{RoundDirectory, RoundPart};
use crate::format::sealed::ObjectRef;
use crate::{RemoteError, Result, Retry, read};

/// A base to restore from.
#[derive(Clone, Debug)]
pub struct RestoreBase {
    /// HEAD when the base was chosen.
    pub head: Head,
    pub base: Base,
    pub object: ObjectRef,
    /// The time of the newest base.
    pub newest_ms: u64,
}

/// A round and the bytes of its parts.
#[derive(Clone, Debug)]
pub struct Round {
    /// Its number in the epoch.
    pub number: u64,
    /// What it holds.
    pub directory: RoundDirectory,
    bytes: bytes::Bytes,
}

impl Round {
    /// The bytes of a part.
    #[must_use]
    pub fn part(&self, part: &RoundPart) -> &[u8] {
        &self.bytes[part.offset as usize..(part.offset + part.len) as usize]
    }
}

fn none(detail: impl Into<String>) -> RemoteError {
    RemoteError::Nothing { detail: detail.into() }
}

/// Reads HEAD of a prefix that is not new.
pub fn head(store: &dyn ObjectStore, retry: &Retry) -> Result<Head> {
    let found = read::head(store, retry)?.map(|(head, _)| head);
    found.ok_or_else(|| none("the prefix is empty: check the URL"))
}

/// Finds the newest base at or before a time; `None`: the newest one.
pub fn base(
    store: &dyn ObjectStore,
    retry: &Retry,
    head: Head,
    at_ms: Option<u64>,
) -> Result<RestoreBase> {
    let Some(newest) = head.base.clone() else {
        return Err(none("no base was published yet"));
    };
    let base = read::base(store, retry, &newest)?;
    let newest_ms = base.made_ms;
    let Some(at_ms) = at_ms.filter(|at| *at < newest_ms) else {
        return Ok(RestoreBase { head, base, object: newest, newest_ms });
    };
    let Some(chosen) = base.kept.iter().rfind(|e| e.made_ms <= at_ms) else {
        let oldest = base.kept.first().map_or(newest_ms, |e| e.made_ms);
        let text = format!("{at_ms} is before the oldest state that can be restored, {oldest}");
        return Err(none(format!("{text} (ms since 1970)")));
    };
    let object = chosen.object();
    let base = read::base(store, retry, &object)?;
    Ok(RestoreBase { head, base, object, newest_ms })
}

/// Finds the base that an earlier reader of the prefix chose.
pub fn chosen(
    store: &dyn ObjectStore,
    retry: &Retry,
    head: Head,
    object: ObjectRef,
) -> Result<RestoreBase> {
    match read::base(store, retry, &object) {
        Ok(base) => Ok(RestoreBase { head, newest_ms: base.made_ms, base, object }),
        Err(RemoteError::Object(ObjectError::NotFound { .. })) => Err(expired(&object.key)),
        Err(e) => Err(e),
    }
}

/// The error that a base was deleted since a read was planned with it.
#[must_use]
pub fn expired(key: &str) -> RemoteError {
    none(format!(
        "the base {key} has expired: the owner of the prefix deleted it after the read was planned. Plan the read \
         again, and set remote_window_ms of the owner to more than the time of your longest read"
    ))
}

/// Calls `each` with the rounds after a base, in order, until it returns false or there is none. Rounds
/// belong to the epoch of the base: no chain crosses an epoch. A round that its writer put and never
/// confirmed is a prefix of the log all the same.
pub fn rounds(
    store: &dyn ObjectStore,
    retry: &Retry,
    from: &RestoreBase,
    mut each: impl FnMut(&Round) -> Result<bool>,
) -> Result<()> {
    let epoch = from.base.header.epoch;
    let mut number = from.base.first_round;
    while let Some((directory, found)) = read::round(store, retry, epoch, number)? {
        if !each(&Round { number, directory, bytes: found.bytes })? {
            break;
        }
        number += 1;
    }
    Ok(())
}
