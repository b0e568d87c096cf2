//! Whether a server has what the remote needs.
//!
//! The probe creates objects under `probe/` with a random name and deletes them. It tests what
//! correctness depends on: conditional writes that hold under races, reads that see the last write,
//! ranges.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use topics_env::Env;
use topics_env::objects::{ByteRange, ETag, ObjectBytes, ObjectError, ObjectResult, ObjectStore};

use crate::format::keys::PROBES;
use crate::{RemoteError, Result};

/// The writers of a race.
const RACERS: usize = 6;
/// How often a race is repeated.
const RACES: usize = 4;

/// A feature of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// A created object can be read back.
    CreateAndRead,
    /// A create of an existing key fails and changes nothing.
    CreateIfAbsent,
    /// Of several creates of a key at one time one succeeds.
    CreateRaces,
    /// A replace with the current ETag succeeds, and the next read sees it.
    Replace,
    /// A replace with another ETag, or of a missing object, fails and changes nothing.
    ReplaceIfMatch,
    /// Of several replaces of one version one succeeds.
    ReplaceRaces,
    /// Ranges and last bytes are exact and cut at the end.
    Ranges,
    /// Reads with a condition on the ETag.
    ConditionalReads,
    /// A deleted object is gone, and reads say so; a second delete succeeds.
    Deletes,
    /// An object of the size of a pack.
    LargeObjects,
}

impl Feature {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CreateAndRead => "create_and_read",
            Self::CreateIfAbsent => "create_if_absent",
            Self::CreateRaces => "create_races",
            Self::Replace => "replace",
            Self::ReplaceIfMatch => "replace_if_match",
            Self::ReplaceRaces => "replace_races",
            Self::Ranges => "ranges",
            Self::ConditionalReads => "conditional_reads",
            Self::Deletes => "deletes",
            Self::LargeObjects => "large_objects",
        }
    }

    /// Every feature.
    pub const ALL: [Self; 10] = [
        Self::CreateAndRead,
        Self::CreateIfAbsent,
        Self::CreateRaces,
        Self::Replace,
        Self::ReplaceIfMatch,
        Self::ReplaceRaces,
        Self::Ranges,
        Self::ConditionalReads,
        Self::Deletes,
        Self::LargeObjects,
    ];
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The server has the feature.
    Present,
    /// The server lacks it.
    Missing(String),
    /// A request failed, so that nothing is known.
    Unknown(ObjectError),
}

/// The findings of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeReport {
    /// Each feature with its finding.
    pub findings: Vec<(Feature, Finding)>,
}

impl ProbeReport {
    /// Whether the remote works on this server.
    #[must_use]
    pub fn is_suitable(&self) -> bool {
        self.findings.iter().all(|(_, f)| *f == Finding::Present)
    }

    /// Fails unless the remote works on this server.
    pub fn require_suitable(&self) -> Result<()> {
        let unknown = self.findings.iter().find_map(|(_, finding)| match finding {
            Finding::Unknown(e) => Some(e.clone()),
            _ => None,
        });
        let missing = self.findings.iter().filter_map(|(feature, finding)| match finding {
            Finding::Missing(why) => Some(format!("{} ({why})", feature.name())),
            _ => None,
        });
        let missing: Vec<String> = missing.collect();
        match (missing.is_empty(), unknown) {
            (true, None) => Ok(()),
            (true, Some(e)) => Err(e.into()),
            (false, _) => Err(RemoteError::Unsuitable { missing: missing.join(", ") }),
        }
    }

    /// Whether several writers are kept apart. If not, the remote is safe only for a single writer.
    #[must_use]
    pub fn has_conditional_writes(&self) -> bool {
        use Feature::{CreateIfAbsent, CreateRaces, ReplaceIfMatch, ReplaceRaces};
        let needed = [CreateIfAbsent, CreateRaces, ReplaceIfMatch, ReplaceRaces];
        let of = |f: &Feature| needed.contains(f);
        self.findings.iter().filter(|(f, _)| of(f)).all(|(_, found)| *found == Finding::Present)
    }
}

/// Why a check did not pass.
enum Failure {
    Missing(String),
    Unknown(ObjectError),
}

impl From<ObjectError> for Failure {
    fn from(e: ObjectError) -> Self {
        Self::Unknown(e)
    }
}

type Check = std::result::Result<(), Failure>;

