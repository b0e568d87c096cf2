//! The S3 store against a real server: versitygw, over a folder.
//!
//! `TOPICS_VERSITYGW` names its binary, see `.ci/go-tool`. Without it the tests are skipped.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use topics_env::Env;
use topics_env::objects::{ByteRange, ObjectError, ObjectStore};
use topics_env::real::{Backend, real_env};
use topics_remote::format::keys;
use topics_remote::format::sealed::ObjectKind;
use topics_remote::probe::probe;
use topics_remote::store::s3::{
    CredentialAnswers, Credentials, Keys, RenewedCredentials, S3Options, S3Store,
};
use topics_remote::writer::RemoteWriter;
use topics_remote::{RemoteError, Retry, read};

use crate::support::{Directory, skipped};

/// A running gateway. It is killed when this is dropped.
struct Gateway {
    process: Child,
    root: PathBuf,
    port: u16,
    binary: String,
}

const KEY: &str = "topics-test";

/// What takes this long hangs; far above what a slow machine takes.
const WATCHDOG: Duration = Duration::from_secs(300);

impl Gateway {
    fn start() -> Option<Self> {
        let binary = std::env::var("TOPICS_VERSITYGW").unwrap_or_default();
        if binary.is_empty() {
            skipped("TOPICS_VERSITYGW does not name a versitygw binary");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("topics-gw-{}-{n}", std::process::id()));
        std::fs::create_dir_all(root.join("bucket")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Self::spawn(&binary, &root, port);
        let gateway = Self { process, root, port, binary };
        gateway.wait_until_ready();
        Some(gateway)
    }

    fn spawn(binary: &str, root: &std::path::Path, port: u16) -> Child {
        Command::new(binary)
            .args(["--access", KEY, "--secret", KEY, "--port", &format!("127.0.0.1:{port}")])
            .arg("posix")
            .arg(root)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn wait_until_ready(&self) {
        let until = std::time::Instant::now() + WATCHDOG;
        while std::time::Instant::now() < until {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("versitygw does not listen on port {}", self.port);
    }

    fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::spawn(&self.binary, &self.root, self.port);
    }

    fn store(&self, prefix: &str) -> S3Store {
        S3Store::open(&options(prefix, self.port)).unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn fixed(secret: &str) -> Credentials {
    let (id, secret) = (KEY.to_owned(), secret.to_owned());
    Credentials::Fixed(Keys { id, secret, token: None })
}

fn options(prefix: &str, port: u16) -> S3Options {
    S3Options {
        bucket: "bucket".to_owned(),
        prefix: prefix.to_owned(),
        region: None,
        default_region: None,
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        credentials: fixed(KEY),
        stall_timeout: Duration::from_millis(500),
    }
}

fn env() -> Env {
    real_env(Backend::Posix).unwrap()
}

fn retry() -> Retry {
    let mut retry = Retry::new(env(), std::thread::sleep);
    retry.deadline = Duration::from_secs(20);
    retry
}

#[test]
fn a_real_server_has_every_feature() {
    let Some(gateway) = Gateway::start() else { return };
    for prefix in ["", "some/prefix"] {
        let report = probe(&gateway.store(prefix), &env(), 33 << 20);
        println!("prefix {prefix:?}: {:?}", report.findings);
        assert!(report.is_suitable(), "{:?}", report.findings);
    }
}

#[test]
fn errors_of_a_server_have_the_right_kind() {
    let Some(gateway) = Gateway::start() else { return };
    let body = Bytes::from_static(b"x");
    let store = gateway.store("p");
    let e = store.get("none", ByteRange::Full, None).unwrap_err();
    assert!(matches!(e, ObjectError::NotFound { .. }), "{e}");
    let wrong = S3Options { credentials: fixed("wrong"), ..options("p", gateway.port) };
    let e = S3Store::open(&wrong).unwrap().create("a", &body).unwrap_err();
    assert!(matches!(e, ObjectError::Refused { .. }), "{e}");
    let none = S3Options { bucket: "none".to_owned(), ..options("p", gateway.port) };
    let e = S3Store::open(&none).unwrap().create("a", &body).unwrap_err();
    assert!(matches!(e, ObjectError::NotFound { .. } | ObjectError::Refused { .. }), "{e}");
    // Nothing listens: the request has certainly not been sent.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let e = S3Store::open(&options("p", free)).unwrap().create("a", &body).unwrap_err();
    assert!(matches!(e, ObjectError::Unavailable { .. }), "{e}");
}

/// A server that accepts connections and never answers.
#[test]
fn a_hanging_server_ends_an_attempt_after_the_stall_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let store = S3Store::open(&options("p", port)).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Larger than the buffers of the connection, so that the body stalls too.
        let _ = tx.send(store.create("a", &Bytes::from(vec![0; 32 << 20])).map(drop));
        let _ = tx.send(store.head("a").map(drop));
    });
    let e = rx.recv_timeout(WATCHDOG).expect("the stalled create ends").unwrap_err();
    assert!(matches!(e, ObjectError::Ambiguous { .. }), "{e}");
    let e = rx.recv_timeout(WATCHDOG).expect("the stalled head ends").unwrap_err();
    assert!(matches!(e, ObjectError::Unavailable { .. }), "{e}");
}

/// A server that answers one request with these parts of a body, each after a pause, and then does nothing.
fn trickling(parts: usize, pause: Duration, announced: usize) -> u16 {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        while !request.ends_with(b"\r\n\r\n") {
            let n = connection.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..n]);
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {announced}\r\nETag: \"e\"\r\n\
             Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).unwrap();
        for _ in 0..parts {
            std::thread::sleep(pause);
            if connection.write_all(b"x").is_err() {
                return;
            }
        }
        // Until the client closes the connection.
        let _ = connection.read(&mut buffer);
    });
    port
}

