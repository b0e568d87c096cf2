//! Which archived segments become cold.
//!
//! A segment becomes cold when the base in `HEAD` names its pack and the hot bound is exceeded. Its
//! `.data` stays until neither kept snapshot names it: the trim after the second checkpoint removes it.
//! Before the mark, and again before the removal if another process made the mark, the object is looked
//! at: the base says what was written, not what is there.

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;

use super::{Archiver, PassState};
use crate::catalog::unloaded::CatalogEntry;
use crate::tier::PackIdentities;
use crate::topic::state::State;
use crate::topic::{Life, Topic};
use crate::types::config::TopicType;
use crate::types::error::Result;

impl Archiver {
    /// Makes archived segments above the hot bound cold. Returns how many.
    pub(super) fn cool(&self, state: &PassState) -> Result<u64> {
        let Some(owner) = &state.owner else { return Ok(0) };
        let published = &owner.published.packs;
        let mut names = Vec::new();
        self.store.catalog().every(|entry| {
            let is_above = match entry {
                CatalogEntry::Loaded(topic) => {
                    let state = topic.state.read();
                    !self.above_bound(&state, published).is_empty()
                }
                CatalogEntry::Unloaded(unloaded) => {
                    let header = unloaded.topic_header()?;
                    let hot = header.segments.iter().filter(|m| m.sealed && !m.cold);
                    self.is_above(hot.map(|m| m.data_len))
                }
            };
            names.extend(is_above.then(|| entry.text().to_owned()));
            Ok(())
        })?;
        let mut cooled = 0;
        for name in names {
            self.check_usable()?;
            let topic = match self.store.catalog().live(&name) {
                Err(e) if !e.is_shortage() => {
                    log::warn!("segments of topic {name:?} do not become cold: {e}");
                    continue;
                }
                topic => topic?,
            };
            if let Some(topic) = topic {
                let file_nos = self.above_bound(&topic.state.read(), published);
                self.look_for(&file_nos)?;
                cooled += self.cool_topic(&topic, published);
            }
        }
        if cooled > 0 {
            self.store.replaced.store(true, Ordering::Relaxed);
        }
        Ok(cooled)
    }

    fn cool_topic(&self, topic: &Arc<Topic>, published: &PackIdentities) -> u64 {
        let is_usable = topic.life() == Life::Live && !topic.is_broken();
        if !is_usable || topic.files_unverified.load(Ordering::Acquire) {
            return 0;
        }
        self.store.base().change(topic, |state| {
            let mut file_nos = self.above_bound(state, published);
            file_nos.retain(|no| self.is_seen(*no));
            state.cool(&file_nos);
            file_nos.len() as u64
        })
    }

    /// Removes the `.data` of segments that were cold before this process opened the prefix.
    pub(super) fn drop_local(&self, state: &mut PassState) -> Result<()> {
        let Some(owner) = &mut state.owner else { return Ok(()) };
        let checkpoints = &self.store.disk.checkpoints;
        let local = checkpoints.local_cold(!owner.is_searched)?;
        owner.is_searched = true;
        if !local.is_empty() {
            self.look_for(&local)?;
            checkpoints.drop_local()?;
        }
        Ok(())
    }

    fn is_seen(&self, file_no: u64) -> bool {
        self.store.base().env.check("cold.seen", self.store.base().packs.is_segment_seen(file_no))
    }

    /// Looks at the packs of these segments, unless that was done.
    fn look_for(&self, file_nos: &[u64]) -> Result<()> {
        for no in file_nos {
            let Some((pack, _)) = self.store.base().packs.find(*no) else { continue };
            if self.store.base().packs.is_segment_seen(*no) {
                continue;
            }
            self.check_usable()?;
            self.prefix.look_at(&pack)?;
        }
        Ok(())
    }

    /// Whether segments of these lengths exceed the hot bound.
    fn is_above(&self, lens: impl Iterator<Item = u64>) -> bool {
        let (count, bytes) = lens.fold((0u64, 0u64), |(n, sum), len| (n + 1, sum + len));
        self.exceeds(count, bytes)
    }

    fn exceeds(&self, segments: u64, bytes: u64) -> bool {
        let limits = &self.remote.limits;
        segments > limits.hot_segments || (limits.hot_bytes > 0 && bytes > limits.hot_bytes)
    }

    /// The file numbers of the archived segments of a topic above the hot bound. The segments of a queue
    /// stay hot: a claim does not wait for the store.
    fn above_bound(&self, state: &State, published: &PackIdentities) -> Vec<u64> {
        if state.config.kind == TopicType::Queue {
            return Vec::new();
        }
        let (mut count, mut bytes, mut out) = (0, 0, Vec::new());
        for seg in state.index.segs.iter().rev().filter(|s| s.meta.sealed && !s.meta.cold) {
            (count, bytes) = (count + 1, bytes + seg.meta.data_len);
            let is_above = self.exceeds(count, bytes);
            let is_archived = || {
                let pack = self.store.base().packs.find(seg.meta.file_no);
                pack.is_some_and(|(pack, _)| {
                    let is_named = published.get(&pack.serial) == Some(&pack.hash);
                    self.store.base().env.check("cold.published", is_named)
                })
            };
            if is_above && seg.live_count > 0 && !seg.half_dead() && is_archived() {
                out.push(seg.meta.file_no);
            }
        }
        out
    }
}
