//! S3, and servers that speak its protocol.
//!
//! All requests run on one thread with a current-thread runtime; callers block. Nothing is repeated
//! here: the retries of `object_store` are off.

mod connector;

use std::fmt::{self, Debug};
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions,
    PutPayload, RetryConfig, UpdateVersion,
};
use topics_env::objects::{
    ByteRange, ETag, ObjectBytes, ObjectError, ObjectInfo, ObjectResult, ObjectStore, is_valid_key,
};

use self::connector::{Connector, ServerStatus};
use super::url::Bucket;

/// The parts in which a body is handed to the connection; each is progress.
const CHUNK: usize = 256 * 1024;

/// The time after which a request without progress ends. There is no limit of a whole request: a pack
/// over a slow connection takes minutes.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The address that `object_store` asks for the credentials of an instance, after all else.
const METADATA: &str = "169.254.169.254";
const NO_CREDENTIALS: &str = "No credentials were found: set AWS_ACCESS_KEY_ID and \
    AWS_SECRET_ACCESS_KEY, or run where a web identity, a container or an instance has a role";

/// Where a bucket is, and how long requests may take.
#[derive(Clone)]
pub struct S3Options {
    pub bucket: String,
    /// What precedes every key, without slashes at its ends; empty: nothing.
    pub prefix: String,
    /// The region; `None`: from the environment, else `us-east-1`.
    pub region: Option<String>,
    /// The URL of the server; `None`: from the environment, else Amazon's of the region.
    pub endpoint: Option<String>,
    /// Access key id and secret; `None`: from the environment, the web identity, the container or the
    /// instance.
    pub credentials: Option<(String, String)>,
    /// The time after which a request without progress ends.
    pub stall_timeout: Duration,
}

impl S3Options {
    /// The bucket of a URL, with the credentials of the environment.
    #[must_use]
    pub fn of(bucket: &Bucket) -> Self {
        let Bucket { name, prefix, endpoint, region } = bucket.clone();
        Self {
            bucket: name,
            prefix,
            region,
            endpoint,
            credentials: None,
            stall_timeout: STALL_TIMEOUT,
        }
    }
}

impl Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{} at {:?}", self.bucket, self.prefix, self.endpoint)
    }
}

/// The thread of the requests. It ends when this is dropped.
#[derive(Debug)]
struct Runtime {
    handle: tokio::runtime::Handle,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    fn start() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let run = move || _ = runtime.block_on(stopped);
        let thread = std::thread::Builder::new().name("topics-remote".to_owned()).spawn(run)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
pub struct S3Store {
    runtime: Runtime,
    store: Arc<AmazonS3>,
    prefix: String,
    /// Whether the credentials are in the environment.
    has_key: bool,
}

/// Whether a request changes objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    None,
    Write,
}

impl S3Store {
    /// Starts the thread. No request is made.
    pub fn open(options: &S3Options) -> ObjectResult<Self> {
        let refused = |e: String| ObjectError::Refused { detail: e };
        let mut builder = match &options.credentials {
            None => AmazonS3Builder::from_env(),
            Some((id, secret)) => {
                AmazonS3Builder::new().with_access_key_id(id).with_secret_access_key(secret)
            }
        };
        if let Some(endpoint) = &options.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let is_plain = endpoint.is_some_and(|url| url.starts_with("http://"));
        let has_key = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
        builder = builder.with_allow_http(is_plain);
        // Where the credentials come from a server with TLS.
        use AmazonS3ConfigKey::{ContainerCredentialsFullUri, WebIdentityTokenFile};
        let has = |key| builder.get_config_value(&key).is_some();
        let needs_tls = !has_key && (has(WebIdentityTokenFile) || has(ContainerCredentialsFullUri));
        let runtime = Runtime::start().map_err(|e| refused(e.to_string()))?;
        let connector = {
            let _entered = runtime.handle.enter();
            Connector::new(options.stall_timeout, is_plain && !needs_tls)
        };
        if let Some(region) = &options.region {
            builder = builder.with_region(region);
        }
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let store = builder
            .with_bucket_name(&options.bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retry)
            .with_http_connector(connector)
            .build()
            .map_err(|e| refused(e.to_string()))?;
        let (store, prefix) = (Arc::new(store), options.prefix.clone());
        Ok(Self { runtime, store, prefix, has_key })
    }

    fn path(&self, key: &str) -> ObjectResult<Path> {
        let full = match self.prefix.is_empty() {
            true => key.to_owned(),
            false => format!("{}/{key}", self.prefix),
        };
        let invalid = || ObjectError::Refused { detail: format!("invalid key {key:?}") };
        if !is_valid_key(key) {
            return Err(invalid());
        }
        Path::parse(full).map_err(|_| invalid())
    }

    /// Runs a request on the runtime's thread and waits for it.
    fn run<T: Send + 'static>(
        &self,
        key: &str,
        effect: Effect,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> ObjectResult<T> {
        let (done, answer) = mpsc::sync_channel(1);
        self.runtime.handle.spawn(async move {
            let _ = done.send(request.await);
        });
        let unknown = |detail: String| match effect {
            Effect::Write => ObjectError::Ambiguous { detail },
            Effect::None => ObjectError::Unavailable { detail },
        };
        match answer.recv() {
            Ok(result) => result.map_err(|e| self.explained(classify(key, effect, &e))),
            Err(_) => Err(unknown("the thread of the requests ended".to_owned())),
        }
    }

