//! S3, and servers that speak its protocol.
//!
//! All requests run on one thread with a current-thread runtime; callers block. Nothing is repeated
//! here: the retries of `object_store` are off.

mod connector;
mod credentials;

use std::fmt::{self, Debug};
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey as Key, S3ConditionalPut};
use object_store::client::{HttpError, HttpErrorKind};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions,
    PutPayload, RetryConfig, StaticCredentialProvider, UpdateVersion,
};
use topics_env::objects::{
    ByteRange, ETag, ObjectBytes, ObjectError, ObjectInfo, ObjectResult, ObjectStore, is_valid_key,
};

use self::connector::{Connector, ServerStatus};
pub use self::credentials::{CredentialAnswers, Credentials, Keys, RenewedCredentials};
use self::credentials::{CredentialsError, Explained, NoCredentials};
use super::url::Bucket;

/// The parts in which a body is handed to the connection; each is progress.
const CHUNK: usize = 256 * 1024;

/// The time after which a request without progress ends. There is no limit of a whole request: a pack
/// over a slow connection takes minutes.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

const NO_CREDENTIALS: &str = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE to a \
    profile of ~/.aws, or run where a web identity, a container or an instance has a role";

/// Where a bucket is, and how long requests may take.
#[derive(Clone)]
pub struct S3Options {
    pub bucket: String,
    /// What precedes every key, without slashes at its ends; empty: nothing.
    pub prefix: String,
    /// The region; `None`: from the environment, else the default one.
    pub region: Option<String>,
    /// The region of those that have no other; `None`: `us-east-1`.
    pub default_region: Option<String>,
    /// The URL of the server; `None`: from the environment, else Amazon's of the region.
    pub endpoint: Option<String>,
    pub credentials: Credentials,
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
            default_region: None,
            endpoint,
            credentials: Credentials::Environment,
            stall_timeout: STALL_TIMEOUT,
        }
    }
}

impl Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{} at {:?}", self.bucket, self.prefix, self.endpoint)
    }
}

/// The variables of the environment that are about S3. An empty one counts as missing.
fn variables() -> impl Iterator<Item = (String, String)> {
    let all = std::env::vars_os();
    let text = all.filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    text.filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
}

/// Whether the environment has what comes before the profiles of a user: a key, or a web identity unless it names
/// a profile.
#[must_use]
pub fn environment_has_credentials() -> bool {
    let names: Vec<_> = variables().map(|(name, _)| name).collect();
    let has = |name: &str| names.iter().any(|n| n == name);
    let has_web_identity = has("AWS_WEB_IDENTITY_TOKEN_FILE") && has("AWS_ROLE_ARN");
    has("AWS_ACCESS_KEY_ID")
        || has("AWS_SECRET_ACCESS_KEY")
        || (has_web_identity && !has("AWS_PROFILE"))
}

/// What the environment says, and the options over it.
fn configured(options: &S3Options, variables: &[(String, String)]) -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in variables {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    // Of the two keys for an endpoint this is the stronger one.
    if let Some(endpoint) = &options.endpoint {
        builder = builder.with_config(Key::S3Endpoint, endpoint);
    }
    let has_region = builder.get_config_value(&Key::Region).is_some();
    match options.region.as_ref().or(options.default_region.as_ref().filter(|_| !has_region)) {
        Some(region) => builder.with_region(region),
        None => builder,
    }
}

fn endpoint(builder: &AmazonS3Builder) -> Option<String> {
    let value = |key| builder.get_config_value(&key);
    value(Key::S3Endpoint).or_else(|| value(Key::Endpoint))
}

/// Who is asked for credentials if there is no key, as `object_store` decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    WebIdentity,
    Container,
    Instance,
}

impl Origin {
    fn of(builder: &AmazonS3Builder) -> Self {
        let has = |key| builder.get_config_value(&key).is_some();
        let has_uri = has(Key::ContainerCredentialsFullUri);
        if has(Key::WebIdentityTokenFile) && has(Key::RoleArn) {
            Self::WebIdentity
        } else if has(Key::ContainerCredentialsRelativeUri)
            || (has_uri && has(Key::ContainerAuthorizationTokenFile))
        {
            Self::Container
        } else {
            Self::Instance
        }
    }

    fn may_need_tls(self) -> bool {
        self != Self::Instance
    }

