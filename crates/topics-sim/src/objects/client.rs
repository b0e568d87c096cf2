//! A client of the simulated server.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::bucket::{Bucket, Effect, State, ambiguous};
use super::{ObjectFault, ObjectOp, ObjectViolation, ServerFlaw};
use crate::clock::mix;
use topics_env::Clock;
use topics_env::objects::{
    ByteRange, ETag, ObjectBytes, ObjectError, ObjectInfo, ObjectResult, ObjectStore, is_valid_key,
};

/// How long the caller of a request that hangs waits, unless it says so itself.
const HANG: Duration = Duration::from_secs(600);

/// Called before each request of a client, with the client's number and the request.
pub type RequestGate = Arc<dyn Fn(u32, ObjectOp) + Send + Sync>;

/// A client of a [`Bucket`].
#[derive(Clone)]
pub struct SimStore {
    bucket: Arc<Bucket>,
    id: u32,
    gate: Option<RequestGate>,
}

impl Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimStore({})", self.id)
    }
}

impl SimStore {
    pub(super) fn new(bucket: &Arc<Bucket>, id: u32) -> Self {
        Self { bucket: bucket.clone(), id, gate: None }
    }

    /// The same client, whose requests pass this gate first: a test schedules clients with it.
    #[must_use]
    pub fn with_gate(self, gate: RequestGate) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// Runs a request: the gate, the fault, the log. Its caller waits this long if it hangs.
    fn request<T>(
        &self,
        (op, key): (ObjectOp, &str),
        wait: Duration,
        run: impl FnOnce(&mut State, Option<ObjectFault>) -> ObjectResult<T>,
    ) -> ObjectResult<T> {
        if let Some(gate) = &self.gate {
            gate(self.id, op);
        }
        self.bucket.wait_released(key);
        let now = self.bucket.clock.wall_ms();
        let mut state = self.bucket.state.lock();
        if !is_valid_key(key) {
            state.violations.push(ObjectViolation::InvalidKey { key: key.to_owned() });
        }
        let fault = state.begin(self.id, op, now);
        if fault == Some(ObjectFault::Hangs) {
            self.bucket.clock.advance_ms(wait.as_millis() as u64);
        }
        let result = match fault {
            Some(ObjectFault::Refused) => {
                Err(ObjectError::Refused { detail: "simulated: access denied".to_owned() })
            }
            Some(ObjectFault::Unavailable) => {
                Err(ObjectError::Unavailable { detail: "simulated: slow down".to_owned() })
            }
            Some(ObjectFault::Lost) => Err(ambiguous(op)),
            fault => run(&mut state, fault),
        };
        let outcome = match &result {
            Ok(_) => "ok".to_owned(),
            Err(e) => e.to_string(),
        };
        let fault = fault.map(|f| format!(" [{f:?}]")).unwrap_or_default();
        state.log.push(format!("client {} {op:?} {key}{fault}: {outcome}", self.id));
        result
    }

    fn write(&self, op: ObjectOp, key: &str, effect: Effect) -> ObjectResult<ETag> {
        let now = self.bucket.clock.wall_ms();
        self.request((op, key), HANG, |state, fault| match fault {
            None => state.apply(self.id, effect, now),
            Some(ObjectFault::AnswerLost) => {
                let _ = state.apply(self.id, effect, now);
                Err(ambiguous(op))
            }
            Some(ObjectFault::Delayed(requests)) => {
                state.delayed.push((requests, self.id, effect));
                Err(ambiguous(op))
            }
            Some(ObjectFault::Hangs) => {
                state.delayed.push((u32::MAX, self.id, effect));
                Err(ambiguous(op))
            }
            Some(ObjectFault::Conflict) if op == ObjectOp::Delete => {
                Err(ObjectError::Unavailable { detail: "simulated: conflict".to_owned() })
            }
            Some(ObjectFault::Conflict) => Err(ObjectError::Precondition { key: key.to_owned() }),
            Some(_) => Err(ambiguous(op)),
        })
    }

    fn read<T>(
        &self,
        op: ObjectOp,
        key: &str,
        run: impl FnOnce(&mut State, Option<ObjectFault>) -> ObjectResult<T>,
    ) -> ObjectResult<T> {
        self.read_within(op, key, HANG, run)
    }

