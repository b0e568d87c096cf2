//! What all segments of an engine share.

use std::sync::Arc;

use topics_env::Env;

use super::{Part, Segment, SegmentMeta, SegmentName, TopicKey};
use crate::Result;
use crate::dir::Paths;
use crate::tier::SegmentStore;

/// Settings of segments. They decide about future seals only: boundaries are read from files.
#[derive(Clone, Copy, Debug)]
pub struct SegmentOptions {
    /// Records (holes included) after which a segment is sealed.
    pub max_events: u64,
    /// Bytes of `.data` after which a segment is sealed, at most 1 GiB.
    pub max_bytes: u64,
    /// Segments whose descriptors are kept open for reading (two each).
    pub max_open: usize,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self { max_events: 10_000, max_bytes: 64 << 20, max_open: 1024 }
    }
}

/// What all segments of an engine share: env, paths, identity, file numbers, open files.
#[derive(Debug)]
pub struct Segments {
    env: Env,
}

impl Segments {
    /// `generation` must be above every generation that gave file numbers in this directory.
    pub fn new(
        env: Env,
        paths: Paths,
        store_id: [u8; 16],
        generation: u64,
        options: SegmentOptions,
        cold: Option<Arc<dyn SegmentStore>>,
    ) -> Arc<Self> {
        let _ = (paths, store_id, generation, options, cold);
        Arc::new(Self { env })
    }

    /// A file number, never given before.
    pub fn next_file_no(&self) -> u64 {
        todo!()
    }

    /// A reader of a segment. Costs nothing until it is used.
    pub fn segment(self: &Arc<Self>, topic: TopicKey, meta: SegmentMeta) -> Segment {
        let _ = (topic, meta);
        todo!()
    }

    /// Checks that the files that `meta` names are there and not shorter than named
    /// (`lengths`: by opening each, with the footer of a sealed `.idx`; otherwise by the folder's
    /// listing only). Damage to `.data` and `.del` is an error; `.idx`, `.tags` and `.attrs` are
    /// made again when they are first needed.
    pub fn check_named(&self, topic: TopicKey, metas: &[SegmentMeta], lengths: bool) -> Result<()> {
        let _ = (topic, metas, lengths);
        todo!()
    }

    /// The ids of the topics that have a folder.
    pub fn list_topics(&self) -> Result<Vec<u64>> {
        todo!()
    }

    /// The segment files in a topic's folder.
    pub fn list_files(&self, topic_id: u64) -> Result<Vec<(SegmentName, Part)>> {
        todo!()
    }

    /// Unlinks hot files (those that are not there are no error). Readers keep what they opened.
    pub fn remove_files(&self, files: &[(SegmentName, Part)]) -> Result<()> {
        let _ = files;
        todo!()
    }

    /// Removes a topic's folder and everything in it.
    pub fn remove_topic(&self, topic_id: u64) -> Result<()> {
        let _ = topic_id;
        todo!()
    }

    /// Records that failed their checksum, and indexes made again, since the start.
    pub fn damage_counts(&self) -> (u64, u64) {
        let _ = &self.env;
        todo!()
    }
}
