//! The stores, besides the simulated one of `topics-sim`.
//!
//! * [`url`]: where a store is.
//! * [`detached`]: one whose requests end for their callers, whatever happens to them.
//! * [`folder`]: a folder of a file system, for `file:///…`.
//! * `s3` (feature `s3`): a bucket.

mod buffer;
pub mod detached;
pub mod folder;
#[cfg(feature = "s3")]
pub mod s3;
pub mod url;

use std::sync::Arc;
use std::time::Duration;

use topics_env::Env;
use topics_env::objects::{ObjectResult, ObjectStore};

use self::detached::{DetachedStore, run_within};
use self::folder::FolderStore;
use self::url::RemoteUrl;

/// How long an open waits for a folder to be there.
const FOLDER: Duration = Duration::from_secs(2);

/// Opens the store that a URL names, and creates a folder that is missing. Makes no request to a bucket. No call
/// of it hangs, nor does this one.
pub fn open(env: &Env, url: &RemoteUrl) -> ObjectResult<Arc<dyn ObjectStore>> {
    let RemoteUrl::Folder(path) = url else { return open_to_read(env, url) };
    let folder = Arc::new(FolderStore::new(env.clone(), path));
    let ours = folder.clone();
    // One that does not answer is created by the first write.
    if let Some(prepared) = run_within(FOLDER, move || ours.prepare()) {
        prepared?;
    }
    Ok(Arc::new(DetachedStore::new(folder)))
}

/// The same for a store that is only read: nothing is created.
pub fn open_to_read(env: &Env, url: &RemoteUrl) -> ObjectResult<Arc<dyn ObjectStore>> {
    let store: Arc<dyn ObjectStore> = match url {
        RemoteUrl::Folder(path) => Arc::new(FolderStore::new(env.clone(), path)),
        #[cfg(feature = "s3")]
        RemoteUrl::S3(bucket) => return open_bucket(&s3::S3Options::of(bucket)),
        #[cfg(not(feature = "s3"))]
        RemoteUrl::S3(_) => {
            let detail = "this build has no support for S3: build it with the feature `s3`";
            return Err(topics_env::objects::ObjectError::Refused { detail: detail.to_owned() });
        }
    };
    Ok(Arc::new(DetachedStore::new(store)))
}

/// Opens a bucket. Makes no request.
#[cfg(feature = "s3")]
pub fn open_bucket(options: &s3::S3Options) -> ObjectResult<Arc<dyn ObjectStore>> {
    Ok(Arc::new(DetachedStore::new(Arc::new(s3::S3Store::open(options)?))))
}
