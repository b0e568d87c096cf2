//! Packs and bases: objects that count when HEAD names a base that they belong to.

use std::sync::Arc;

use topics_env::objects::ObjectStore;

use crate::format::pack::{PackDirectory, PackWriter};
use crate::format::sealed::{FOOTER, Footer, ObjectRef, SealedObject};
use crate::resolve::{Created, ReadBack, create_resolved};
use crate::{RemoteError, Result, Retry, read};

/// Writes the packs of a prefix, beside its [`crate::writer::RemoteWriter`]: they need no check of HEAD, because
/// a base needs one.
#[derive(Clone, Debug)]
pub struct PackStore {
    store: Arc<dyn ObjectStore>,
    retry: Retry,
}

impl PackStore {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, retry: Retry) -> Self {
        Self { store, retry }
    }

    /// Creates a pack. After an error its number must not be used for other bytes.
    pub fn put(&self, object: &SealedObject) -> Result<()> {
        match create_sealed(&*self.store, &self.retry, object)? {
            Created::Written(_) => Ok(()),
            Created::Taken => {
                let detail = format!("object {} exists with other bytes", object.object.key);
                Err(RemoteError::Usage { detail })
            }
        }
    }

    /// Creates a pack, and reads all of it back.
    pub fn put_verified(&self, pack: PackWriter) -> Result<(ObjectRef, PackDirectory)> {
        let (object, directory) = pack.finish()?;
        self.put(&object)?;
        read::pack(&*self.store, &self.retry, &object.object)?;
        Ok((object.object, directory))
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
