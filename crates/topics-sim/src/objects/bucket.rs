//! The simulated server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::client::SimStore;
use super::{ObjectFault, ObjectOp, ObjectViolation, ServerFlaw};
use crate::clock::{SimClock, mix};
use topics_env::Clock;
use topics_env::objects::{ETag, ObjectError, ObjectResult};
use topics_env::sync::{Condvar, Mutex};

#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    pub bytes: Bytes,
    pub etag: ETag,
    pub modified_ms: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Effect {
    Create { key: String, body: Bytes },
    Replace { key: String, body: Bytes, etag: ETag },
    Delete { key: String },
}

#[derive(Debug)]
struct PlannedFault {
    client: Option<u32>,
    op: Option<ObjectOp>,
    pass: usize,
    forever: bool,
    fault: ObjectFault,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub objects: BTreeMap<String, StoredObject>,
    /// What [`Bucket::put_aside`] took away.
    aside: BTreeMap<String, StoredObject>,
    /// Every write of a mutable key and every create, in order.
    history: Vec<(String, Bytes)>,
    /// The creates in progress, for [`ServerFlaw::RacingCreatesWin`].
    racing: u32,
    /// The content before the last write, for [`ServerFlaw::StaleReads`].
    stale: BTreeMap<String, Option<StoredObject>>,
    /// The hash of the first content of every key ever created.
    first_content: BTreeMap<String, u128>,
    mutable: Vec<String>,
    /// Delayed effects, with the number of requests before each (`u32::MAX`: it hangs) and its client.
    pub delayed: Vec<(u32, u32, Effect)>,
    plans: Vec<PlannedFault>,
    chaos: Option<(u64, u64)>,
    pub flaw: Option<ServerFlaw>,
    requests: u64,
    counts: BTreeMap<ObjectOp, u64>,
    fired: u64,
    pub violations: Vec<ObjectViolation>,
    pub log: Vec<String>,
    /// Requests for keys that contain one of these hang.
    hanging: Vec<String>,
}

/// The simulated server.
#[derive(Debug)]
pub struct Bucket {
    pub(super) state: Mutex<State>,
    pub(super) clock: Arc<SimClock>,
    race: Condvar,
    released: Condvar,
}

