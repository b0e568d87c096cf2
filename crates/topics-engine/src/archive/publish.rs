//! The catalog of the newest snapshot, and the packs that nothing needs any more.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use topics_env::objects::ObjectStore;
use topics_remote::format::catalog::{Catalog, CatalogDeletes, ChainEnd};
use topics_remote::format::head::{Head, PriorEpoch};
use topics_remote::format::sealed::ObjectKind;
use topics_remote::{Retry, read};
use topics_storage::StorageError;
use topics_storage::dir::{Paths, read_file};
use topics_storage::segment::{FileKind, SegmentMeta, TopicKey};

use super::{Archiver, PassState, remote_error};
use crate::tier::{self, ArchivedPack};
use crate::types::error::{Error, Result};

/// What the catalog in `HEAD` names.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Numbers of packs.
    pub packs: BTreeSet<u64>,
    /// By file number of the segment and number of the `.del`.
    deletes: BTreeMap<(u64, u64), CatalogDeletes>,
}

impl Published {
    /// Reads the catalog that `head` names.
    pub(super) fn read(store: &dyn ObjectStore, retry: &Retry, head: &Head) -> Result<Self> {
        let Some(object) = &head.catalog else { return Ok(Self::default()) };
        let catalog = read::catalog(store, retry, object).map_err(remote_error)?;
        Ok(Self::of(&catalog))
    }

    fn of(catalog: &Catalog) -> Self {
        let deletes = catalog.deletes.iter().map(|d| ((d.file_no, d.del_no), *d));
        Self {
            packs: catalog.packs.iter().map(|p| p.file_no).collect(),
            deletes: deletes.collect(),
        }
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
}

impl Archiver {
    /// Publishes the catalog if `HEAD` names another set of packs than the table. Returns whether it
    /// did.
    pub(super) fn publish(&self, state: &mut PassState) -> Result<bool> {
        if !self.is_unpublished(state) {
            return Ok(false);
        }
        self.name_packs()?;
        let Some(owner) = &mut state.owner else {
            return Err(Error::Internal("a catalog without an owner of the prefix".into()));
        };
        let Some(named) = self.named_state(&owner.published)? else { return Ok(false) };
        let mut deletes = Vec::new();
        for (topic, meta, bytes) in named.deletes {
            let known = owner.published.deletes.get(&(meta.file_no, meta.del_no));
            let entry = match (known, bytes) {
                (Some(known), _) => *known,
                (None, Some(bytes)) => {
                    self.check_usable()?;
                    let put = owner.writer.put_deletes(topic, &meta, bytes.into());
                    put.map_err(remote_error)?
                }
                (None, None) => return Err(Error::Internal("a .del was not read".into())),
            };
            deletes.push(entry);
        }
        self.check_usable()?;
        let writer = &mut owner.writer;
        let end = |p: &PriorEpoch| ChainEnd { epoch: p.epoch, last_round: p.last_round };
        let catalog = Catalog {
            header: writer.header(ObjectKind::Catalog, 0),
            made_ms: self.core.time.steady(),
            first_round: writer.shipped() + 1,
            chain_ends: writer.head().priors.iter().map(end).collect(),
            packs: named.needed.iter().map(ArchivedPack::for_catalog).collect(),
            deletes,
            condemned: Vec::new(),
            snapshot: named.snapshot,
        };
        writer.publish(&catalog).map_err(remote_error)?;
        owner.published = Published::of(&catalog);
        // A later snapshot needs none of these: an archived segment that is in no snapshot does not
        // come back. A pack that was added since the snapshot is not among them.
        self.core.packs.remove(&named.unneeded);
        Ok(true)
    }

    /// Reads the newest snapshot and the bitmaps that it names; none: there is no snapshot.
    fn named_state(&self, published: &Published) -> Result<Option<NamedState>> {
        // A round removes the files that only earlier snapshots name.
        let _round = self.core.disk.round.lock();
        let Some((bytes, snapshot)) = self.core.disk.checkpoints.read_newest()? else {
            return Ok(None);
        };
        let packs = tier::named(&snapshot.body.sections)?;
        let archived: HashSet<u64> =
            packs.iter().flat_map(|p| &p.segments).map(|s| s.file_no).collect();
        let (paths, mut live, mut deletes) = (Paths::new(&self.core.dir), HashSet::new(), vec![]);
        for i in 0..snapshot.topics.len() {
            let header = snapshot.topics.topic_header(i)?;
            let topic = TopicKey { topic_id: header.topic_id, epoch: header.epoch };
            for meta in header.segments.iter().filter(|m| archived.contains(&m.file_no)) {
                live.insert(meta.file_no);
                let Some(name) = meta.del_name(topic.topic_id) else { continue };
                let is_known = published.deletes.contains_key(&(meta.file_no, meta.del_no));
                let mut bytes = None;
                if !is_known {
                    let path = paths.segment(&name, FileKind::Del);
                    bytes = read_file(&self.core.env, &path, u64::MAX)?;
                    let what = path.display().to_string();
                    bytes.as_ref().ok_or(StorageError::Missing { what })?;
                }
                deletes.push((topic, *meta, bytes));
            }
        }
        let (needed, unneeded): (Vec<_>, Vec<_>) =
            packs.into_iter().partition(|p| p.segments.iter().any(|s| live.contains(&s.file_no)));
        let unneeded = unneeded.iter().map(|p| p.number).collect();
        Ok(Some(NamedState { snapshot: bytes, needed, unneeded, deletes }))
    }
}
