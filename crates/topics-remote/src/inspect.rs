//! A prefix seen from outside: its status, and a verification of what its base names.
//!
//! Both read HEAD first and what it names after that, so they may run beside the owner, which deletes only
//! what neither HEAD's base nor one that is kept names. If it keeps no earlier base, it may delete what the
//! base that was read names: those objects are then reported as missing.

use topics_env::objects::{ObjectError, ObjectStore};

use crate::format::base::{Base, BasePack};
use crate::format::head::Head;
use crate::format::keys::{self, HEAD};
use crate::{RemoteError, Result, Retry, read};

/// As many objects in a row are missing behind the last one of an epoch.
pub const ABSENT_IN_A_ROW: usize = 8;

/// The published state of a prefix.
#[derive(Clone, Debug)]
pub struct PrefixStatus {
    pub head: Head,
    /// When HEAD was written, by the clock of the store, in milliseconds since the Unix epoch.
    pub head_ms: u64,
    /// The base that it names.
    pub base: Option<Base>,
    /// The last round that a restore replays over it, 0: none.
    pub last_round: u64,
}

impl PrefixStatus {
    #[must_use]
    pub fn pack_bytes(&self) -> u64 {
        self.packs().iter().map(|p| p.len).sum()
    }

    /// The packs that the base names.
    #[must_use]
    pub fn packs(&self) -> &[BasePack] {
        self.base.as_ref().map_or(&[], |b| &b.packs)
    }

    /// Bytes of the objects that the base names, and of itself.
    #[must_use]
    pub fn named_bytes(&self) -> u64 {
        self.pack_bytes() + self.head.base.as_ref().map_or(0, |b| b.len)
    }
}

/// Reads the status; `None` if the prefix is new.
pub fn status(store: &dyn ObjectStore, retry: &Retry) -> Result<Option<PrefixStatus>> {
    let Some((head, _)) = read::head(store, retry)? else { return Ok(None) };
    let head_ms = read::retrying(retry, || store.head(HEAD))?.modified_ms;
    let base = match &head.base {
        Some(object) => Some(read::base(store, retry, object)?),
        None => None,
    };
    let last_round = match &base {
        Some(b) => last_round(store, retry, b.header.epoch, b.first_round)?,
        None => 0,
    };
    Ok(Some(PrefixStatus { head, head_ms, base, last_round }))
}

/// The last round of an epoch from this one on; 0: there is none.
fn last_round(store: &dyn ObjectStore, retry: &Retry, epoch: u64, first: u64) -> Result<u64> {
    let mut next = first;
    while len_of(store, retry, &keys::round(epoch, next))?.is_some() {
        next += 1;
    }
    Ok(if next == first { 0 } else { next - 1 })
}

