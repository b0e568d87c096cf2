//! Packs and bases: objects that count when HEAD names a base that they belong to.

use std::sync::Arc;

use topics_env::objects::ObjectStore;

use crate::format::sealed::{FOOTER, Footer, SealedObject};
use crate::resolve::{Created, ReadBack, create_resolved};
use crate::{RemoteError, Result, Retry};

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