    fn read_within<T>(
        &self,
        op: ObjectOp,
        key: &str,
        wait: Duration,
        run: impl FnOnce(&mut State, Option<ObjectFault>) -> ObjectResult<T>,
    ) -> ObjectResult<T> {
        self.request((op, key), wait, |state, fault| match fault {
            None | Some(ObjectFault::Truncated | ObjectFault::Wrong) => run(state, fault),
            Some(_) => Err(ambiguous(op)),
        })
    }

    fn get_for(
        &self,
        key: &str,
        range: ByteRange,
        if_match: Option<&ETag>,
        wait: Duration,
    ) -> ObjectResult<ObjectBytes> {
        self.read_within(ObjectOp::Get, key, wait, |state, fault| {
            let object = state.find(key)?;
            let ignored = state.flaw == Some(ServerFlaw::ReadConditionIgnored);
            if if_match.is_some_and(|e| *e != object.etag) && !ignored {
                return Err(ObjectError::Precondition { key: key.to_owned() });
            }
            let len = object.bytes.len() as u64;
            let span = match (state.flaw, &range) {
                (Some(ServerFlaw::RangeIgnored), _) => 0..len,
                (Some(ServerFlaw::LastBytesIgnored), ByteRange::Last(n)) => 0..(*n).min(len),
                _ => range.within(len),
            };
            let bytes = object.bytes.slice(span.start as usize..span.end as usize);
            Ok(ObjectBytes { bytes: delivered(bytes, fault), etag: object.etag, len })
        })
    }
}

/// The bytes as a faulty connection delivers them.
fn delivered(bytes: Bytes, fault: Option<ObjectFault>) -> Bytes {
    match fault {
        Some(ObjectFault::Truncated) => bytes.slice(..bytes.len() / 2),
        Some(ObjectFault::Wrong) if !bytes.is_empty() => {
            let mut wrong = bytes.to_vec();
            let at = (mix(bytes.len() as u64) % bytes.len() as u64) as usize;
            wrong[at] ^= 0x10;
            wrong.into()
        }
        _ => bytes,
    }
}

impl ObjectStore for SimStore {
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag> {
        let flaw = self.bucket.state.lock().flaw;
        if flaw == Some(ServerFlaw::RacingCreatesWin) && !self.bucket.check_racing(key) {
            return Err(ObjectError::Precondition { key: key.to_owned() });
        }
        let effect = Effect::Create { key: key.to_owned(), body: body.clone() };
        self.write(ObjectOp::Create, key, effect)
    }

    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag> {
        let (body, etag) = (body.clone(), etag.clone());
        let effect = Effect::Replace { key: key.to_owned(), body, etag };
        self.write(ObjectOp::Replace, key, effect)
    }

    fn get(
        &self,
        key: &str,
        range: ByteRange,
        if_match: Option<&ETag>,
    ) -> ObjectResult<ObjectBytes> {
        self.get_for(key, range, if_match, HANG)
    }

    fn get_within(&self, key: &str, range: ByteRange, wait: Duration) -> ObjectResult<ObjectBytes> {
        self.get_for(key, range, None, wait)
    }

    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>> {
        self.read(ObjectOp::Get, key, |state, fault| {
            let object = state.find(key)?;
            let ignored = state.flaw == Some(ServerFlaw::ReadConditionIgnored);
            if object.etag == *etag && !ignored {
                return Ok(None);
            }
            let len = object.bytes.len() as u64;
            let bytes = delivered(object.bytes, fault);
            Ok(Some(ObjectBytes { bytes, etag: object.etag, len }))
        })
    }

    fn head(&self, key: &str) -> ObjectResult<ObjectInfo> {
        self.read(ObjectOp::Head, key, |state, _| {
            let object = state.find(key)?;
            let len = object.bytes.len() as u64;
            let (etag, modified_ms) = (object.etag, object.modified_ms);
            Ok(ObjectInfo { key: key.to_owned(), len, etag, modified_ms })
        })
    }

    fn delete(&self, key: &str) -> ObjectResult<()> {
        let effect = Effect::Delete { key: key.to_owned() };
        self.write(ObjectOp::Delete, key, effect).map(|_| ())
    }
}
