//! Packs, bitmaps and staged rows: objects that count when a catalog or a round names them.

use std::sync::Arc;

use bytes::Bytes;
use topics_env::objects::ObjectStore;
use topics_storage::segment::{SegmentMeta, TopicKey};
use xxhash_rust::xxh3::xxh3_128;

use crate::format::catalog::CatalogDeletes;
use crate::format::keys;
use crate::format::sealed::{FOOTER, Footer, ObjectHeader, ObjectKind, SealedObject};
use crate::resolve::{Created, ReadBack, create_resolved};
use crate::{RemoteError, Result, Retry};

/// The outcome of [`ObjectWriter::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The object exists with these bytes.
    Written,
    /// The key belongs to another object: write it again under a new number.
    Taken,
}

/// Writes the objects of a prefix that are named by a catalog, beside its [`crate::writer::RemoteWriter`]: they need
/// no check of HEAD, because a catalog needs one.
#[derive(Clone, Debug)]
pub struct ObjectWriter {
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    store_id: [u8; 16],
    prefix_id: [u8; 16],
    epoch: u64,
}

impl ObjectWriter {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        retry: Retry,
        (store_id, prefix_id, epoch): ([u8; 16], [u8; 16], u64),
    ) -> Self {
        Self { store, retry, store_id, prefix_id, epoch }
    }

    /// The header of a pack with this file number.
    #[must_use]
    pub fn header(&self, file_no: u64) -> ObjectHeader {
        let (kind, number) = (ObjectKind::Pack, file_no);
        let Self { store_id, prefix_id, epoch, .. } = *self;
        ObjectHeader { kind, store_id, prefix_id, epoch, number }
    }

    /// Creates a pack. After an `Ambiguous` error its number must not be used for other bytes.
    pub fn put(&self, object: &SealedObject) -> Result<Put> {
        Ok(match create_sealed(&*self.store, &self.retry, object)? {
            Created::Written(_) => Put::Written,
            Created::Taken => Put::Taken,
        })
    }

    /// Creates the object of a segment's bitmap of deleted records: its `.del`, verbatim. Returns its
    /// entry in a catalog.
    pub fn put_deletes(
        &self,
        topic: TopicKey,
        meta: &SegmentMeta,
        del: Bytes,
    ) -> Result<CatalogDeletes> {
        let (first_seq, del_no, epoch) = (meta.first_seq, meta.del_no, self.epoch);
        let key = keys::deletes(topic, first_seq, del_no, epoch);
        let (store, retry) = (&*self.store, &self.retry);
        create_verbatim(store, retry, &key, &del)?;
        let (len, hash, file_no) = (del.len() as u64, xxh3_128(&del), meta.file_no);
        Ok(CatalogDeletes { topic, first_seq, file_no, del_no, epoch, len, hash })
    }

    /// Creates the object of a file of staged rows: its bytes, verbatim.
    pub fn put_stage(&self, name: &str, rows: &Bytes) -> Result<()> {
        create_verbatim(&*self.store, &self.retry, &keys::stage(name), rows)
    }
}

/// Creates an object that is a file, verbatim. It has no checksum that tells a damaged answer from
/// another object: nothing else has its key.
fn create_verbatim(store: &dyn ObjectStore, retry: &Retry, key: &str, bytes: &Bytes) -> Result<()> {
    match create_resolved(store, retry, key, bytes, ReadBack::Full, &|_| false)? {
        Created::Written(_) => Ok(()),
        Created::Taken => {
            let detail = format!("object {key} exists with other bytes");
            Err(RemoteError::Usage { detail })
        }
    }
}

pub(crate) fn create_sealed(
    store: &dyn ObjectStore,
    retry: &Retry,
    object: &SealedObject,
) -> Result<Created> {
    let read_back = ReadBack::Last(FOOTER as u64);
    let (key, bytes) = (&object.object.key, &object.bytes);
    Ok(create_resolved(store, retry, key, bytes, read_back, &Footer::is_valid)?)
}