    /// The error, with what to do if the credentials cannot be had.
    fn explained(&self, e: ObjectError) -> ObjectError {
        let explain = |detail: String| match self.has_key || !detail.contains(METADATA) {
            true => detail,
            false => format!("{detail}. {NO_CREDENTIALS}"),
        };
        match e {
            ObjectError::Unavailable { detail } => {
                ObjectError::Unavailable { detail: explain(detail) }
            }
            // The request was never sent.
            ObjectError::Ambiguous { detail } if explain(detail.clone()) != detail => {
                ObjectError::Unavailable { detail: explain(detail) }
            }
            e => e,
        }
    }

    fn put(&self, key: &str, body: &Bytes, mode: PutMode) -> ObjectResult<ETag> {
        let (path, store) = (self.path(key)?, self.store.clone());
        let chunks = (0..body.len()).step_by(CHUNK);
        let chunk = |at: usize| body.slice(at..body.len().min(at + CHUNK));
        let payload: PutPayload = chunks.map(chunk).collect();
        let put = async move { store.put_opts(&path, payload, PutOptions::from(mode)).await };
        let etag = self.run(key, Effect::Write, put)?.e_tag;
        // Without an ETag nothing can be replaced; what was written is there.
        let none = || ObjectError::Ambiguous { detail: format!("no ETag for object {key}") };
        etag.map(ETag).ok_or_else(none)
    }

    fn get_with(&self, key: &str, options: GetOptions) -> ObjectResult<ObjectBytes> {
        let (path, store) = (self.path(key)?, self.store.clone());
        let get = async move {
            let found = store.get_opts(&path, options).await?;
            let meta = found.meta.clone();
            Ok((meta, found.bytes().await?))
        };
        let (meta, bytes) = self.run(key, Effect::None, get)?;
        let info = info(key.to_owned(), meta)?;
        Ok(ObjectBytes { bytes, etag: info.etag, len: info.len })
    }
}

fn info(key: String, meta: ObjectMeta) -> ObjectResult<ObjectInfo> {
    let none = || ObjectError::Refused { detail: format!("no ETag for object {key}") };
    let etag = ETag(meta.e_tag.ok_or_else(none)?);
    let modified_ms = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
    Ok(ObjectInfo { key, len: meta.size, etag, modified_ms })
}

/// The kind of an error: whether the request may have had an effect, and whether to repeat it.
fn classify(key: &str, effect: Effect, e: &object_store::Error) -> ObjectError {
    use object_store::Error;
    let key = key.to_owned();
    match e {
        Error::NotFound { .. } => return ObjectError::NotFound { key },
        Error::Precondition { .. } | Error::AlreadyExists { .. } => {
            return ObjectError::Precondition { key };
        }
        _ => {}
    }
    let detail = with_cause(e);
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(cause) = source {
        if let Some(http) = cause.downcast_ref::<HttpError>() {
            let status = std::error::Error::source(http).and_then(|s| s.downcast_ref());
            let had_no_effect =
                http.kind() == HttpErrorKind::Connect || matches!(status, Some(ServerStatus(429)));
            return match effect == Effect::None || had_no_effect {
                true => ObjectError::Unavailable { detail },
                false => ObjectError::Ambiguous { detail },
            };
        }
        source = cause.source();
    }
    ObjectError::Refused { detail }
}

/// The text of an error and of its first cause, which a failed connection does not name itself.
fn with_cause(e: &dyn std::error::Error) -> String {
    let text = e.to_string();
    let mut cause = e.source();
    while let Some(next) = cause.and_then(std::error::Error::source) {
        cause = Some(next);
    }
    match cause.map(ToString::to_string) {
        Some(cause) if !text.contains(&cause) => format!("{text}: {cause}"),
        _ => text,
    }
}

impl ObjectStore for S3Store {
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag> {
        self.put(key, body, PutMode::Create)
    }

    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag> {
        let version = UpdateVersion { e_tag: Some(etag.0.clone()), version: None };
        self.put(key, body, PutMode::Update(version))
    }

    fn get(
        &self,
        key: &str,
        range: ByteRange,
        if_match: Option<&ETag>,
    ) -> ObjectResult<ObjectBytes> {
        let range = match range {
            ByteRange::Full => None,
            ByteRange::Span(span) => Some(GetRange::Bounded(span)),
            ByteRange::Last(n) => Some(GetRange::Suffix(n)),
        };
        let if_match = if_match.map(|e| e.0.clone());
        self.get_with(key, GetOptions { range, if_match, ..GetOptions::default() })
    }

    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>> {
        let (path, store) = (self.path(key)?, self.store.clone());
        let if_none_match = Some(etag.0.clone());
        let options = GetOptions { if_none_match, ..GetOptions::default() };
        let get = async move {
            match store.get_opts(&path, options).await {
                Ok(found) => {
                    let meta = found.meta.clone();
                    Ok(Some((meta, found.bytes().await?)))
                }
                Err(object_store::Error::NotModified { .. }) => Ok(None),
                Err(e) => Err(e),
            }
        };
        let Some((meta, bytes)) = self.run(key, Effect::None, get)? else { return Ok(None) };
        let info = info(key.to_owned(), meta)?;
        Ok(Some(ObjectBytes { bytes, etag: info.etag, len: info.len }))
    }

    fn head(&self, key: &str) -> ObjectResult<ObjectInfo> {
        let (path, store) = (self.path(key)?, self.store.clone());
        let meta = self.run(key, Effect::None, async move { store.head(&path).await })?;
        info(key.to_owned(), meta)
    }

    fn delete(&self, key: &str) -> ObjectResult<()> {
        let (path, store) = (self.path(key)?, self.store.clone());
        match self.run(key, Effect::Write, async move { store.delete(&path).await }) {
            Err(ObjectError::NotFound { .. }) => Ok(()),
            done => done,
        }
    }
}
