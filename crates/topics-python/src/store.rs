//! Object stores by their URLs, with the credentials of the user's profile.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use rustix::io::FdFlags;
use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_remote::store::s3::{
    CredentialAnswers as Answers, Credentials, Keys, RenewedCredentials, S3Options,
    environment_has_credentials,
};
use topics_remote::store::{self, url::Bucket, url::RemoteUrl};

/// What a store is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    /// Nothing is created.
    Read,
}

/// Region, keys, and the name of a profile whose credentials botocore obtains.
type Profile = (Option<String>, Option<(String, String, Option<String>)>, Option<String>);

/// Opens the store that a URL names. Makes no request.
pub(crate) fn open(
    env: &Env,
    url: &RemoteUrl,
    access: Access,
) -> Result<Arc<dyn ObjectStore>, String> {
    let opened = match (url, access) {
        (RemoteUrl::S3(bucket), _) => store::open_bucket(&options(bucket)?),
        (RemoteUrl::Folder(_), Access::Write) => store::open(env, url),
        (RemoteUrl::Folder(_), Access::Read) => store::open_to_read(env, url),
    };
    opened.map_err(|e| e.to_string())
}

/// The options of a bucket. The interpreter is asked only if the environment has no credentials.
fn options(bucket: &Bucket) -> Result<S3Options, String> {
    let mut options = S3Options::of(bucket);
    if environment_has_credentials() {
        return Ok(options);
    }
    Python::attach(|py| {
        let text = |e: PyErr| e.value(py).to_string();
        let module = py.import("topics_engine.profiles").map_err(text)?;
        let found = module.call_method0("find").map_err(text)?;
        let Some((region, keys, renewed)) = found.extract::<Option<Profile>>().map_err(text)?
        else {
            return Ok(options);
        };
        options.default_region = region;
        if let Some((id, secret, token)) = keys {
            options.credentials = Credentials::Fixed(Keys { id, secret, token });
        } else if let Some(name) = renewed {
            options.credentials = Credentials::Renewed(renew(&module, &name).map_err(text)?);
        }
        Ok(options)
    })
}

/// Credentials that a thread of Python obtains: it may hang, and the end of the interpreter must not wait for
/// it, nor end it amid frames of Rust. It is asked through a pipe: no thread of Rust needs the interpreter for that.
fn renew(module: &Bound<'_, PyModule>, profile: &str) -> PyResult<RenewedCredentials> {
    let (questions, asker) = rustix::pipe::pipe().map_err(std::io::Error::from)?;
    for fd in [&questions, &asker] {
        rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    }
    let asker = Asker(asker);
    let renewed = RenewedCredentials::new(
        format!("the profile {profile:?}"),
        format!(
            "Check them with `aws sts get-caller-identity --profile {profile:?}`, and log in again if \
             their session is over"
        ),
        move || asker.write(b"?"),
    );
    let answers = CredentialAnswers(renewed.answers());
    module.call_method1("serve", (profile, questions.into_raw_fd(), answers))?;
    Ok(renewed)
}

/// The end of a pipe that questions are written to. Its drop ends the thread that reads them, also if a forked
/// process has the pipe too.
struct Asker(OwnedFd);

impl Asker {
    fn write(&self, byte: &[u8]) {
        // There are always fewer questions than a pipe takes.
        let _ = rustix::io::write(&self.0, byte);
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.write(b".");
    }
}

/// Takes the credentials that a store asked for.
#[pyclass(frozen)]
pub(crate) struct CredentialAnswers(Answers);

#[pymethods]
impl CredentialAnswers {
    /// Credentials, and for how many seconds they are valid.
    #[pyo3(signature = (id, secret, token=None, seconds=None))]
    fn put(&self, id: String, secret: String, token: Option<String>, seconds: Option<f64>) {
        let life = seconds.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::ZERO));
        self.0.put(Ok((Keys { id, secret, token }, life)));
    }

    /// Why there are none.
    fn fail(&self, why: String) {
        self.0.put(Err(why));
    }
}
