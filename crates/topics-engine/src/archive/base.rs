//! The base of the newest snapshot: what it names is put, then the base, then `HEAD`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use topics_env::sync::atomic::Ordering;
use topics_remote::format::base::{
    Base, BaseDeletes, BasePack, BaseRows, BaseSegment, BaseTail, DeadObjects, EarlierBase, Place,
    Span,
};
use topics_remote::format::head::Head;
use topics_remote::format::keys::Serial;
use topics_remote::format::sealed::{ObjectHeader, ObjectKind};
use topics_remote::read;
use topics_storage::segment::TopicKey;
use topics_storage::snapshot::SnapshotBody;

use super::plan::PendingSegment;
use super::tails::{OtherFiles, PutFiles};
use super::{Archived, Archiver, PassState};
use crate::checkpoint::round;
use crate::ship::Cover;
use crate::ship::owner::remote_error;
use crate::tier::{self, ArchivedPack, PackIdentities};
use crate::types::error::{Error, Result};

/// How often a base begins again with a newer snapshot, because a checkpoint replaced files of the one before.
const ATTEMPTS: usize = 4;

/// What the base in `HEAD` names.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// The packs of sealed segments.
    pub packs: PackIdentities,
    /// Every pack.
    pub named: BTreeSet<Serial>,
    /// The base; `None`: there is none yet.
    pub base: Option<EarlierBase>,
    pub kept: Vec<EarlierBase>,
    pub dead: Vec<DeadObjects>,
    /// [`Base::packs_settled`].
    pub packs_settled: u64,
}

impl Published {
    fn of(base: &Base, entry: EarlierBase) -> Self {
        let with_segments: BTreeSet<u32> = base.segments.iter().map(|s| s.pack).collect();
        let packs = with_segments.iter().filter_map(|i| base.pack(*i));
        Self {
            packs: packs.map(|p| (p.serial, p.hash)).collect(),
            named: base.packs.iter().map(|p| p.serial).collect(),
            base: Some(entry),
            kept: base.kept.clone(),
            dead: base.dead.clone(),
            packs_settled: base.packs_settled,
        }
    }
}

/// The files that a snapshot names.
pub(crate) struct NamedFiles {
    /// Packs with a sealed segment that the snapshot names.
    pub needed: Vec<ArchivedPack>,
    /// The file numbers of these segments.
    pub live: HashSet<u64>,
    pub others: OtherFiles,
}

/// A snapshot, as far as a base needs it.
struct NamedState {
    bytes: Vec<u8>,
    body: SnapshotBody,
    named: NamedFiles,
    /// Packs of the table without a segment that the snapshot names.
    unneeded: BTreeSet<Serial>,
}

impl Archiver {
    /// Reads the base that `head` names. What it knows of bitmaps holds for later bases.
    pub(super) fn read_published(&self, head: &Head, put: &mut PutFiles) -> Result<Published> {
        let Some(object) = &head.base else { return Ok(Published::default()) };
        let base = read::base(&*self.remote.store, &self.retry, object).map_err(remote_error)?;
        put.know_deletes(base.deletes_by_number());
        Ok(Published::of(&base, base.as_earlier(object)))
    }

    /// Puts what the newest snapshot names, and publishes its base.
    pub(super) fn publish(&self, state: &mut PassState, out: &mut Archived) -> Result<()> {
        for _ in 0..ATTEMPTS {
            // A snapshot that names every pack of the table.
            self.check_usable()?;
            round::checkpoint(&self.store)?;
            // The rounds of the base have what was logged before, the mark of the checkpoint too.
            let logged = self.store.ctx().wal.counters().bytes;
            self.pack_pending(state, 0, out)?;
            let Some(mut newest) = self.named_state()? else { return Ok(()) };
            let files = &mut newest.named.others;
            files.tails.retain(|p| !state.skipped.contains_key(&p.meta.file_no));
            if self.put_files(&mut state.put, files, out)? {
                self.publish_state(state, newest)?;
                state.based = Some((self.store.base().time.mono_ms(), logged));
                out.published = true;
                // A failure leaves the deletes to the next base.
                return state.owner.as_mut().map_or(Ok(()), |owner| self.collect(owner));
            }
        }
        let detail = "checkpoints replaced segments meanwhile: the next pass repeats the base";
        Err(Error::StorageUnavailable { reason: "remote", detail: detail.to_owned() })
    }

    fn publish_state(&self, state: &mut PassState, newest: NamedState) -> Result<()> {
        let Some(owner) = &mut state.owner else {
            return Err(Error::Internal("a base without an owner of the prefix".into()));
        };
        self.check_usable()?;
        let cover = self.shipper.cover(&newest.body)?;
        if let Some(last) = owner.published.base.as_mut().filter(|b| b.stored_ms == 0) {
            let key = last.object().key;
            let stored = self.prefix.with(|w| w.stored_ms(&key).map_err(remote_error))?;
            last.stored_ms = stored.unwrap_or(0);
        }
        self.look_for_lost(owner)?;
        let (header, last_pack) =
            self.prefix.with(|w| Ok((w.header(ObjectKind::Base), w.last_pack())))?;
        let mut base = assemble(header, &newest.named, &state.put, &cover)?;
        base.snapshot = newest.bytes;
        self.settle(owner, &mut base, &newest.unneeded, last_pack)?;
        let object = self.prefix.with(|w| w.publish(&base).map_err(remote_error))?;
        self.shipper.base_published(&cover);
        owner.published = Published::of(&base, base.as_earlier(&object));
        // The base lists it.
        owner.leftover = Some(Vec::new());
        self.gauges.last_base_ms.store(base.made_ms, Ordering::Relaxed);
        // A later snapshot needs none of these: an archived segment that is in no snapshot does not
        // come back. A pack that was added since the snapshot is not among them.
        self.store.base().packs.remove(&newest.unneeded);
        Ok(())
    }

