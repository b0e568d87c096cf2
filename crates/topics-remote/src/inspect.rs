//! A prefix seen from outside: its status, and a verification of what its catalog names.
//!
//! Both read HEAD first and what it names after that, so they may run beside the owner. An object that
//! the owner deletes meanwhile was condemned a grace before; no catalog of that time names it.

use topics_env::objects::{ByteRange, ObjectError, ObjectStore};
use xxhash_rust::xxh3::xxh3_128;

use crate::format::catalog::{Catalog, CatalogDeletes, CatalogPack};
use crate::format::head::Head;
use crate::format::keys::{self, HEAD};
use crate::format::sealed::ObjectRef;
use crate::{RemoteError, Result, Retry, read};

/// The published state of a prefix.
#[derive(Clone, Debug)]
pub struct PrefixStatus {
    pub head: Head,
    /// When HEAD was written, by the clock of the store, in milliseconds since the Unix epoch.
    pub head_ms: u64,
    /// The catalog that it names.
    pub catalog: Option<Catalog>,
    /// The last round of the newest epoch, 0: none.
    pub last_round: u64,
}

impl PrefixStatus {
    #[must_use]
    pub fn pack_bytes(&self) -> u64 {
        self.packs().iter().map(|p| p.len).sum()
    }

    /// The packs that the catalog names.
    #[must_use]
    pub fn packs(&self) -> &[CatalogPack] {
        self.catalog.as_ref().map_or(&[], |c| &c.packs)
    }

    /// The bitmaps that the catalog names.
    #[must_use]
    pub fn deletes(&self) -> &[CatalogDeletes] {
        self.catalog.as_ref().map_or(&[], |c| &c.deletes)
    }

    /// Bytes of the objects that the catalog names, and of itself.
    #[must_use]
    pub fn named_bytes(&self) -> u64 {
        let deletes: u64 = self.deletes().iter().map(|d| d.len).sum();
        let catalog = self.head.catalog.as_ref().map_or(0, |c| c.len);
        self.pack_bytes() + deletes + catalog
    }
}

/// Reads the status; `None` if the prefix is new.
pub fn status(store: &dyn ObjectStore, retry: &Retry) -> Result<Option<PrefixStatus>> {
    let Some((head, _)) = read::head(store, retry)? else { return Ok(None) };
    let head_ms = read::retrying(retry, || store.head(HEAD))?.modified_ms;
    let catalog = match &head.catalog {
        Some(object) => Some(read::catalog(store, retry, object)?),
        None => None,
    };
    let last_round = last_round(store, retry, head.epoch, head.last_round)?;
    Ok(Some(PrefixStatus { head, head_ms, catalog, last_round }))
}

/// The last round of an epoch, beginning with one that exists.
fn last_round(store: &dyn ObjectStore, retry: &Retry, epoch: u64, known: u64) -> Result<u64> {
    let mut last = known;
    while len_of(store, retry, &keys::round(epoch, last + 1))?.is_some() {
        last += 1;
    }
    Ok(last)
}

