//! The owner of a prefix: HEAD, rounds, bases.
//!
//! An owner that has lost the prefix to another one is *fenced*: every further call fails. Nothing
//! counts that it wrote after its last successful check of HEAD.

use std::sync::Arc;

use bytes::Bytes;
use topics_env::Env;
use topics_env::objects::{ETag, ObjectBytes, ObjectError, ObjectStore};
use topics_storage::dir::RemoteRecord;

use crate::claim::{Claimant, KeepRecord, Verdict, judge};
use crate::format::base::Base;
use crate::format::head::Head;
use crate::format::keys::{self, HEAD};
use crate::format::sealed::{ObjectHeader, ObjectKind, ObjectRef, SealedObject};
pub use crate::objects::PackStore;
use crate::objects::create_sealed;
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
    store_id: [u8; 16],
    record: Arc<dyn KeepRecord>,
    head: Head,
    etag: ETag,
    pending_head: Option<PendingHead>,
    /// A round whose outcome is not known: it is repeated before any other.
    pending_round: Option<SealedObject>,
    last_round: u64,
    /// The highest numbers that were tried.
    last_base: u64,
    last_pack: u64,
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
                return Ok(Self {
                    store,
                    retry,
                    store_id: claimant.store_id,
                    record: claimant.record.clone(),
                    head,
                    etag,
                    pending_head: None,
                    pending_round: None,
                    last_round: 0,
                    last_base: 0,
                    last_pack: 0,
                    fenced: None,
                });
            }
        }
        let detail = format!("{OPEN_RACES} other writers opened the prefix at the same time");
        Err(ObjectError::Unavailable { detail }.into())
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

    /// The header of the next round, or of the next base.
    #[must_use]
    pub fn header(&self, kind: ObjectKind) -> ObjectHeader {
        let number = match kind {
            ObjectKind::Pack => self.last_pack,
            ObjectKind::Round => self.last_round,
            ObjectKind::Base => self.last_base,
        };
        let Head { prefix_id, epoch, .. } = self.head;
        ObjectHeader { kind, store_id: self.store_id, prefix_id, epoch, number: number + 1 }
    }

    /// The header of the next pack, whose number is not given again.
    pub fn next_pack(&mut self) -> Result<ObjectHeader> {
        self.check_unfenced()?;
        let header = self.header(ObjectKind::Pack);
        self.last_pack = header.number;
        Ok(header)
    }

    /// The highest number of a pack that was given.
    #[must_use]
    pub fn last_pack(&self) -> u64 {
        self.last_pack
    }

    /// What puts packs.
    pub fn packs(&self) -> Result<PackStore> {
        self.check_unfenced()?;
        Ok(PackStore::new(self.store.clone(), self.retry.clone()))
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

    /// Writes a base made with [`Self::header`], reads it back, then names it in HEAD. After an error the
    /// next base has a new number.
    pub fn publish(&mut self, base: &Base) -> Result<ObjectRef> {
        self.check_unfenced()?;
        self.settle_head()?;
        if base.header != self.header(ObjectKind::Base) {
            let detail = "a base has the next header".to_owned();
            return Err(RemoteError::Usage { detail });
        }
        let sealed = base.seal();
        self.last_base += 1;
        if self.create(&sealed)? == Created::Taken {
            self.confirm()?;
            let holder = "another process with the same epoch".to_owned();
            return Err(self.fence(holder, self.head.epoch));
        }
        let object = sealed.object.clone();
        if !self.retry.env().check("remote.base-read-back", false) {
            read::base(&*self.store, &self.retry, &object)?;
        }
        self.write_head(|head| head.base = Some(object))?;
        Ok(sealed.object)
    }

    /// Says in HEAD that nothing is left to ship.
    pub fn close(mut self) -> Result<()> {
        self.ship_pending()?;
        let last_round = self.last_round;
        self.write_head(|head| head.closed = Some(last_round))
    }

    /// Whether another writer has the prefix.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// When the store got an object, by its clock, in milliseconds since the Unix epoch; `None`: there is no
    /// such object.
    pub fn stored_ms(&self, key: &str) -> Result<Option<u64>> {
        match read::retrying(&self.retry, || self.store.head(key)) {
            Ok(info) => Ok(Some(info.modified_ms)),
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
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
        let mut head = self.head.clone();
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
    Head {
        prefix_id,
        epoch: found.map_or(1, |h| h.epoch + 1),
        holder: claimant.holder.clone(),
        nonce: random(env),
        base: found.and_then(|h| h.base.clone()),
        closed: None,
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
