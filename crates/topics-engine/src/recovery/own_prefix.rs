//! What a repair takes from the object store: which packs are gone, and lists of deleted records.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use topics_remote::claim::{DirectoryRecord, head_of};
use topics_remote::format::base::Place;
use topics_remote::format::head::Head;
use topics_remote::format::keys::Serial;
use topics_remote::{Retry, read};
use topics_storage::StorageError;
use topics_storage::dir::Paths;
use topics_storage::segment::{DamagedSegment, SegmentMeta, TopicKey};

use crate::tier::{is_loss, lost};
use crate::topic::events::Base;
use crate::types::error::Result;
use crate::types::options::RemoteOptions;

/// The prefix of a directory, which has been found to be its own: what another one lacks is not lost.
pub(super) struct OwnPrefix<'a> {
    base: &'a Base,
    remote: &'a RemoteOptions,
    retry: Retry,
    /// Where the `.del` files are, by their file numbers.
    deletes: HashMap<u64, Place>,
    /// By a pack that was looked at: why its records are lost.
    packs: BTreeMap<Serial, Option<String>>,
    /// Whether a list of deleted records is gone.
    is_gone: bool,
}

/// What is wrong with a segment that the prefix knows of.
#[derive(Default)]
pub(super) struct Findings {
    /// Damage that was mended without a loss.
    pub mended: Vec<StorageError>,
    /// The segment, if nothing has its records any more.
    pub lost: Option<DamagedSegment>,
}

impl<'a> OwnPrefix<'a> {
    /// Reads the base. The error says why the prefix cannot be looked at.
    pub fn open(base: &'a Base) -> std::result::Result<Self, String> {
        let Some(remote) = &base.options.remote else {
            return Err("no remote_url is set".to_owned());
        };
        let mut retry = Retry::new(base.env.clone(), std::thread::sleep);
        retry.deadline = remote.limits.cold_timeout;
        let (deletes, packs) = (HashMap::new(), BTreeMap::new());
        let mut out = Self { base, remote, retry, deletes, packs, is_gone: false };
        out.deletes = out.read_deletes().map_err(|e| e.to_string())?;
        Ok(out)
    }

    fn head(&self) -> topics_remote::Result<Head> {
        let (env, paths) = (self.base.env.clone(), Paths::new(&self.base.dir));
        head_of(&*self.remote.store, &self.retry, &DirectoryRecord { env, paths })
    }

    fn read_deletes(&self) -> topics_remote::Result<HashMap<u64, Place>> {
        let Some(object) = self.head()?.base else { return Ok(HashMap::new()) };
        Ok(read::base(&*self.remote.store, &self.retry, &object)?.deletes_by_number())
    }

    /// Looks for what the directory lacks of a segment: its list of deleted records, its records. A cold
    /// segment whose object is gone and whose records are here becomes hot.
    pub fn examine(&mut self, topic: TopicKey, meta: &mut SegmentMeta) -> Result<Findings> {
        let mut found = Findings::default();
        found.mended.extend(self.mend_deletes(topic, meta)?);
        let why = if meta.cold { self.lost(meta)? } else { None };
        if let Some(why) = why {
            match self.base.segments.has_data(topic, meta)? {
                true => {
                    meta.cold = false;
                    found.mended.push(why);
                }
                false => found.lost = Some(self.base.segments.declare_lost(topic, meta, why)),
            }
        }
        Ok(found)
    }

    /// Why the records of a cold segment are lost; `None`: its pack is there.
    fn lost(&mut self, meta: &SegmentMeta) -> Result<Option<StorageError>> {
        let Some((pack, _)) = self.base.packs.find(meta.file_no) else {
            let what = format!("the pack of the segment with file number {}", meta.file_no);
            return Ok(Some(StorageError::Missing { what }));
        };
        let why = match self.packs.get(&pack.serial) {
            Some(why) => why.clone(),
            None => {
                let why = lost(&*self.remote.store, &self.retry, &pack)?;
                self.packs.insert(pack.serial, why.clone());
                why
            }
        };
        Ok(why.map(|detail| StorageError::corrupt(pack.object().key, 0, detail)))
    }

    /// Fetches the list of deleted records of a segment, if it is damaged and the store has it. Returns what is
    /// wrong with it.
    fn mend_deletes(
        &mut self,
        topic: TopicKey,
        meta: &mut SegmentMeta,
    ) -> Result<Option<StorageError>> {
        let segments = &self.base.segments;
        let why = match segments.segment(topic, *meta).deleted() {
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => e,
            _ => return Ok(None),
        };
        let Some(place) = self.deletes.get(&meta.del_no) else { return Ok(None) };
        let bytes = match read::place(&*self.remote.store, &self.retry, place) {
            Ok(bytes) => bytes,
            Err(e) if is_loss(&e) => {
                log::warn!("{why}; the object store does not have it: {e}");
                self.is_gone = true;
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        };
        Ok(match segments.restore_deletes(topic, meta, &bytes)? {
            None => Some(why),
            Some(e) => {
                log::warn!("{why}; that of the object store is of another segment: {e}");
                None
            }
        })
    }

    /// The packs that are gone. Fails if something is, and the prefix is not the directory's own any more, as
    /// when it was unmounted meanwhile: then nothing may be gone.
    pub fn gone(&self) -> Result<BTreeSet<Serial>> {
        let gone = self.packs.iter().filter(|(_, why)| why.is_some());
        let gone: BTreeSet<Serial> = gone.map(|(serial, _)| *serial).collect();
        if self.is_gone || !gone.is_empty() {
            self.head()?;
        }
        Ok(gone)
    }
}