impl Bucket {
    /// An empty bucket. The clock dates its objects.
    #[must_use]
    pub fn new(clock: &Arc<SimClock>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            clock: clock.clone(),
            race: Condvar::new(),
            released: Condvar::new(),
        })
    }

    /// A client with this number, for logs and faults.
    #[must_use]
    pub fn client(self: &Arc<Self>, id: u32) -> SimStore {
        SimStore::new(self, id)
    }

    /// Makes the server lack a feature.
    pub fn set_flaw(&self, flaw: Option<ServerFlaw>) {
        self.state.lock().flaw = flaw;
    }

    /// The keys, or prefixes that end with `/`, of objects that may be replaced.
    pub fn set_mutable(&self, keys: &[&str]) {
        self.state.lock().mutable = keys.iter().map(|k| (*k).to_owned()).collect();
    }

    /// Makes the `nth` request of a client (the first is 1) fail; `None` counts those of every
    /// client, or of every kind.
    pub fn fail_nth(
        &self,
        client: Option<u32>,
        op: Option<ObjectOp>,
        nth: usize,
        fault: ObjectFault,
    ) {
        let pass = nth.saturating_sub(1);
        self.state.lock().plans.push(PlannedFault { client, op, pass, forever: false, fault });
    }

    /// Makes every such request fail, until [`Self::clear_faults`].
    pub fn fail_all(&self, client: Option<u32>, op: Option<ObjectOp>, fault: ObjectFault) {
        self.state.lock().plans.push(PlannedFault { client, op, pass: 0, forever: true, fault });
    }

    /// Makes every request of a kind from the `nth` on fail (the next is 1), until [`Self::clear_faults`].
    pub fn fail_from(&self, op: Option<ObjectOp>, nth: usize, fault: ObjectFault) {
        let pass = nth.saturating_sub(1);
        let plan = PlannedFault { client: None, op, pass, forever: true, fault };
        self.state.lock().plans.push(plan);
    }

    /// Makes a share of the requests, per mille, fail in ways that the seed chooses.
    pub fn set_chaos(&self, seed: u64, per_mille: u64) {
        self.state.lock().chaos = Some((seed, per_mille));
    }

    /// Ends all faults. Delayed requests stay.
    pub fn clear_faults(&self) {
        let mut state = self.state.lock();
        state.plans.clear();
        state.chaos = None;
    }

    /// The writes that are delayed or hang: key and body.
    #[must_use]
    pub fn under_way(&self) -> Vec<(String, Bytes)> {
        let written = |effect: &Effect| match effect {
            Effect::Create { key, body } | Effect::Replace { key, body, .. } => {
                Some((key.clone(), body.clone()))
            }
            Effect::Delete { .. } => None,
        };
        self.state.lock().delayed.iter().filter_map(|(.., effect)| written(effect)).collect()
    }

    /// Applies every delayed request, and those that hang.
    pub fn deliver_delayed(&self) {
        let now = self.clock.wall_ms();
        let mut state = self.state.lock();
        while !state.delayed.is_empty() {
            let (_, client, effect) = state.delayed.remove(0);
            let _ = state.apply(client, effect, now);
        }
    }

    /// The number of requests of this kind.
    #[must_use]
    pub fn count(&self, op: ObjectOp) -> u64 {
        self.state.lock().counts.get(&op).copied().unwrap_or(0)
    }

    /// The number of requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// The number of faults that took effect.
    #[must_use]
    pub fn faults_fired(&self) -> u64 {
        self.state.lock().fired
    }

    /// The violations so far.
    #[must_use]
    pub fn violations(&self) -> Vec<ObjectViolation> {
        self.state.lock().violations.clone()
    }

    /// Every object.
    #[must_use]
    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        let state = self.state.lock();
        state.objects.iter().map(|(k, o)| (k.clone(), o.bytes.clone())).collect()
    }

    /// Overwrites or removes an object behind the backs of all clients.
    pub fn tamper(&self, key: &str, bytes: Option<Bytes>) {
        let modified_ms = self.clock.wall_ms();
        let mut state = self.state.lock();
        match bytes {
            None => drop(state.objects.remove(key)),
            Some(bytes) => {
                let etag = etag_of(&bytes);
                state.objects.insert(key.to_owned(), StoredObject { bytes, etag, modified_ms });
            }
        }
    }

    /// Makes every request for a key that contains this text hang, until [`Self::release`].
    pub fn hang(&self, key_part: &str) {
        self.state.lock().hanging.push(key_part.to_owned());
    }

    /// Lets the requests that hang go on.
    pub fn release(&self) {
        self.state.lock().hanging.clear();
        self.released.notify_all();
    }

    /// Waits while requests for this key hang.
    pub(super) fn wait_released(&self, key: &str) {
        let mut state = self.state.lock();
        while state.hanging.iter().any(|part| key.contains(part.as_str())) {
            self.released.wait(&mut state);
        }
    }

    /// Takes every object away, as if another folder were mounted, until [`Self::bring_back`].
    pub fn put_aside(&self) {
        let mut state = self.state.lock();
        state.aside = std::mem::take(&mut state.objects);
    }

    /// Brings back what [`Self::put_aside`] took away. What was written since is gone.
    pub fn bring_back(&self) {
        let mut state = self.state.lock();
        state.objects = std::mem::take(&mut state.aside);
    }

    /// Every content that was ever stored, in order, with its key.
    #[must_use]
    pub fn history(&self) -> Vec<(String, Bytes)> {
        self.state.lock().history.clone()
    }

    /// The check of a create on a server with [`ServerFlaw::RacingCreatesWin`]: whether the key is
    /// free, with time for another create to check it too before either stores its object.
    pub(super) fn check_racing(&self, key: &str) -> bool {
        const WAIT: Duration = Duration::from_millis(20);
        let mut state = self.state.lock();
        let is_free = !state.objects.contains_key(key);
        state.racing += 1;
        if state.racing > 1 {
            self.race.notify_all();
        } else {
            self.race.wait_for(&mut state, WAIT);
        }
        state.racing -= 1;
        is_free
    }

    /// One line for each request so far.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.state.lock().log.clone()
    }
}

fn etag_of(bytes: &[u8]) -> ETag {
    ETag(format!("\"{:032x}\"", xxh3_128(bytes)))
}

pub(super) fn ambiguous(op: ObjectOp) -> ObjectError {
    let detail = "simulated: the connection broke".to_owned();
    match op.is_write() {
        true => ObjectError::Ambiguous { detail },
        false => ObjectError::Unavailable { detail },
    }
}

