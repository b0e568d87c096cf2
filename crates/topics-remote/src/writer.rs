//! The owner of a prefix: HEAD, rounds, catalogs.
//!
//! An owner that has lost the prefix to another one is *fenced*: every further call fails. Nothing
//! counts that it wrote after its last successful check of HEAD.

use std::sync::Arc;

use bytes::Bytes;
use topics_env::Env;
use topics_env::objects::{ETag, ObjectBytes, ObjectError, ObjectStore};
use topics_storage::dir::RemoteRecord;
use topics_storage::segment::{SegmentMeta, TopicKey};

use crate::claim::{Claimant, KeepRecord, Verdict, judge};
use crate::format::catalog::{Catalog, CatalogDeletes, ChainEnd};
use crate::format::head::{Head, PriorEpoch};
use crate::format::keys::{self, HEAD};
use crate::format::sealed::{ObjectHeader, ObjectKind, ObjectRef, SealedObject};
use crate::objects::create_sealed;
pub use crate::objects::{ObjectWriter, Put};
use crate::resolve::{Created, ReadBack, Replaced, create_resolved, replace_resolved};
use crate::{RemoteError, Result, Retry, read};

/// How often an open begins again because another writer opened the prefix at the same time.
const OPEN_RACES: usize = 8;

/// A write of HEAD whose outcome is not known.
#[derive(Debug)]
struct PendingHead {
    head: Head,
    body: Bytes,
}

/// The owner of a prefix.
#[derive(Debug)]
pub struct RemoteWriter {
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    record: Arc<dyn KeepRecord>,
    head: Head,
    etag: ETag,
    pending_head: Option<PendingHead>,
    /// A round whose outcome is not known: it is repeated before any other.
    pending_round: Option<SealedObject>,
    last_round: u64,
    last_catalog: u64,
    fenced: Option<RemoteError>,
}