fn require(holds: bool, what: &str) -> Check {
    if holds { Ok(()) } else { Err(Failure::Missing(what.to_owned())) }
}

/// Requires that a write failed because of its condition.
fn require_refused<T: Debug>(result: ObjectResult<T>, what: &str) -> Check {
    match result {
        Err(ObjectError::Precondition { .. }) => Ok(()),
        Ok(_) => Err(Failure::Missing(what.to_owned())),
        Err(e) => Err(e.into()),
    }
}

struct Probe<'a> {
    store: &'a dyn ObjectStore,
    folder: String,
    large: usize,
    /// The keys that were used.
    keys: Mutex<Vec<String>>,
}

/// Probes a store. `large` is the length of the largest object to write, 0: none.
///
/// A failed request leaves a finding unknown; nothing is repeated.
pub fn probe(store: &dyn ObjectStore, env: &Env, large: usize) -> ProbeReport {
    let folder = format!("{PROBES}{:016x}/", env.rng.next_u64());
    let probe = Probe { store, folder, large, keys: Mutex::default() };
    let finding = |feature| match probe.run(feature) {
        Ok(()) => Finding::Present,
        Err(Failure::Missing(what)) => Finding::Missing(what),
        Err(Failure::Unknown(e)) => Finding::Unknown(e),
    };
    let findings = Feature::ALL.into_iter().map(|feature| (feature, finding(feature))).collect();
    probe.remove_all();
    ProbeReport { findings }
}

