//! The catalog of the newest snapshot, and the packs that nothing needs any more.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use topics_env::objects::ObjectStore;
use topics_remote::format::catalog::{
    Catalog, CatalogDeletes, CatalogPack, ChainEnd, Condemned, EarlierCatalog,
};
use topics_remote::format::head::{Head, PriorEpoch};
use topics_remote::format::keys;
use topics_remote::format::sealed::{ObjectKind, ObjectRef};
use topics_remote::{Retry, read};
use topics_storage::StorageError;
use topics_storage::dir::{Paths, read_file};
use topics_storage::segment::{FileKind, SegmentMeta, TopicKey};
use topics_storage::snapshot::SnapshotBody;

use super::plan::PendingSegment;
use super::sweep::named_by;
use super::{Archiver, PassState, remote_error};
use crate::tier::{self, ArchivedPack, PackIdentities};
use crate::types::error::{Error, Result};

/// What the catalog in `HEAD` names.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub packs: PackIdentities,
    /// By file number of the segment and number of the `.del`.
    deletes: BTreeMap<(u64, u64), CatalogDeletes>,
    catalog: Option<ObjectRef>,
    /// The keys of the objects that it names, and its own.
    named: BTreeSet<String>,
    /// What earlier catalogs named and this one does not.
    pub condemned: Vec<Condemned>,
    /// The catalogs that the next one lists.
    earlier: Vec<EarlierCatalog>,
}

impl Published {
    /// `archived` are the packs that its snapshot names.
    fn of(catalog: &Catalog, object: ObjectRef, archived: &[ArchivedPack]) -> Self {
        let deletes = catalog.deletes.iter().map(|d| ((d.file_no, d.del_no), *d));
        let mut named: BTreeSet<String> = named_by(catalog).collect();
        named.insert(object.key.clone());
        Self {
            packs: tier::identities(archived.iter()),
            deletes: deletes.collect(),
            earlier: catalog.earlier_of_next(&object),
            catalog: Some(object),
            named,
            condemned: catalog.condemned.clone(),
        }
    }

    /// The keys of the objects that the catalog names, and its own.
    pub(super) fn named(&self) -> &BTreeSet<String> {
        &self.named
    }

    /// Epoch and number of the catalog.
    pub(super) fn catalog_number(&self) -> Option<(u64, u64)> {
        let found = keys::parse(&self.catalog.as_ref()?.key)?;
        Some((found.epoch, found.number))
    }

    /// Dates what the catalog was the first to condemn: by the time at which the store got the catalog. If
    /// that cannot be had, a later call does it.
    pub(super) fn date_condemned(&mut self, store: &dyn ObjectStore, retry: &Retry) {
        let Some(catalog) = &self.catalog else { return };
        if self.condemned.iter().all(|c| c.since_ms > 0) {
            return;
        }
        if let Ok(info) = read::retrying(retry, || store.head(&catalog.key)) {
            for c in self.condemned.iter_mut().filter(|c| c.since_ms == 0) {
                c.since_ms = info.modified_ms;
            }
        }
    }

    /// What the next catalog condemns, which names `packs` and `deletes` and is of this epoch.
    fn condemned_by(
        &self,
        packs: &[CatalogPack],
        deletes: &[CatalogDeletes],
        epoch: u64,
    ) -> Vec<Condemned> {
        let packs = packs.iter().map(|p| p.object().key);
        let named: BTreeSet<String> = packs.chain(deletes.iter().map(|d| d.object().key)).collect();
        let mut out = self.condemned.clone();
        out.retain(|c| !named.contains(&c.key));
        let new = self.named.difference(&named);
        out.extend(new.map(|key| Condemned { key: key.clone(), epoch, since_ms: 0 }));
        out
    }
}

/// The newest snapshot, as far as a catalog needs it.
struct NamedState {
    snapshot: Vec<u8>,
    /// Packs with a segment that the snapshot names.
    needed: Vec<ArchivedPack>,
    /// Packs without.
    unneeded: BTreeSet<u64>,
    /// The bitmaps of archived segments; the bytes of those that are not in the store.
    deletes: Vec<(TopicKey, SegmentMeta, Option<Vec<u8>>)>,
    /// The segments that no pack holds, if the catalog is to be the base of a restore.
    unarchived: Vec<PendingSegment>,
    body: SnapshotBody,
}

impl Archiver {
    /// Reads the catalog that `head` names.
    pub(super) fn read_published(&self, head: &Head) -> Result<Published> {
        let Some(object) = &head.catalog else { return Ok(Published::default()) };
        let catalog = read::catalog(&*self.remote.store, &self.retry, object);
        let catalog = catalog.map_err(remote_error)?;
        let snapshot = read::snapshot(&self.store.base().env, &object.key, &catalog);
        let sections = snapshot.map_err(remote_error)?.body.sections;
        let archived = tier::published(&catalog, &sections)?;
        Ok(Published::of(&catalog, object.clone(), &archived))
    }