impl State {
    /// Counts a request, applies the delayed effects that are due, and returns the request's fault.
    pub fn begin(&mut self, client: u32, op: ObjectOp, now: u64) -> Option<ObjectFault> {
        self.requests += 1;
        *self.counts.entry(op).or_default() += 1;
        let due: Vec<_> = self.delayed.iter().map(|d| d.0 == 0).collect();
        let mut at = 0;
        for due in due {
            match due {
                true => {
                    let (_, client, effect) = self.delayed.remove(at);
                    let _ = self.apply(client, effect, now);
                }
                false => {
                    if self.delayed[at].0 != u32::MAX {
                        self.delayed[at].0 -= 1;
                    }
                    at += 1;
                }
            }
        }
        let mut hit = None;
        self.plans.retain_mut(|p| {
            let counts = p.client.is_none_or(|c| c == client) && p.op.is_none_or(|o| o == op);
            if !counts || hit.is_some() {
                return true;
            }
            if p.pass > 0 {
                p.pass -= 1;
                return true;
            }
            hit = Some(p.fault);
            p.forever
        });
        if let (None, Some((seed, per_mille))) = (hit, self.chaos) {
            let draw = mix(seed ^ mix(self.requests));
            if draw % 1000 < per_mille {
                let faults = ObjectFault::ALL.len() as u64;
                hit = Some(ObjectFault::ALL[((draw >> 20) % faults) as usize]);
            }
        }
        self.fired += u64::from(hit.is_some());
        hit
    }

    pub fn apply(&mut self, client: u32, effect: Effect, now: u64) -> ObjectResult<ETag> {
        match effect {
            Effect::Create { key, body } => {
                let replaces = matches!(
                    self.flaw,
                    Some(ServerFlaw::CreateReplaces | ServerFlaw::RacingCreatesWin)
                );
                if self.objects.contains_key(&key) && !replaces {
                    return Err(ObjectError::Precondition { key });
                }
                let hash = xxh3_128(&body);
                if *self.first_content.entry(key.clone()).or_insert(hash) != hash {
                    self.violations.push(ObjectViolation::KeyReused { key: key.clone(), client });
                }
                Ok(self.store(key, body, now))
            }
            Effect::Replace { key, body, etag } => {
                let found = self.objects.get(&key).map(|o| &o.etag);
                let missing = self.flaw == Some(ServerFlaw::ReplaceCreates) && found.is_none();
                let ignored = self.flaw == Some(ServerFlaw::ReplaceIgnoresETag) && found.is_some();
                if found != Some(&etag) && !missing && !ignored {
                    return Err(ObjectError::Precondition { key });
                }
                let mutable = |m: &String| *m == key || (m.ends_with('/') && key.starts_with(m));
                if !self.mutable.iter().any(mutable) {
                    let key = key.clone();
                    self.violations.push(ObjectViolation::ImmutableReplaced { key, client });
                }
                Ok(self.store(key, body, now))
            }
            Effect::Delete { key } => {
                if self.flaw != Some(ServerFlaw::DeleteKeeps) {
                    self.objects.remove(&key);
                }
                Ok(ETag(String::new()))
            }
        }
    }

    fn store(&mut self, key: String, body: Bytes, modified_ms: u64) -> ETag {
        let bytes = match self.flaw {
            Some(ServerFlaw::SizeLimit(most)) => body.slice(..body.len().min(most)),
            _ => body,
        };
        let etag = match self.flaw {
            Some(ServerFlaw::ConstantETag) => ETag("\"same\"".to_owned()),
            _ => etag_of(&bytes),
        };
        let object = StoredObject { bytes, etag: etag.clone(), modified_ms };
        let before = self.objects.insert(key.clone(), object);
        self.history.push((key.clone(), self.objects[&key].bytes.clone()));
        if self.flaw == Some(ServerFlaw::StaleReads) {
            self.stale.insert(key, before);
        }
        etag
    }

    pub fn find(&mut self, key: &str) -> ObjectResult<StoredObject> {
        let stale = match self.flaw {
            Some(ServerFlaw::StaleReads) => self.stale.remove(key),
            _ => None,
        };
        let found = stale.unwrap_or_else(|| self.objects.get(key).cloned());
        found.ok_or_else(|| match self.flaw {
            Some(ServerFlaw::MissingRefused) => {
                ObjectError::Refused { detail: "403 AccessDenied".to_owned() }
            }
            _ => ObjectError::NotFound { key: key.to_owned() },
        })
    }
}