impl Probe<'_> {
    fn run(&self, feature: Feature) -> Check {
        match feature {
            Feature::CreateAndRead => self.create_and_read(),
            Feature::CreateIfAbsent => self.create_if_absent(),
            Feature::CreateRaces => self.create_races(),
            Feature::Replace => self.replace(),
            Feature::ReplaceIfMatch => self.replace_if_match(),
            Feature::ReplaceRaces => self.replace_races(),
            Feature::Ranges => self.ranges(),
            Feature::ConditionalReads => self.conditional_reads(),
            Feature::Deletes => self.deletes(),
            Feature::LargeObjects => self.large_objects(),
        }
    }

    /// A key of the probe. Its object is deleted at the end.
    fn key(&self, name: &str) -> String {
        let key = format!("{}{name}", self.folder);
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).push(key.clone());
        key
    }

    fn read(&self, key: &str) -> ObjectResult<ObjectBytes> {
        self.store.get(key, ByteRange::Full, None)
    }

    fn create(&self, name: &str, text: &str) -> ObjectResult<(String, ETag)> {
        let key = self.key(name);
        let etag = self.store.create(&key, &Bytes::from(text.to_owned()))?;
        Ok((key, etag))
    }

    fn create_and_read(&self) -> Check {
        let (key, etag) = self.create("create", "first")?;
        let found = self.read(&key)?;
        require(found.bytes == "first" && found.len == 5, "a new object reads differently")?;
        require(found.etag == etag, "a read returns another ETag than the create")?;
        let info = self.store.head(&key)?;
        require(info.len == 5 && info.etag == etag, "a look-up differs from a read")
    }

    fn create_if_absent(&self) -> Check {
        let (key, _) = self.create("absent", "first")?;
        let second = self.store.create(&key, &Bytes::from_static(b"second"));
        require_refused(second, "a create replaces an existing object")?;
        require(self.read(&key)?.bytes == "first", "a refused create changes the object")
    }

    /// Runs `write` on several threads, and requires that one succeeded, whose object is there.
    fn race(&self, key: &str, write: impl Fn(&Bytes) -> ObjectResult<ETag> + Sync) -> Check {
        let bodies: Vec<Bytes> = (0..RACERS).map(|i| format!("writer {i}").into()).collect();
        let results: Vec<ObjectResult<ETag>> = std::thread::scope(|scope| {
            let threads: Vec<_> = bodies.iter().map(|b| scope.spawn(|| write(b))).collect();
            let panicked =
                || Err(ObjectError::Ambiguous { detail: "a thread panicked".to_owned() });
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect()
        });
        let mut winners = Vec::new();
        for (body, result) in bodies.iter().zip(results) {
            match result {
                Ok(_) => winners.push(body),
                Err(ObjectError::Precondition { .. } | ObjectError::Unavailable { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        match winners[..] {
            [winner] => require(self.read(key)?.bytes == *winner, "the loser of a race is stored"),
            [] => Err(Failure::Unknown(ObjectError::Unavailable {
                detail: "no writer of a race succeeded".to_owned(),
            })),
            _ => Err(Failure::Missing(format!("{} writers won a race", winners.len()))),
        }
    }

    fn create_races(&self) -> Check {
        (0..RACES).try_for_each(|i| {
            let key = self.key(&format!("race-{i}"));
            self.race(&key, |body| self.store.create(&key, body))
        })
    }

    fn replace(&self) -> Check {
        let (key, first) = self.create("replace", "first")?;
        let second = self.store.replace(&key, &Bytes::from_static(b"second"), &first)?;
        require(first != second, "a replaced object keeps its ETag")?;
        let found = self.read(&key)?;
        require(found.bytes == "second" && found.etag == second, "a read misses the last write")
    }

    fn replace_if_match(&self) -> Check {
        let (key, first) = self.create("match", "first")?;
        self.store.replace(&key, &Bytes::from_static(b"second"), &first)?;
        let stale = self.store.replace(&key, &Bytes::from_static(b"third"), &first);
        require_refused(stale, "a replace ignores the ETag")?;
        require(self.read(&key)?.bytes == "second", "a refused replace changes the object")?;
        let missing = self.key("missing");
        match self.store.replace(&missing, &Bytes::from_static(b"x"), &first) {
            Err(ObjectError::NotFound { .. }) => Ok(()),
            other => require_refused(other, "a replace creates a missing object"),
        }
    }

    fn replace_races(&self) -> Check {
        (0..RACES).try_for_each(|i| {
            let (key, etag) = self.create(&format!("replace-race-{i}"), "first")?;
            self.race(&key, |body| self.store.replace(&key, body, &etag))
        })
    }

    fn ranges(&self) -> Check {
        let (key, _) = self.create("ranges", "0123456789")?;
        let parts = [
            (ByteRange::Span(2..5), "234"),
            (ByteRange::Span(0..1), "0"),
            (ByteRange::Span(7..1000), "789"),
            (ByteRange::Last(3), "789"),
            (ByteRange::Last(1000), "0123456789"),
        ];
        parts.into_iter().try_for_each(|(range, want)| {
            let what = format!("{range:?} of ten bytes is not {want:?}");
            let found = self.store.get(&key, range, None)?;
            require(found.bytes == want && found.len == 10, &what)
        })
    }

    fn conditional_reads(&self) -> Check {
        let (key, first) = self.create("reads", "first")?;
        let unchanged = self.store.get_if_changed(&key, &first)?;
        require(unchanged.is_none(), "an unchanged object is sent again")?;
        self.store.get(&key, ByteRange::Full, Some(&first))?;
        self.store.replace(&key, &Bytes::from_static(b"second"), &first)?;
        let changed = self.store.get_if_changed(&key, &first)?;
        require(changed.is_some_and(|o| o.bytes == "second"), "a changed object is not sent")?;
        let stale = self.store.get(&key, ByteRange::Full, Some(&first));
        require_refused(stale, "a read ignores the ETag")
    }

    fn deletes(&self) -> Check {
        let (key, _) = self.create("deletes", "x")?;
        self.store.delete(&key)?;
        self.store.delete(&key)?;
        match self.read(&key) {
            Err(ObjectError::NotFound { .. }) => Ok(()),
            // Amazon S3 says so only to keys that may list the bucket.
            Err(ObjectError::Refused { detail }) => Err(Failure::Missing(format!(
                "a look-up of a missing object is refused ({detail}); S3 answers so to a key without \
                 s3:ListBucket on the bucket"
            ))),
            Err(e) => Err(e.into()),
            Ok(_) => Err(Failure::Missing("a deleted object can be read".to_owned())),
        }
    }

    fn large_objects(&self) -> Check {
        if self.large == 0 {
            return Ok(());
        }
        let body: Bytes = (0..self.large).map(|i| (i / 251) as u8).collect::<Vec<_>>().into();
        let key = self.key("large");
        self.store.create(&key, &body)?;
        let found = self.read(&key)?;
        require(found.bytes == body && found.len == body.len() as u64, "a large object is cut")
    }

    /// Deletes what the probe created. What cannot be deleted stays.
    fn remove_all(&self) {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().for_each(|key| _ = self.store.delete(key));
    }
}
