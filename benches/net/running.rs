//! Servers that a benchmark starts.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Endpoint;
use crate::Process;

/// A process that ends with the benchmark.
pub struct Running(Child);

impl Running {
    /// Starts a server and waits until it listens; nothing if it does not, or is not installed.
    pub fn start(mut command: Command, log: &Path, addr: &str) -> Option<Self> {
        let log = File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = Self(command.spawn().ok()?);
        let since = Instant::now();
        while TcpStream::connect(addr).is_err() {
            if since.elapsed() > Duration::from_secs(60) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(child)
    }

    /// Where it was started to listen.
    pub fn at(&self, addr: &str) -> Endpoint {
        Endpoint { addr: addr.into(), process: Process::of(&self.0.id().to_string()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address on which nothing listens.
pub fn free_addr() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// The port of an address.
pub fn port(addr: &str) -> &str {
    addr.rsplit(':').next().unwrap()
}