    /// Opens a store whose errors say that credentials are missing.
    fn open(
        self,
        builder: AmazonS3Builder,
        variables: &[(String, String)],
    ) -> object_store::Result<AmazonS3> {
        let is_disabled = |(name, value): &(String, String)| {
            name == "AWS_EC2_METADATA_DISABLED" && value.eq_ignore_ascii_case("true")
        };
        if self == Self::Instance && variables.iter().any(is_disabled) {
            let text = format!("no credentials, and AWS_EC2_METADATA_DISABLED. {NO_CREDENTIALS}");
            return builder.with_credentials(Arc::new(NoCredentials(text))).build();
        }
        let (place, advice) = match self {
            Self::WebIdentity => {
                ("the web identity", "Check AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN")
            }
            Self::Container => ("the container", "Check its role"),
            Self::Instance => ("the environment, a profile or the instance", NO_CREDENTIALS),
        };
        let inner = builder.clone().build()?.credentials().clone();
        builder.with_credentials(Arc::new(Explained { inner, place, advice })).build()
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
        let variables: Vec<_> = variables().collect();
        let builder = configured(options, &variables);
        let has = |key| builder.get_config_value(&key).is_some();
        let has_fixed = !matches!(options.credentials, Credentials::Environment)
            || has(Key::AccessKeyId)
            || has(Key::SecretAccessKey);
        let origin = (!has_fixed).then(|| Origin::of(&builder));
        let is_plain = endpoint(&builder).is_some_and(|url| url.starts_with("http://"));
        let needs_tls = !is_plain || origin.is_some_and(Origin::may_need_tls);
        let runtime = Runtime::start().map_err(|e| refused(e.to_string()))?;
        let connector = {
            let _entered = runtime.handle.enter();
            Connector::new(options.stall_timeout, !needs_tls)
        };
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let builder = builder
            .with_allow_http(is_plain)
            .with_bucket_name(&options.bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(retry)
            .with_http_connector(connector);
        let store = match &options.credentials {
            Credentials::Fixed(keys) => {
                let provider = StaticCredentialProvider::new(keys.clone().into());
                builder.with_credentials(Arc::new(provider)).build()
            }
            Credentials::Renewed(keys) => builder.with_credentials(Arc::new(keys.clone())).build(),
            Credentials::Environment => match origin {
                None => builder.build(),
                Some(origin) => origin.open(builder, &variables),
            },
        };
        let store = store.map_err(|e| refused(e.to_string()))?;
        Ok(Self { runtime, store: Arc::new(store), prefix: options.prefix.clone() })
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
            Ok(result) => result.map_err(|e| classify(key, effect, &e)),
            Err(_) => Err(unknown("the thread of the requests ended".to_owned())),
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
        if let Some(none) = cause.downcast_ref::<CredentialsError>() {
            // The request was never sent.
            let detail = none.text.clone();
            return match none.is_final {
                true => ObjectError::Refused { detail },
                false => ObjectError::Unavailable { detail },
            };
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: Option<&str>, region: Option<&str>) -> S3Options {
        let bucket = Bucket {
            name: "b".to_owned(),
            prefix: "p".to_owned(),
            endpoint: endpoint.map(str::to_owned),
            region: region.map(str::to_owned),
        };
        S3Options { default_region: Some("of-the-profile".to_owned()), ..S3Options::of(&bucket) }
    }

    fn found(options: &S3Options, variables: &[(&str, &str)]) -> (Option<String>, String, Origin) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let variables: Vec<_> = variables.iter().map(owned).collect();
        let builder = configured(options, &variables);
        let region = builder.get_config_value(&Key::Region).unwrap();
        (endpoint(&builder), region, Origin::of(&builder))
    }

    #[test]
    fn the_url_is_stronger_than_the_environment() {
        let all = [
            ("AWS_ENDPOINT_URL", "http://all"),
            ("AWS_ENDPOINT_URL_S3", "http://s3"),
            ("AWS_REGION", "of-the-environment"),
        ];
        let (url, region, _) = found(&options(Some("http://url"), Some("of-the-url")), &all);
        assert_eq!((url.as_deref(), &*region), (Some("http://url"), "of-the-url"));
        let (url, region, _) = found(&options(None, None), &all);
        assert_eq!((url.as_deref(), &*region), (Some("http://s3"), "of-the-environment"));
        let (url, region, _) = found(&options(None, None), &all[..1]);
        assert_eq!((url.as_deref(), &*region), (Some("http://all"), "of-the-profile"));
        assert_eq!(found(&options(None, None), &[]).0, None);
    }

    #[test]
    fn without_a_key_the_first_origin_is_asked() {
        let all = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "f"),
            ("AWS_ROLE_ARN", "r"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/c"),
        ];
        let origin = |variables: &[(&str, &str)]| found(&options(None, None), variables).2;
        assert_eq!(origin(&all), Origin::WebIdentity);
        assert_eq!(origin(&all[1..]), Origin::Container);
        assert_eq!(origin(&all[..1]), Origin::Instance);
    }
}