#[test]
fn an_answer_that_stops_in_its_body_ends_after_the_stall_timeout() {
    let store = S3Store::open(&options("p", trickling(10, Duration::ZERO, 20))).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || tx.send(store.get("a", ByteRange::Full, None).map(drop)));
    let e = rx.recv_timeout(WATCHDOG).expect("the stalled get ends").unwrap_err();
    assert!(
        matches!(&e, ObjectError::Unavailable { detail } if detail.contains("no progress")),
        "{e}"
    );
}

/// The timeout is for the time without a byte, not for the whole answer.
#[test]
fn an_answer_that_takes_longer_than_the_stall_timeout_arrives() {
    let port = trickling(20, Duration::from_millis(200), 20);
    let options = S3Options { stall_timeout: Duration::from_secs(3), ..options("p", port) };
    let found = S3Store::open(&options).unwrap().get("a", ByteRange::Full, None).unwrap();
    assert_eq!(found.bytes.len(), 20);
}

#[test]
fn a_request_without_credentials_says_why_and_was_not_sent() {
    let slot: Arc<OnceLock<CredentialAnswers>> = Arc::default();
    let asked = slot.clone();
    let ask = move || asked.get().unwrap().put(Err("the session is over".to_owned()));
    let keys = RenewedCredentials::new("the owner".to_owned(), "Log in".to_owned(), ask);
    slot.set(keys.answers()).unwrap();
    let options = S3Options { credentials: Credentials::Renewed(keys), ..options("p", 9) };
    let store = S3Store::open(&options).unwrap();
    let e = store.create("a", &Bytes::from_static(b"x")).unwrap_err();
    let said = "no credentials from the owner: the session is over. Log in";
    assert!(matches!(&e, ObjectError::Unavailable { detail } if detail == said), "{e}");
}

#[test]
fn owners_of_a_bucket_exclude_each_other_and_outlive_its_server() {
    let Some(mut gateway) = Gateway::start() else { return };
    let store: Arc<dyn ObjectStore> = Arc::new(gateway.store("data"));
    let directory = Arc::<Directory>::default();
    let open = |holder: &str| {
        let claimant = directory.claimant(holder);
        RemoteWriter::open(store.clone(), retry(), &claimant, &|| Ok(())).unwrap()
    };
    let mut first = open("first");
    let round = |writer: &RemoteWriter| {
        use topics_remote::format::round::RoundWriter;
        RoundWriter::new(writer.header(ObjectKind::Round), 1).finish()
    };
    for n in 1..=3 {
        assert_eq!(first.ship(round(&first)).unwrap(), n);
        // Killed between requests: the connections break, the retries find the new process.
        gateway.restart();
    }
    let mut second = open("second");
    assert_eq!(second.head().epoch, 2);
    let e = first.ship(round(&first)).unwrap_err();
    assert!(matches!(&e, RemoteError::Fenced { holder, epoch: 2 } if holder == "second"), "{e}");
    assert_eq!(second.ship(round(&second)).unwrap(), 1);
    assert!(read::round(&*store, &retry(), 2, 1).unwrap().is_some());
    let key = keys::round(1, 1);
    let (stored, here) = (second.stored_ms(&key).unwrap().unwrap(), env().clock.wall_ms());
    assert!(stored.abs_diff(here) < 60_000, "the clock of the store: {stored}, here: {here}");
    store.delete(&key).unwrap();
    store.delete(&key).unwrap();
    let e = store.head(&key).unwrap_err();
    assert!(matches!(e, ObjectError::NotFound { .. }), "{e}");
    second.close().unwrap();
}
