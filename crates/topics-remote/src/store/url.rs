//! The URL of a remote.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use topics_env::objects::is_valid_key;

/// Where objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteUrl {
    /// A directory: `file:///directory`.
    Folder(PathBuf),
    /// A bucket: `s3://bucket/prefix?endpoint=…&region=…`.
    S3(Bucket),
}

/// A prefix of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub name: String,
    /// What precedes every key, without slashes at its ends; empty: nothing.
    pub prefix: String,
    /// The URL of the server; `None`: from the environment, else Amazon's of the region.
    pub endpoint: Option<String>,
    /// The region; `None`: from the environment, else `us-east-1`.
    pub region: Option<String>,
}

/// What is wrong with a URL. Its text follows the name of what has the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}, not {url:?}")]
pub struct UrlError {
    why: String,
    url: String,
}

const FORMS: &str = "must be file:///directory or s3://bucket/prefix";

impl RemoteUrl {
    /// Parses a URL.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        let parsed = match url.split_once("://") {
            Some(("file", rest)) => folder(rest).map(Self::Folder),
            Some(("s3", rest)) => bucket(rest).map(Self::S3),
            _ => Err(FORMS.to_owned()),
        };
        // What may be a secret is not repeated.
        let shown = if url.contains('@') { "a URL with an @" } else { url };
        parsed.map_err(|why| UrlError { why, url: shown.to_owned() })
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::S3(bucket) => write!(f, "s3://{}/{}", bucket.name, bucket.prefix),
        }
    }
}

/// The directory of a `file:` URL (RFC 8089), percent-decoded.
fn folder(rest: &str) -> Result<PathBuf, String> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') || path == "/" {
        return Err("must name an absolute directory".to_owned());
    }
    if path.contains(['?', '#']) {
        return Err("must write ? as %3F and # as %23".to_owned());
    }
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    match bytes.contains(&0) {
        true => Err("must not contain %00".to_owned()),
        false => Ok(OsString::from_vec(bytes).into()),
    }
}

fn bucket(rest: &str) -> Result<Bucket, String> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    if place.contains('@') {
        return Err("must not contain credentials: set AWS_ACCESS_KEY_ID and \
                    AWS_SECRET_ACCESS_KEY in the environment"
            .to_owned());
    }
    if rest.contains('#') {
        return Err("must write # as %23".to_owned());
    }
    let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
    let of_bucket = |b: u8| b.is_ascii_alphanumeric() || b".-_".contains(&b);
    if name.is_empty() || !name.bytes().all(of_bucket) {
        return Err("must name a bucket after s3://".to_owned());
    }
    let prefix = decoded(prefix.trim_end_matches('/'))?;
    if !prefix.is_empty() && !is_valid_key(&prefix) {
        return Err("must have a prefix of printable ASCII, whose folders are not empty and do \
                    not begin with a dot"
            .to_owned());
    }
    let mut out = Bucket { name: name.to_owned(), prefix, endpoint: None, region: None };
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value)?;
        let slot = match key {
            "endpoint" => {
                check_endpoint(&value)?;
                &mut out.endpoint
            }
            "region" if value.is_empty() => return Err("must name a region".to_owned()),
            "region" => &mut out.region,
            _ => return Err(format!("may have the parameters endpoint and region, no {key:?}")),
        };
        if slot.replace(value.trim_end_matches('/').to_owned()).is_some() {
            return Err(format!("must have the parameter {key} once"));
        }
    }
    Ok(out)
}

fn check_endpoint(url: &str) -> Result<(), String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = rest.map(|rest| rest.trim_end_matches('/'));
    let is_host = |h: &str| !h.is_empty() && !h.contains(['/', '?', '#', '@', ' ']);
    match host.is_some_and(is_host) {
        true => Ok(()),
        false => {
            Err("must have an endpoint of the form http://host:port or https://host:port"
                .to_owned())
        }
    }
}

fn decoded(text: &str) -> Result<String, String> {
    let text = percent_decode_str(text).decode_utf8();
    text.map(|t| t.into_owned()).map_err(|_| "must be UTF-8 when percent-decoded".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(name: &str, prefix: &str, endpoint: Option<&str>, region: Option<&str>) -> RemoteUrl {
        RemoteUrl::S3(Bucket {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: endpoint.map(str::to_owned),
            region: region.map(str::to_owned),
        })
    }

    #[test]
    fn urls_of_buckets() {
        let parsed = |url: &str| RemoteUrl::parse(url).unwrap();
        assert_eq!(parsed("s3://b"), s3("b", "", None, None));
        assert_eq!(parsed("s3://my.b-1/"), s3("my.b-1", "", None, None));
        assert_eq!(parsed("s3://b/a/b%2Bc/"), s3("b", "a/b+c", None, None));
        let local = "http://127.0.0.1:9000";
        assert_eq!(
            parsed("s3://b/p?endpoint=http://127.0.0.1:9000/&region=eu-west-1"),
            s3("b", "p", Some(local), Some("eu-west-1"))
        );
        assert_eq!(
            parsed("s3://b/p?endpoint=http%3A%2F%2F127.0.0.1%3A9000"),
            s3("b", "p", Some(local), None)
        );
    }

    #[test]
    fn urls_of_folders() {
        let folder = |url: &str| RemoteUrl::parse(url).unwrap();
        assert_eq!(folder("file:///a%20b"), RemoteUrl::Folder("/a b".into()));
        assert_eq!(folder("file://localhost/a"), RemoteUrl::Folder("/a".into()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, why) in [
            ("", FORMS),
            ("/dir", FORMS),
            ("gs://b/p", FORMS),
            ("s3:///p", "must name a bucket"),
            ("s3://a,b/p", "must name a bucket"),
            ("s3://b/p//q", "must have a prefix"),
            ("s3://b/.p", "must have a prefix"),
            ("s3://b/%ff", "must be UTF-8"),
            ("s3://b/p#x", "must write # as %23"),
            ("s3://b/p?endpoint=localhost:9000", "must have an endpoint"),
            ("s3://b/p?endpoint=http://", "must have an endpoint"),
            ("s3://b/p?endpoint=http://h/path", "must have an endpoint"),
            ("s3://b/p?region=", "must name a region"),
            ("s3://b/p?region=a&region=b", "must have the parameter region once"),
            ("s3://b/p?regoin=a", "no \"regoin\""),
            ("s3://key:secret@b/p", "must not contain credentials"),
            ("file://relative", "must name an absolute directory"),
            ("file:///", "must name an absolute directory"),
            ("file:///dir?x", "must write ? as %3F"),
            ("file:///a%00b", "must not contain %00"),
        ] {
            let e = RemoteUrl::parse(url).unwrap_err().to_string();
            assert!(e.contains(why), "{url}: {e}");
            assert!(!e.contains("secret"), "{e}");
        }
    }
}