/// The length of an object; `None` if it does not exist.
fn len_of(store: &dyn ObjectStore, retry: &Retry, key: &str) -> Result<Option<u64>> {
    match read::retrying(retry, || store.head(key)) {
        Ok(info) => Ok(Some(info.len)),
        Err(ObjectError::NotFound { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// What a verification reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VerifyDepth {
    /// The footer and directory of every pack.
    pub footers: bool,
    /// The share of the packs that is read as a whole, from 0 to 1, at least one of them above 0. Bitmaps
    /// and rounds are read with them.
    pub read_data: f64,
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

/// Verifies HEAD, the catalog, that every object that it names exists, and the chain of rounds after it.
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
        let Some(object) = &head.catalog else {
            self.rounds(head.epoch, 1, head.last_round)?;
            return Ok(true);
        };
        let found = read::catalog(self.store, self.retry, object);
        let Some(catalog) = self.judged(&object.key, found)? else { return Ok(true) };
        self.total += (catalog.packs.len() + catalog.deletes.len()) as u64;
        let sampled = self.sampled(&catalog);
        for (i, pack) in catalog.packs.iter().enumerate() {
            self.pack(pack, sampled.contains(&i))?;
        }
        for deletes in &catalog.deletes {
            self.deletes(deletes)?;
        }
        self.chain(&head, &catalog)?;
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

    /// The indexes of the packs to read.
    fn sampled(&self, catalog: &Catalog) -> std::collections::BTreeSet<usize> {
        let n = catalog.packs.len();
        let want = (self.depth.read_data.clamp(0.0, 1.0) * n as f64).ceil() as usize;
        let mut all: Vec<usize> = (0..n).collect();
        // The first `want` places of a shuffle.
        for i in 0..want.min(n) {
            let left = (n - i) as u64;
            all.swap(i, i + (self.retry.env().rng.next_u64() % left) as usize);
        }
        all.into_iter().take(want).collect()
    }

    fn pack(&mut self, pack: &CatalogPack, whole: bool) -> Result<()> {
        let object = pack.object();
        let found = match whole {
            true => read::pack(self.store, self.retry, &object).map(|(directory, _)| {
                (self.report.read, self.report.bytes) =
                    (self.report.read + 1, self.report.bytes + object.len);
                Some(directory)
            }),
            false if self.depth.footers => {
                read::pack_directory(self.store, self.retry, &object, read::FIRST_FETCH).map(Some)
            }
            false => self.present(&object).map(|()| None),
        };
        let found = found.and_then(|directory| {
            let is_same = |d| CatalogPack::of(&object, d) == *pack;
            match directory.as_ref().is_none_or(is_same) {
                true => Ok(()),
                false => {
                    Err(RemoteError::damaged(&object.key, "its directory differs from the catalog"))
                }
            }
        });
        self.judged(&object.key, found).map(drop)
    }

    /// Looks an object up.
    fn present(&self, object: &ObjectRef) -> Result<()> {
        let key = &object.key;
        match len_of(self.store, self.retry, key)? {
            Some(len) if len == object.len => Ok(()),
            Some(len) => {
                let detail = format!("it has {len} bytes, the catalog says {}", object.len);
                Err(RemoteError::damaged(key, detail))
            }
            None => Err(RemoteError::Object(ObjectError::NotFound { key: key.clone() })),
        }
    }

    fn deletes(&mut self, d: &CatalogDeletes) -> Result<()> {
        let object = d.object();
        let found = match self.depth.read_data > 0.0 {
            false => self.present(&object),
            true => {
                let get = || self.store.get(&object.key, ByteRange::Full, None);
                read::retrying(self.retry, get).map_err(RemoteError::from).and_then(|found| {
                    self.report.read += 1;
                    self.report.bytes += found.len;
                    match xxh3_128(&found.bytes) == object.hash {
                        true => Ok(()),
                        false => Err(RemoteError::damaged(&object.key, "its hash differs")),
                    }
                })
            }
        };
        self.judged(&object.key, found).map(drop)
    }

    /// The rounds that a restore would replay over the catalog, without gaps.
    fn chain(&mut self, head: &Head, catalog: &Catalog) -> Result<()> {
        let of_catalog = catalog.header.epoch;
        let end = |epoch: u64| head.priors.iter().find(|p| p.epoch == epoch).map(|p| p.last_round);
        let mut epochs: Vec<u64> = head.priors.iter().map(|p| p.epoch).collect();
        epochs.extend([of_catalog, head.epoch]);
        epochs.sort_unstable();
        epochs.dedup();
        for epoch in epochs.into_iter().filter(|e| *e >= of_catalog) {
            let first = if epoch == of_catalog { catalog.first_round } else { 1 };
            let last = match epoch == head.epoch {
                true => head.last_round,
                false => end(epoch).unwrap_or(0),
            };
            self.rounds(epoch, first, last)?;
        }
        Ok(())
    }

    fn rounds(&mut self, epoch: u64, first: u64, last: u64) -> Result<()> {
        self.total += (last + 1).saturating_sub(first);
        for n in first..=last {
            let key = keys::round(epoch, n);
            let missing = || ObjectError::NotFound { key: key.clone() }.into();
            let found = match self.depth.read_data > 0.0 {
                true => read::round(self.store, self.retry, epoch, n).map(|found| {
                    let len = found.map(|(_, object)| object.len);
                    self.report.read += u64::from(len.is_some());
                    self.report.bytes += len.unwrap_or(0);
                    len
                }),
                false => len_of(self.store, self.retry, &key),
            };
            let found = found.and_then(|len| len.map(drop).ok_or_else(missing));
            self.judged(&key, found)?;
        }
        Ok(())
    }
}