/// The length of an object; `None` if it does not exist.
fn len_of(store: &dyn ObjectStore, retry: &Retry, key: &str) -> Result<Option<u64>> {
    match read::retrying(retry, || store.head(key)) {
        Ok(info) => Ok(Some(info.len)),
        Err(ObjectError::NotFound { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// What a verification reads, beside `HEAD` and its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyDepth {
    /// Footer and directory of every pack. Rounds are looked up.
    Footers,
    /// Every byte of the packs and of the rounds.
    Data,
}

/// What is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectProblem {
    pub key: String,
    /// What is wrong.
    pub detail: String,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixReport {
    /// Objects that were looked up or read.
    pub objects: u64,
    /// Those that were read as a whole.
    pub read: u64,
    pub bytes: u64,
    /// Damaged and missing objects.
    pub problems: Vec<ObjectProblem>,
}

struct Verifier<'a> {
    store: &'a dyn ObjectStore,
    retry: &'a Retry,
    depth: VerifyDepth,
    report: PrefixReport,
    progress: &'a mut dyn FnMut(u64, u64),
    total: u64,
}

/// Verifies HEAD, the base, every object that it names, and the rounds after it.
/// A failed request is an error; damage is a problem in the report. Calls `progress(done, total)` after
/// each object.
pub fn verify(
    store: &dyn ObjectStore,
    retry: &Retry,
    depth: VerifyDepth,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<PrefixReport>> {
    let report = PrefixReport::default();
    let mut verifier = Verifier { store, retry, depth, report, progress, total: 2 };
    match verifier.all() {
        Ok(false) => Ok(None),
        Ok(true) => Ok(Some(verifier.report)),
        Err(e) => Err(e),
    }
}

impl Verifier<'_> {
    /// Returns false if the prefix is new.
    fn all(&mut self) -> Result<bool> {
        let found = read::head(self.store, self.retry);
        let Some(head) = self.judged(HEAD, found)? else { return Ok(true) };
        let Some((head, _)) = head else { return Ok(false) };
        let Some(object) = &head.base else { return Ok(true) };
        let found = read::base(self.store, self.retry, object);
        let Some(base) = self.judged(&object.key, found)? else { return Ok(true) };
        self.total += base.packs.len() as u64;
        for pack in &base.packs {
            self.pack(pack)?;
        }
        self.rounds(base.header.epoch, base.first_round)?;
        Ok(true)
    }

    /// Counts an object. Damage becomes a problem (`None`), every other error ends the verification.
    fn judged<T>(&mut self, key: &str, found: Result<T>) -> Result<Option<T>> {
        self.report.objects += 1;
        (self.progress)(self.report.objects, self.total);
        let detail = match found {
            Ok(found) => return Ok(Some(found)),
            Err(RemoteError::Damaged { detail, .. }) => detail,
            Err(RemoteError::Object(ObjectError::NotFound { .. })) => "it is missing".to_owned(),
            Err(e @ RemoteError::Version { .. }) => e.to_string(),
            Err(e) => return Err(e),
        };
        self.report.problems.push(ObjectProblem { key: key.to_owned(), detail });
        Ok(None)
    }

    fn pack(&mut self, pack: &BasePack) -> Result<()> {
        let object = pack.object();
        let found = match self.depth {
            VerifyDepth::Data => read::pack(self.store, self.retry, &object).map(|_| {
                self.report.read += 1;
                self.report.bytes += object.len;
            }),
            VerifyDepth::Footers => {
                read::pack_directory(self.store, self.retry, &object, read::FIRST_FETCH).map(drop)
            }
        };
        self.judged(&object.key, found).map(drop)
    }

    /// The rounds that a restore would replay, from this one on. One that is missing before later ones is a
    /// problem.
    fn rounds(&mut self, epoch: u64, first: u64) -> Result<()> {
        let mut absent = Vec::new();
        for n in first.. {
            let found = self.round(epoch, n);
            if let Ok(None) = found {
                absent.push(n);
                if absent.len() == ABSENT_IN_A_ROW {
                    break;
                }
                continue;
            }
            // Looked up again: the owner may have put them meanwhile, and did so before this one.
            for n in absent.drain(..) {
                let found = self.round(epoch, n);
                self.judge_round(epoch, n, found)?;
            }
            self.judge_round(epoch, n, found)?;
        }
        Ok(())
    }

    /// Looks a round up, or reads it. Returns its length; `None` if it does not exist.
    fn round(&self, epoch: u64, n: u64) -> Result<Option<u64>> {
        match self.reads_rounds() {
            true => Ok(read::round(self.store, self.retry, epoch, n)?.map(|(_, found)| found.len)),
            false => len_of(self.store, self.retry, &keys::round(epoch, n)),
        }
    }

    fn judge_round(&mut self, epoch: u64, n: u64, found: Result<Option<u64>>) -> Result<()> {
        let key = keys::round(epoch, n);
        self.total += 1;
        if let (true, Ok(Some(len))) = (self.reads_rounds(), &found) {
            self.report.read += 1;
            self.report.bytes += len;
        }
        let missing = || ObjectError::NotFound { key: key.clone() }.into();
        let found = found.and_then(|len| len.ok_or_else(missing));
        self.judged(&key, found).map(drop)
    }

    fn reads_rounds(&self) -> bool {
        self.depth == VerifyDepth::Data
    }
}