    /// Reads the newest snapshot; `None`: there is none.
    fn named_state(&self) -> Result<Option<NamedState>> {
        // A round removes the files that only earlier snapshots name.
        let _round = self.store.disk.round.lock();
        let Some((bytes, snapshot)) = self.store.disk.checkpoints.read_newest()? else {
            return Ok(None);
        };
        let (mut live, mut others) = (HashSet::new(), OtherFiles::default());
        let packs = &self.store.base().packs;
        for i in 0..snapshot.topics.len() {
            let header = snapshot.topics.topic_header(i)?;
            let topic = TopicKey { topic_id: header.topic_id, epoch: header.epoch };
            for meta in &header.segments {
                if packs.has_segment(meta.file_no) {
                    live.insert(meta.file_no);
                } else if meta.span() > 0 && meta.live_count > 0 {
                    others.tails.push(PendingSegment { topic, meta: *meta });
                } else {
                    continue;
                }
                if meta.del_no != 0 {
                    others.deletes.push((topic, *meta));
                }
            }
        }
        others.tails.sort_unstable_by_key(|p| (p.topic, p.meta.first_seq));
        let is_live = |p: &ArchivedPack| p.segments.iter().any(|s| live.contains(&s.file_no));
        let needed = packs.all().into_iter().filter(|p| is_live(p)).collect();
        let in_snapshot = tier::named(&snapshot.body.sections)?;
        let unneeded = in_snapshot.into_iter().filter(|p| !is_live(p)).map(|p| p.serial).collect();
        let named = NamedFiles { needed, live, others };
        Ok(Some(NamedState { bytes, body: snapshot.body, named, unneeded }))
    }
}

/// The tables of a base, without those of earlier and dead objects and without its snapshot.
pub(crate) fn assemble(
    header: ObjectHeader,
    named: &NamedFiles,
    put: &PutFiles,
    cover: &Cover,
) -> Result<Base> {
    let deletes: BTreeMap<u64, Place> = named
        .others
        .deletes
        .iter()
        .filter_map(|(_, meta)| Some((meta.del_no, put.deletes(meta.del_no)?)))
        .collect();
    let mut tails: Vec<(u64, &[Place])> = Vec::new();
    tails.extend(named.others.tails.iter().map(|p| (p.meta.file_no, put.tail(&p.meta))));
    tails.sort_unstable_by_key(|(file_no, _)| *file_no);
    let mut packs: BTreeMap<Serial, BasePack> = BTreeMap::new();
    packs.extend(named.needed.iter().map(|p| (p.serial, p.for_base())));
    let places = tails.iter().flat_map(|(_, parts)| *parts).chain(deletes.values());
    packs.extend(places.chain(cover.rows.values()).map(|p| (p.pack.serial, p.pack)));
    let index: BTreeMap<Serial, u32> = (0..).zip(packs.keys()).map(|(i, s)| (*s, i)).collect();
    let span = |p: &Place| Span { pack: index[&p.pack.serial], offset: p.offset, len: p.len };
    let mut segments = Vec::new();
    for pack in &named.needed {
        for s in pack.segments.iter().filter(|s| named.live.contains(&s.file_no)) {
            let fits = |n: u64| {
                let too_long = || Error::Internal("a pack is longer than 4 GiB".to_owned());
                u32::try_from(n).map_err(|_| too_long())
            };
            let mut lens = [0; 4];
            for (len, of) in lens.iter_mut().zip(s.lens) {
                *len = fits(of)?;
            }
            let (file_no, offset) = (s.file_no, fits(s.offset)?);
            segments.push(BaseSegment { file_no, pack: index[&pack.serial], offset, lens });
        }
    }
    segments.sort_unstable_by_key(|s| s.file_no);
    let parts = |(file_no, parts): &(u64, &[Place])| {
        let (file_no, mut from) = (*file_no, 0);
        let part = |p: &Place| {
            let tail = BaseTail { file_no, from, at: span(p) };
            from += p.len;
            tail
        };
        parts.iter().map(part).collect::<Vec<_>>()
    };
    Ok(Base {
        header,
        made_ms: cover.made_ms,
        first_round: cover.first_round,
        packs_settled: 0,
        tails: tails.iter().flat_map(parts).collect(),
        deletes: deletes.iter().map(|(no, p)| BaseDeletes { del_no: *no, at: span(p) }).collect(),
        rows: cover.rows.iter().map(|(n, p)| BaseRows { name: n.clone(), at: span(p) }).collect(),
        packs: packs.into_values().collect(),
        segments,
        kept: Vec::new(),
        dead: Vec::new(),
        snapshot: Vec::new(),
    })
}