    /// Publishes a catalog if one is due. Returns whether it did.
    pub(super) fn publish(&self, state: &mut PassState) -> Result<bool> {
        if !self.is_unpublished(state) {
            return Ok(false);
        }
        self.name_packs()?;
        let Some(owner) = &mut state.owner else {
            return Err(Error::Internal("a catalog without an owner of the prefix".into()));
        };
        let Some(named) = self.named_state(&owner.published)? else { return Ok(false) };
        let deletes = self.put_deletes(&owner.published, named.deletes)?;
        let mut packs: Vec<_> = named.needed.iter().map(ArchivedPack::for_catalog).collect();
        let mut cover = None;
        if let Some(shipper) = &self.shipper {
            packs.extend(self.put_tails(&mut state.tails, named.unarchived)?);
            packs.sort_unstable_by_key(|p| p.file_no);
            cover = Some(shipper.cover(&named.body)?);
        }
        self.check_usable()?;
        owner.published.date_condemned(&*self.remote.store, &self.retry);
        let condemned = owner.published.condemned_by(&packs, &deletes, owner.head.epoch);
        // A catalog stays condemned until it is deleted.
        let mut earlier = owner.published.earlier.clone();
        let kept: HashSet<&String> = condemned.iter().map(|c| &c.key).collect();
        earlier.retain(|e| kept.contains(&e.object().key));
        let (catalog, object) = self.prefix.with(|writer| {
            let end = |p: &PriorEpoch| ChainEnd { epoch: p.epoch, last_round: p.last_round };
            let catalog = Catalog {
                header: writer.header(ObjectKind::Catalog, 0),
                made_ms: cover.map_or_else(|| self.store.base().time.steady(), |c| c.made_ms),
                first_round: cover.map_or_else(|| writer.shipped() + 1, |c| c.first_round),
                chain_ends: writer.head().priors.iter().map(end).collect(),
                packs,
                deletes,
                condemned,
                earlier,
                snapshot: named.snapshot,
            };
            let object = writer.publish(&catalog).map_err(remote_error)?;
            Ok((catalog, object))
        })?;
        if let (Some(shipper), Some(cover)) = (&self.shipper, &cover) {
            shipper.base_published(cover);
        }
        owner.published = Published::of(&catalog, object, &named.needed);
        // A later snapshot needs none of these: an archived segment that is in no snapshot does not
        // come back. A pack that was added since the snapshot is not among them.
        self.store.base().packs.remove(&named.unneeded);
        Ok(true)
    }

    /// Puts the bitmaps that the store does not have. Returns the entries of all.
    fn put_deletes(
        &self,
        published: &Published,
        deletes: Vec<(TopicKey, SegmentMeta, Option<Vec<u8>>)>,
    ) -> Result<Vec<CatalogDeletes>> {
        let mut out = Vec::new();
        for (topic, meta, bytes) in deletes {
            let known = published.deletes.get(&(meta.file_no, meta.del_no));
            let entry = match (known, bytes) {
                (Some(known), _) => *known,
                (None, Some(bytes)) => {
                    self.check_usable()?;
                    let put = self.prefix.objects()?.put_deletes(topic, &meta, bytes.into());
                    put.map_err(remote_error)?
                }
                (None, None) => return Err(Error::Internal("a .del was not read".into())),
            };
            out.push(entry);
        }
        Ok(out)
    }

    /// Reads the newest snapshot and the bitmaps that it names; none: there is no snapshot.
    fn named_state(&self, published: &Published) -> Result<Option<NamedState>> {
        // A round removes the files that only earlier snapshots name.
        let _round = self.store.disk.round.lock();
        let Some((bytes, snapshot)) = self.store.disk.checkpoints.read_newest()? else {
            return Ok(None);
        };
        let packs = tier::named(&snapshot.body.sections)?;
        let archived: HashSet<u64> =
            packs.iter().flat_map(|p| &p.segments).map(|s| s.file_no).collect();
        let (paths, mut live, mut deletes) =
            (Paths::new(&self.store.base().dir), HashSet::new(), vec![]);
        let (is_base, mut unarchived) = (self.shipper.is_some(), vec![]);
        for i in 0..snapshot.topics.len() {
            let header = snapshot.topics.topic_header(i)?;
            let topic = TopicKey { topic_id: header.topic_id, epoch: header.epoch };
            for meta in &header.segments {
                if archived.contains(&meta.file_no) {
                    live.insert(meta.file_no);
                } else if is_base && meta.span() > 0 && meta.live_count > 0 {
                    unarchived.push(PendingSegment { topic, meta: *meta });
                } else {
                    continue;
                }
                let Some(name) = meta.del_name(topic.topic_id) else { continue };
                let is_known = published.deletes.contains_key(&(meta.file_no, meta.del_no));
                let mut bytes = None;
                if !is_known {
                    let path = paths.segment(&name, FileKind::Del);
                    bytes = read_file(&self.store.base().env, &path, u64::MAX)?;
                    let what = path.display().to_string();
                    bytes.as_ref().ok_or(StorageError::Missing { what })?;
                }
                deletes.push((topic, *meta, bytes));
            }
        }
        let (needed, unneeded): (Vec<_>, Vec<_>) =
            packs.into_iter().partition(|p| p.segments.iter().any(|s| live.contains(&s.file_no)));
        let unneeded = unneeded.iter().map(|p| p.number).collect();
        unarchived.sort_unstable_by_key(|p| (p.topic, p.meta.first_seq));
        let body = snapshot.body;
        Ok(Some(NamedState { snapshot: bytes, needed, unneeded, deletes, unarchived, body }))
    }
}
