//! What became of a write whose answer was lost.
//!
//! [`create_resolved`] and [`replace_resolved`] are the only callers of `create` and `replace`,
//! besides the probe. They rely on three rules that their callers keep: a key is used for one content
//! only, two writers never produce the same bytes, and an attempt is repeated with the same bytes.

use bytes::Bytes;
use topics_env::objects::{ByteRange, ETag, ObjectBytes, ObjectError, ObjectResult, ObjectStore};

use crate::Retry;

/// The part of an object that is read back to recognise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBack {
    /// All of it.
    Full,
    /// Its last bytes, which contain a checksum of everything: as many as this.
    Last(u64),
}

/// The outcome of [`create_resolved`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object exists with these bytes.
    Written(ETag),
    /// The key belongs to a valid object with other bytes.
    Taken,
}

/// The outcome of [`replace_resolved`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// The object had these bytes after the request, and has this ETag.
    Written(ETag),
    /// The object is a valid one that neither has the expected ETag nor these bytes.
    Other(ObjectBytes),
}

/// The outcome so far of an operation with several attempts.
struct Resolution<'a> {
    retry: &'a Retry,
    /// Whether an attempt may have had an effect, or may still have it.
    unsure: bool,
}

impl Resolution<'_> {
    /// Returns an error that a further attempt may overcome, and fails with every other.
    fn retryable(&mut self, e: ObjectError) -> ObjectResult<ObjectError> {
        self.unsure |= matches!(e, ObjectError::Ambiguous { .. });
        match e {
            ObjectError::NotFound { .. } | ObjectError::Refused { .. } => Err(self.finish(e)),
            e => Ok(e),
        }
    }

    /// The error of an operation whose last attempt failed with `last`. If an earlier attempt may
    /// have had an effect, the outcome is unknown whatever became of the last one.
    fn finish(&self, last: ObjectError) -> ObjectError {
        match last {
            ObjectError::Ambiguous { .. } => last,
            last if self.retry.env().check("remote.unsure", !self.unsure) => last,
            last => ObjectError::Ambiguous { detail: last.to_string() },
        }
    }
}

/// Repeats `send` until it succeeds or `read` knows the outcome. `read` returns `None` if no attempt
/// has had an effect so far.
fn resolve<T>(
    retry: &Retry,
    send: &dyn Fn() -> ObjectResult<T>,
    read: &dyn Fn() -> ObjectResult<Option<T>>,
) -> ObjectResult<T> {
    let mut attempts = retry.attempts();
    let mut outcome = Resolution { retry, unsure: false };
    loop {
        let mut last = match send() {
            Ok(done) => return Ok(done),
            Err(e) => outcome.retryable(e)?,
        };
        // A request without effect is only repeated.
        let mut is_known = matches!(last, ObjectError::Unavailable { .. });
        while !is_known {
            match read() {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => is_known = true,
                Err(e) => {
                    last = outcome.retryable(e)?;
                    if !attempts.pause() {
                        return Err(outcome.finish(last));
                    }
                }
            }
        }
        if !attempts.pause() {
            return Err(outcome.finish(last));
        }
    }
}

/// The error of a read that returned damaged bytes: they are read again.
fn read_damaged(key: &str) -> ObjectError {
    ObjectError::Unavailable { detail: format!("object {key} was read back damaged") }
}

/// Creates an object and resolves the outcome.
///
/// `is_valid` tells whether what was read back is from an undamaged object; a damaged answer is read
/// again. An `Ambiguous` error means that the object may exist, now or later: the caller repeats the
/// call with the same bytes, or never uses the key again.
pub fn create_resolved(
    store: &dyn ObjectStore,
    retry: &Retry,
    key: &str,
    body: &Bytes,
    read_back: ReadBack,
    is_valid: &dyn Fn(&ObjectBytes) -> bool,
) -> ObjectResult<Created> {
    let range = match read_back {
        ReadBack::Full => ByteRange::Full,
        ReadBack::Last(n) => ByteRange::Last(n),
    };
    let want = range.within(body.len() as u64);
    let want = body.slice(want.start as usize..want.end as usize);
    let read = || {
        let found = match store.get(key, range.clone(), None) {
            Ok(found) => found,
            Err(ObjectError::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let same = found.len == body.len() as u64 && found.bytes == want;
        if retry.env().check("remote.read-back", same) {
            return Ok(Some(Created::Written(found.etag)));
        }
        match retry.env().check("remote.read-back-valid", is_valid(&found)) {
            true => Ok(Some(Created::Taken)),
            false => Err(read_damaged(key)),
        }
    };
    resolve(retry, &|| store.create(key, body).map(Created::Written), &read)
}

/// Replaces the object that has this ETag, and resolves the outcome.
///
/// An `Ambiguous` error means that the object may have these bytes, now or later: the caller repeats
/// the call with the same bytes and ETag before it writes anything else to the key.
pub fn replace_resolved(
    store: &dyn ObjectStore,
    retry: &Retry,
    key: &str,
    body: &Bytes,
    etag: &ETag,
    is_valid: &dyn Fn(&ObjectBytes) -> bool,
) -> ObjectResult<Replaced> {
    let read = || {
        let found = store.get(key, ByteRange::Full, None)?;
        if found.bytes == *body {
            return Ok(Some(Replaced::Written(found.etag)));
        }
        // By none of the attempts, or not yet.
        if found.etag == *etag {
            return Ok(None);
        }
        match retry.env().check("remote.read-back-valid", is_valid(&found)) {
            true => Ok(Some(Replaced::Other(found))),
            false => Err(read_damaged(key)),
        }
    };
    resolve(retry, &|| store.replace(key, body, etag).map(Replaced::Written), &read)
}
