//! Objects read and verified.

use bytes::Bytes;
use topics_env::Env;
use topics_env::objects::{ByteRange, ETag, ObjectBytes, ObjectError, ObjectResult, ObjectStore};
use topics_storage::snapshot::{self, Snapshot};

use crate::format::base::{Base, Place};
use crate::format::head::Head;
use crate::format::keys;
use crate::format::pack::{self, PackDirectory};
use crate::format::round::{self, RoundDirectory};
use crate::format::sealed::{self, FOOTER, Footer, ObjectRef};
use crate::{RemoteError, Result, Retry};

/// The bytes to fetch with a footer: the directory of a full pack fits.
pub const FIRST_FETCH: u64 = 64 * 1024;
/// How often an object is fetched again whose bytes were damaged on the way.
const FETCHES: usize = 3;

/// Reads, and repeats what fails with `Unavailable`, until the deadline.
pub fn retrying<T>(retry: &Retry, mut read: impl FnMut() -> ObjectResult<T>) -> ObjectResult<T> {
    let mut attempts = retry.attempts();
    loop {
        match read() {
            Err(ObjectError::Unavailable { detail }) => {
                if !attempts.pause() {
                    return Err(ObjectError::Unavailable { detail });
                }
            }
            done => return done,
        }
    }
}

/// Fetches and checks; fetches again if the check finds damage: it may be of the connection.
fn checked<T>(
    retry: &Retry,
    fetch: &dyn Fn() -> ObjectResult<ObjectBytes>,
    check: &dyn Fn(&ObjectBytes) -> Result<T>,
) -> Result<(T, ObjectBytes)> {
    let mut last = None;
    for _ in 0..FETCHES {
        let found = retrying(retry, fetch)?;
        match check(&found) {
            Ok(value) => return Ok((value, found)),
            Err(e @ RemoteError::Damaged { .. }) => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| RemoteError::Usage { detail: "no fetch".to_owned() }))
}

/// Reads HEAD; `None` if the prefix is new.
pub fn head(store: &dyn ObjectStore, retry: &Retry) -> Result<Option<(Head, ETag)>> {
    let fetch = || store.get(keys::HEAD, ByteRange::Full, None);
    match checked(retry, &fetch, &|found| Head::decode(&found.bytes)) {
        Ok((head, found)) => Ok(Some((head, found.etag))),
        Err(RemoteError::Object(ObjectError::NotFound { .. })) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads a base.
pub fn base(store: &dyn ObjectStore, retry: &Retry, object: &ObjectRef) -> Result<Base> {
    let fetch = || store.get(&object.key, ByteRange::Full, None);
    let check = |found: &ObjectBytes| Base::verify(&object.key, Some(object.hash), &found.bytes);
    checked(retry, &fetch, &check).map(|(base, _)| base)
}

/// Reads a part of a pack. It is not checked.
pub fn place(store: &dyn ObjectStore, retry: &Retry, at: &Place) -> Result<Bytes> {
    let (from, len) = (u64::from(at.offset), u64::from(at.len));
    let range = ByteRange::Span(from..from + len);
    Ok(retrying(retry, || store.get(&at.pack.object().key, range.clone(), None))?.bytes)
}

/// Decodes the snapshot of a base with this key.
pub fn snapshot(env: &Env, key: &str, base: &Base) -> Result<Snapshot> {
    let bytes = &base.snapshot;
    let n = bytes.get(8..16).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    Ok(snapshot::decode(env, key, n, base.header.store_id, bytes.clone())?)
}

/// Reads a round; `None` if there is none of this number.
pub fn round(
    store: &dyn ObjectStore,
    retry: &Retry,
    epoch: u64,
    n: u64,
) -> Result<Option<(RoundDirectory, ObjectBytes)>> {
    let key = keys::round(epoch, n);
    let fetch = || store.get(&key, ByteRange::Full, None);
    match checked(retry, &fetch, &|found| round::verify(&key, &found.bytes)) {
        Ok(found) => Ok(Some(found)),
        Err(RemoteError::Object(ObjectError::NotFound { .. })) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads a whole pack.
pub fn pack(
    store: &dyn ObjectStore,
    retry: &Retry,
    object: &ObjectRef,
) -> Result<(PackDirectory, ObjectBytes)> {
    let fetch = || store.get(&object.key, ByteRange::Full, None);
    let check = |found: &ObjectBytes| pack::verify(&object.key, Some(object.hash), &found.bytes);
    checked(retry, &fetch, &check)
}

/// Reads the directory of a pack, in one request if it fits into `first_fetch` bytes with the
/// footer. The parts are not read.
pub fn pack_directory(
    store: &dyn ObjectStore,
    retry: &Retry,
    object: &ObjectRef,
    first_fetch: u64,
) -> Result<PackDirectory> {
    let key = &object.key;
    let check_footer = |found: &ObjectBytes| {
        let footer = Footer::decode(key, &found.bytes, found.len)?;
        match (footer.len, footer.hash) == (object.len, object.hash) {
            true => Ok(footer),
            false => Err(RemoteError::damaged(key, "it is another object than the base names")),
        }
    };
    let check = |found: &ObjectBytes| {
        let footer = check_footer(found)?;
        let end = found.bytes.len() - FOOTER;
        let Some(at) = end.checked_sub(footer.dir_len as usize) else { return Ok(None) };
        let directory = sealed::directory(key, &footer, &found.bytes[at..end])?;
        PackDirectory::decode(key, directory, footer.dir_at).map(Some)
    };
    let fetch = |len: u64| move || store.get(key, ByteRange::Last(len), None);
    if let (Some(directory), _) = checked(retry, &fetch(first_fetch.max(FOOTER as u64)), &check)? {
        return Ok(directory);
    }
    let (footer, _) = checked(retry, &fetch(FOOTER as u64), &check_footer)?;
    let (directory, _) = checked(retry, &fetch(footer.dir_len + FOOTER as u64), &check)?;
    directory
        .ok_or_else(|| RemoteError::damaged(key, "its directory is longer than its footer says"))
}