impl RemoteWriter {
    /// Makes this directory the owner of the prefix and raises the epoch. Fails with `NotOurs` if the
    /// prefix is not the directory's. Calls `check_new` before it creates HEAD.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        retry: Retry,
        claimant: &Claimant,
        check_new: &dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        for _ in 0..OPEN_RACES {
            let found = read::head(&*store, &retry)?;
            let known = claimant.record.load()?;
            let record = match judge(known, claimant.has_packs, found.as_ref().map(|f| &f.0)) {
                Verdict::Refused(why) => return Err(RemoteError::NotOurs(why)),
                Verdict::Continue(record) => record,
                Verdict::Create(record) => {
                    check_new()?;
                    record.unwrap_or_else(|| RemoteRecord {
                        prefix_id: random(retry.env()),
                        epoch: 0,
                        seen: None,
                        attempted: Vec::new(),
                    })
                }
            };
            let found_head = found.as_ref().map(|f| &f.0);
            let head = opened(retry.env(), claimant, record.prefix_id, found_head);
            // An earlier write that has not arrived may still do so until this one does.
            let seen = found_head.map(|h| h.nonce);
            let mut attempted = record.attempted;
            attempted.retain(|n| Some(*n) != seen);
            attempted.push(head.nonce);
            let record = RemoteRecord { epoch: head.epoch, seen, attempted, ..record };
            keep(&retry, &*claimant.record, &record)?;
            let body = head.encode();
            let written = match &found {
                None => {
                    create_resolved(&*store, &retry, HEAD, &body, ReadBack::Full, &Head::is_valid)
                        .map(|c| match c {
                            Created::Written(etag) => Some(etag),
                            Created::Taken => None,
                        })
                }
                Some((_, etag)) => {
                    replace_resolved(&*store, &retry, HEAD, &body, etag, &Head::is_valid).map(|r| {
                        match r {
                            Replaced::Written(etag) => Some(etag),
                            Replaced::Other(_) => None,
                        }
                    })
                }
            }?;
            if let Some(etag) = written {
                if found.is_none() {
                    // From now on a prefix without HEAD is not the one that was created.
                    let (seen, attempted) = (Some(head.nonce), Vec::new());
                    keep(&retry, &*claimant.record, &RemoteRecord { seen, attempted, ..record })?;
                }
                return Self::owner(store, retry, claimant.record.clone(), head, etag);
            }
        }
        let detail = format!("{OPEN_RACES} other writers opened the prefix at the same time");
        Err(ObjectError::Unavailable { detail }.into())
    }

    /// The owner after its HEAD is written. Determines the ends of earlier epochs and writes them to
    /// HEAD before this epoch ships anything: a later owner must not find other ones.
    fn owner(
        store: Arc<dyn ObjectStore>,
        retry: Retry,
        record: Arc<dyn KeepRecord>,
        head: Head,
        etag: ETag,
    ) -> Result<Self> {
        let mut out = Self {
            store,
            retry,
            record,
            head,
            etag,
            pending_head: None,
            pending_round: None,
            last_round: 0,
            last_catalog: 0,
            fenced: None,
        };
        let mut priors = out.head.priors.clone();
        for prior in priors.iter_mut().filter(|p| !p.is_final) {
            let round = |n| keys::round(prior.epoch, n);
            while exists(&*out.store, &out.retry, &round(prior.last_round + 1))? {
                prior.last_round += 1;
            }
            prior.is_final = true;
        }
        // The writer of an epoch without rounds had nothing that counts, nor will it.
        priors.retain(|p| p.last_round > 0);
        if priors != out.head.priors {
            out.write_head(|head| head.priors = priors)?;
        }
        Ok(out)
    }

    /// HEAD as this owner last wrote it.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The last round that counts as shipped, 0: none.
    #[must_use]
    pub fn shipped(&self) -> u64 {
        self.last_round
    }

    /// The header of the next object of this kind. The number is that of the next round or catalog,
    /// or `file_no` for a pack.
    #[must_use]
    pub fn header(&self, kind: ObjectKind, file_no: u64) -> ObjectHeader {
        let number = match kind {
            ObjectKind::Pack => file_no,
            ObjectKind::Round => self.last_round + 1,
            ObjectKind::Catalog => self.last_catalog + 1,
        };
        let Head { store_id, prefix_id, epoch, .. } = self.head;
        ObjectHeader { kind, store_id, prefix_id, epoch, number }
    }

    /// Whether a round must be repeated ([`Self::ship_pending`]) before the next one is made.
    #[must_use]
    pub fn has_pending_round(&self) -> bool {
        self.pending_round.is_some()
    }

    /// The writer of packs and bitmaps.
    pub fn objects(&self) -> Result<ObjectWriter> {
        self.check_unfenced()?;
        let Head { store_id, prefix_id, epoch, .. } = self.head;
        let (store, retry) = (self.store.clone(), self.retry.clone());
        Ok(ObjectWriter::new(store, retry, (store_id, prefix_id, epoch)))
    }

    /// [`ObjectWriter::put`].
    pub fn put(&self, object: &SealedObject) -> Result<Put> {
        self.objects()?.put(object)
    }

    /// [`ObjectWriter::put_deletes`].
    pub fn put_deletes(
        &self,
        topic: TopicKey,
        meta: &SegmentMeta,
        del: Bytes,
    ) -> Result<CatalogDeletes> {
        self.objects()?.put_deletes(topic, meta, del)
    }

    /// Ships a round made with [`Self::header`]. After an error other than `Fenced` its outcome is
    /// not known: call [`Self::ship_pending`] until it succeeds.
    pub fn ship(&mut self, round: SealedObject) -> Result<u64> {
        let expected = keys::round(self.head.epoch, self.last_round + 1);
        if self.pending_round.is_some() || round.object.key != expected {
            let detail = format!("round {} was shipped, {expected} is next", round.object.key);
            return Err(RemoteError::Usage { detail });
        }
        self.pending_round = Some(round);
        self.ship_pending()
    }

    /// Ships the pending round, if there is one. Returns the last round that counts.
    pub fn ship_pending(&mut self) -> Result<u64> {
        self.check_unfenced()?;
        let Some(round) = &self.pending_round else { return Ok(self.last_round) };
        let created = self.create(round)?;
        self.confirm()?;
        if created == Created::Taken {
            let holder = "another process with the same epoch".to_owned();
            return Err(self.fence(holder, self.head.epoch));
        }
        self.pending_round = None;
        self.last_round += 1;
        Ok(self.last_round)
    }

    /// Writes a catalog made with [`Self::header`], then names it in HEAD. Its `chain_ends` contain
    /// those of HEAD. After an error the next catalog has a new number.
    pub fn publish(&mut self, catalog: &Catalog) -> Result<ObjectRef> {
        self.check_unfenced()?;
        self.settle_head()?;
        let end = |p: &PriorEpoch| ChainEnd { epoch: p.epoch, last_round: p.last_round };
        let has_ends = self.head.priors.iter().all(|p| catalog.chain_ends.contains(&end(p)));
        if catalog.header != self.header(ObjectKind::Catalog, 0) || !has_ends {
            let detail = "a catalog has the next header and the ends of the epochs before";
            return Err(RemoteError::Usage { detail: detail.to_owned() });
        }
        let sealed = catalog.seal();
        self.last_catalog += 1;
        if self.create(&sealed)? == Created::Taken {
            self.confirm()?;
            let holder = "another process with the same epoch".to_owned();
            return Err(self.fence(holder, self.head.epoch));
        }
        let object = sealed.object.clone();
        self.write_head(|head| (head.catalog, head.priors) = (Some(object), Vec::new()))?;
        Ok(sealed.object)
    }

    /// Says in HEAD that nothing is left to ship.
    pub fn close(mut self) -> Result<()> {
        self.ship_pending()?;
        self.write_head(|head| head.closed = true)
    }

    /// Whether another writer has the prefix.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// The time by the clock of the store, in milliseconds since the Unix epoch. Writes HEAD, so that it
    /// succeeds only while this writer owns the prefix.
    pub fn store_time(&mut self) -> Result<u64> {
        self.check_unfenced()?;
        self.write_head(|_| ())?;
        let info = read::retrying(&self.retry, || self.store.head(HEAD))?;
        match info.etag == self.etag {
            true => Ok(info.modified_ms),
            false => {
                self.confirm()?;
                let detail = "HEAD was answered with another ETag than it has".to_owned();
                Err(ObjectError::Unavailable { detail }.into())
            }
        }
    }

    /// Deletes an object that nothing names, after a check of HEAD. A later owner names no object that
    /// this one may delete, so a delete that arrives late does no harm.
    pub fn delete(&mut self, key: &str) -> Result<()> {
        self.confirm()?;
        Ok(self.store.delete(key)?)
    }

    /// Checks that this writer still owns the prefix.
    pub fn confirm(&mut self) -> Result<()> {
        self.check_unfenced()?;
        self.settle_head()?;
        let unchanged = self.is_head_unchanged()?;
        if self.retry.env().check("remote.head-check", unchanged.is_none()) {
            return Ok(());
        }
        let (holder, epoch) = match unchanged.map(|found| Head::decode(&found.bytes)) {
            Some(Ok(head)) => (head.holder, head.epoch),
            _ => ("an unknown process".to_owned(), 0),
        };
        Err(self.fence(holder, epoch))
    }

    /// `None` if HEAD has the ETag of this owner's last write.
    fn is_head_unchanged(&self) -> Result<Option<ObjectBytes>> {
        let (store, etag) = (&*self.store, &self.etag);
        let read = || store.get_if_changed(HEAD, etag);
        let found = read::retrying(&self.retry, read)?;
        // A damaged answer is fetched again; the HEAD that was written is valid.
        match found {
            Some(found) if !Head::is_valid(&found) => {
                let other = read::head(store, &self.retry)?;
                Ok(other.filter(|(_, e)| e != etag).map(|(head, etag)| {
                    let bytes = head.encode();
                    ObjectBytes { len: bytes.len() as u64, bytes, etag }
                }))
            }
            found => Ok(found),
        }
    }

    fn create(&self, object: &SealedObject) -> Result<Created> {
        create_sealed(&*self.store, &self.retry, object)
    }

    /// Replaces HEAD.
    fn write_head(&mut self, change: impl FnOnce(&mut Head)) -> Result<()> {
        self.settle_head()?;
        let mut head = Head { last_round: self.last_round, ..self.head.clone() };
        head.nonce = random(self.retry.env());
        change(&mut head);
        let record = RemoteRecord {
            prefix_id: head.prefix_id,
            epoch: head.epoch,
            seen: Some(self.head.nonce),
            attempted: vec![head.nonce],
        };
        keep(&self.retry, &*self.record, &record)?;
        let body = head.encode();
        self.pending_head = Some(PendingHead { head, body });
        self.settle_head()
    }

    /// Repeats a write of HEAD whose outcome is not known.
    fn settle_head(&mut self) -> Result<()> {
        let Some(PendingHead { head, body }) = &self.pending_head else { return Ok(()) };
        let (store, retry) = (&*self.store, &self.retry);
        match replace_resolved(store, retry, HEAD, body, &self.etag, &Head::is_valid)? {
            Replaced::Written(etag) => {
                (self.etag, self.head) = (etag, head.clone());
                self.pending_head = None;
                Ok(())
            }
            Replaced::Other(found) => {
                let (holder, epoch) = match Head::decode(&found.bytes) {
                    Ok(head) => (head.holder, head.epoch),
                    Err(_) => ("a newer program".to_owned(), 0),
                };
                Err(self.fence(holder, epoch))
            }
        }
    }

    fn check_unfenced(&self) -> Result<()> {
        self.fenced.clone().map_or(Ok(()), Err)
    }

    fn fence(&mut self, holder: String, epoch: u64) -> RemoteError {
        let e = RemoteError::Fenced { holder, epoch };
        self.fenced = Some(e.clone());
        e
    }
}

