//! Segments: the records of one topic in files that each cover a contiguous range of seqs.
//!
//! * [`SegmentMeta`]: the entry of a segment in the snapshot; an unopened segment costs only this.
//! * [`Segments`]: the state that all segments of an engine share; creates readers.
//! * [`Segment`]: reads one segment, active or sealed.
//! * [`SegmentWriter`] and [`Round`]: write the files of a checkpoint and make them durable.
//! * [`DataFrames`]: the frames of a `.data` in memory, before it is uploaded.
//! * [`Round::rewrite`], [`Round::merge`]: copies of old records into new files.
//!
//! * [`ColdFiles`]: the records of segments whose `.data` is in an object store.
//!
//! The layouts are in `layout`, `index`, `tags`, `attrs` and `deleted`; `FORMAT.md`
//! describes them byte by byte.

mod attrs;
mod block;
mod cold;
mod copy;
mod deleted;
mod files;
mod frames;
mod index;
mod layout;
mod lookup;
mod lru;
mod meta;
mod open;
mod reader;
mod round;
mod salvage;
mod scan;
mod shared;
mod side;
mod tags;
#[cfg(test)]
mod tests;
mod writer;

pub use attrs::{AttrOrder, AttrRow, AttrsTable};
pub use block::{Block, Frozen, Item};
pub use cold::{ColdFiles, Fetch, OnFetched};
pub use deleted::check_deletes;
pub use frames::{DataFrame, DataFrames};
pub(crate) use index::entry_at as idx_len;
pub use lookup::TagMatch;
pub use meta::{FileKind, IdxEntry, SegmentMeta, SegmentName, TopicKey, parse_file_name};
pub use reader::Segment;
pub use round::Round;
pub use salvage::DamagedSegment;
pub use shared::{SegmentOptions, Segments};
pub use tags::TagMap;
pub use writer::SegmentWriter;
