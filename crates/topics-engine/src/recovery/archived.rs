//! What a repair takes from the object store: which packs are gone, and lists of deleted records.

use std::collections::{BTreeMap, BTreeSet};

use topics_remote::claim::{DirectoryRecord, head_of};
use topics_remote::format::catalog::CatalogDeletes;
use topics_remote::{RemoteError, Retry, read};
use topics_storage::dir::Paths;
use topics_storage::segment::{SegmentMeta, TopicKey};
use topics_storage::{Result as StorageResult, StorageError};

use crate::tier::lost;
use crate::topic::events::Base;
use crate::types::error::Result;
use crate::types::options::RemoteOptions;

/// The prefix of a directory, which has been found to be its own: what another one lacks is not lost.
pub(super) struct Archived<'a> {
    base: &'a Base,
    remote: &'a RemoteOptions,
    retry: Retry,
    deletes: Vec<CatalogDeletes>,
    /// By the number of a pack that was looked at: why its records are lost.
    packs: BTreeMap<u64, Option<String>>,
}

impl<'a> Archived<'a> {
    /// Reads the catalog. The error says why the prefix cannot be looked at.
    pub fn open(base: &'a Base) -> std::result::Result<Self, String> {
        let Some(remote) = &base.options.remote else {
            return Err("no remote_url is set".to_owned());
        };
        let mut retry = Retry::new(base.env.clone(), std::thread::sleep);
        retry.deadline = remote.limits.cold_timeout;
        let deletes = Self::read(base, remote, &retry).map_err(|e| e.to_string())?;
        Ok(Self { base, remote, retry, deletes, packs: BTreeMap::new() })
    }

    fn read(
        base: &Base,
        remote: &RemoteOptions,
        retry: &Retry,
    ) -> std::result::Result<Vec<CatalogDeletes>, RemoteError> {
        let record = DirectoryRecord { env: base.env.clone(), paths: Paths::new(&base.dir) };
        let store = &*remote.store;
        let head = head_of(store, retry, &record)?;
        let Some(object) = &head.catalog else { return Ok(Vec::new()) };
        Ok(read::catalog(store, retry, object)?.deletes)
    }

    /// Why the records of a cold segment are lost; `None`: its pack is there.
    pub fn lost(&mut self, meta: &SegmentMeta) -> Result<Option<StorageError>> {
        let Some((pack, _)) = self.base.packs.find(meta.file_no) else {
            let what = format!("the pack of the segment with file number {}", meta.file_no);
            return Ok(Some(StorageError::Missing { what }));
        };
        let why = match self.packs.get(&pack.number) {
            Some(why) => why.clone(),
            None => {
                let why = lost(&*self.remote.store, &self.retry, &pack)?;
                self.packs.insert(pack.number, why.clone());
                why
            }
        };
        Ok(why.map(|detail| StorageError::corrupt(pack.object().key, 0, detail)))
    }

    /// Fetches the list of deleted records of a segment, if it is damaged and the store has it. Returns what is
    /// wrong with it.
    pub fn mend_deletes(
        &self,
        topic: TopicKey,
        meta: &SegmentMeta,
    ) -> Result<Option<StorageError>> {
        let segments = &self.base.segments;
        let deleted: StorageResult<_> = segments.segment(topic, *meta).deleted();
        let why = match deleted {
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => e,
            _ => return Ok(None),
        };
        let wanted = (topic, meta.first_seq, meta.del_no);
        let named = self.deletes.iter().find(|d| (d.topic, d.first_seq, d.del_no) == wanted);
        let Some(named) = named else { return Ok(None) };
        let bytes = match read::deletes(&*self.remote.store, &self.retry, Some(named)) {
            Ok(bytes) => bytes,
            Err(e) => {
                log::warn!("the deleted records of {}: {e}", named.object().key);
                return Ok(None);
            }
        };
        segments.put_deletes(topic, meta, &bytes)?;
        Ok(Some(why))
    }

    /// The packs that are gone.
    pub fn gone(&self) -> BTreeSet<u64> {
        self.packs.iter().filter(|(_, why)| why.is_some()).map(|(number, _)| *number).collect()
    }
}