/// HEAD of a new owner.
fn opened(env: &Env, claimant: &Claimant, prefix_id: [u8; 16], found: Option<&Head>) -> Head {
    let mut priors = found.map_or_else(Vec::new, |h| h.priors.clone());
    priors.extend(found.map(|h| PriorEpoch {
        epoch: h.epoch,
        last_round: h.last_round,
        is_final: false,
    }));
    Head {
        store_id: claimant.store_id,
        prefix_id,
        epoch: found.map_or(1, |h| h.epoch + 1),
        holder: claimant.holder.clone(),
        nonce: random(env),
        catalog: found.and_then(|h| h.catalog.clone()),
        last_round: 0,
        priors,
        closed: false,
    }
}

fn random(env: &Env) -> [u8; 16] {
    let mut out = [0; 16];
    env.rng.fill(&mut out);
    out
}

/// Makes the record durable before a write of HEAD.
fn keep(retry: &Retry, to: &dyn KeepRecord, record: &RemoteRecord) -> Result<()> {
    match retry.env().check("remote.record", false) {
        true => Ok(()),
        false => to.save(record),
    }
}

fn exists(store: &dyn ObjectStore, retry: &Retry, key: &str) -> Result<bool> {
    match read::retrying(retry, || store.head(key)) {
        Ok(_) => Ok(true),
        Err(ObjectError::NotFound { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
