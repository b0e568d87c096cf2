//! The history of a prefix, as a restore reads it: a catalog, and the rounds after it.

use topics_env::objects::{ObjectError, ObjectStore};

use crate::format::catalog::{Catalog, ChainEnd};
use crate::format::head::Head;
use crate::format::round::{RoundDirectory, RoundPart};
use crate::format::sealed::ObjectRef;
use crate::{RemoteError, Result, Retry, read};

/// A catalog to restore from.
#[derive(Clone, Debug)]
pub struct RestoreBase {
    /// HEAD when the catalog was chosen.
    pub head: Head,
    pub catalog: Catalog,
    pub object: ObjectRef,
    /// The time of the newest catalog.
    pub newest_ms: u64,
    /// The last round of the catalog's epoch; `None`: its writer may still ship.
    pub last_round: Option<u64>,
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

/// Finds the newest catalog at or before a time; `None`: the newest one.
pub fn base(store: &dyn ObjectStore, retry: &Retry, at_ms: Option<u64>) -> Result<RestoreBase> {
    let Some((head, _)) = read::head(store, retry)? else {
        return Err(none("the prefix is empty: check the URL"));
    };
    let Some(newest) = head.catalog.clone() else {
        return Err(none("no catalog was published yet: nothing can be restored"));
    };
    let catalog = read::catalog(store, retry, &newest)?;
    let newest_ms = catalog.made_ms;
    let Some(at_ms) = at_ms.filter(|at| *at < newest_ms) else {
        let last_round = end_of(&head, catalog.header.epoch, &[]);
        return Ok(RestoreBase { head, catalog, object: newest, newest_ms, last_round });
    };
    let Some(at) = catalog.earlier.iter().rposition(|e| e.made_ms <= at_ms) else {
        let oldest = catalog.earlier.first().map_or(newest_ms, |e| e.made_ms);
        let text = format!("{at_ms} is before the oldest state that can be restored, {oldest}");
        return Err(none(format!("{text} (ms since 1970)")));
    };
    let (chosen, later) = (catalog.earlier[at], &catalog.earlier[at + 1..]);
    // The first catalog of a later epoch names the ends of the epochs before it.
    let ends = match later.iter().find(|e| e.epoch > chosen.epoch) {
        Some(e) => read::catalog(store, retry, &e.object())?.chain_ends,
        None => catalog.chain_ends.clone(),
    };
    let object = chosen.object();
    let catalog = read::catalog(store, retry, &object)?;
    let last_round = end_of(&head, chosen.epoch, &ends);
    Ok(RestoreBase { head, catalog, object, newest_ms, last_round })
}

/// The last round of an epoch, from HEAD and the ends that a catalog of a later epoch names; `None`:
/// all that exist. Epochs without rounds are in neither.
fn end_of(head: &Head, epoch: u64, ends: &[ChainEnd]) -> Option<u64> {
    if head.epoch == epoch {
        return None;
    }
    match head.priors.iter().find(|p| p.epoch == epoch) {
        // Its successor will count every round that it finds.
        Some(prior) => prior.is_final.then_some(prior.last_round),
        None => Some(ends.iter().find(|e| e.epoch == epoch).map_or(0, |e| e.last_round)),
    }
}

/// Calls `each` with the rounds after a catalog, in order, until it returns false or there is none.
pub fn rounds(
    store: &dyn ObjectStore,
    retry: &Retry,
    base: &RestoreBase,
    mut each: impl FnMut(&Round) -> Result<bool>,
) -> Result<()> {
    let epoch = base.catalog.header.epoch;
    let mut number = base.catalog.first_round;
    while base.last_round.is_none_or(|last| number <= last) {
        let Some((directory, found)) = read::round(store, retry, epoch, number)? else { break };
        let goes_on = each(&Round { number, directory, bytes: found.bytes })?;
        number += 1;
        if !goes_on {
            break;
        }
    }
    // The rounds of a writer that has lost the prefix are not part of the history. It had it at least
    // until its last round if HEAD names no later owner, or one that found these rounds.
    if base.last_round.is_none()
        && let Some((head, _)) = read::head(store, retry)?
        && end_of(&head, epoch, &[]).is_some_and(|last| number > last + 1)
    {
        let detail = "another engine opened the prefix meanwhile: restore again".to_owned();
        return Err(ObjectError::Unavailable { detail }.into());
    }
    Ok(())
}
