//! Kafka through its own performance tools: a process for each figure, so not the closed loop of
//! the other clients.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A running broker.
pub struct Kafka {
    jars: PathBuf,
    addr: String,
}

impl Kafka {
    /// The broker at `addr`, with its jars in `jars`; creates the two topics.
    pub fn new(jars: &Path, addr: &str) -> Self {
        let kafka = Self { jars: jars.into(), addr: addr.into() };
        for (topic, flush) in [("lazy", "9223372036854775807"), ("synced", "1")] {
            let flush = format!("flush.messages={flush}");
            let words = ["--create", "--topic", topic, "--config", &flush];
            kafka.tool("TopicCommand", &[&words[..], &["--bootstrap-server", addr]].concat());
        }
        kafka
    }

    /// Records per second of one producer with at most `batch` records per request, and the median
    /// latency in milliseconds; `per_second` limits the rate.
    pub fn produce(&self, synced: bool, records: u64, per_second: i64, batch: u64) -> (f64, f64) {
        let topic = if synced { "synced" } else { "lazy" };
        let (records, limit) = (records.to_string(), per_second.to_string());
        let servers = format!("bootstrap.servers={}", self.addr);
        // A record of 100 bytes takes some additional bytes in a batch.
        let batch = format!("batch.size={}", batch * 108);
        let out = self.tool(
            "ProducerPerformance",
            &[
                "--topic",
                topic,
                "--num-records",
                &records,
                "--record-size",
                "100",
                "--throughput",
                &limit,
                "--producer-props",
                &servers,
                "acks=1",
                "linger.ms=0",
                &batch,
            ],
        );
        let last =
            out.lines().rev().find(|l| l.contains("50th")).unwrap_or_else(|| panic!("{out}"));
        let figure = |unit: &str| -> f64 {
            let (before, _) = last.split_once(unit).unwrap_or_else(|| panic!("{last}"));
            before.rsplit([' ', ',']).next().unwrap().parse().unwrap()
        };
        (figure(" records/sec"), figure(" ms 50th"))
    }

    /// Records per second that one consumer reads.
    pub fn consume(&self, records: u64) -> f64 {
        let records = records.to_string();
        let out = self.tool(
            "ConsumerPerformance",
            &[
                "--bootstrap-server",
                &self.addr,
                "--topic",
                "lazy",
                "--messages",
                &records,
                "--timeout",
                "30000",
            ],
        );
        let row = |n: usize| out.lines().rev().nth(n).unwrap_or("").split(", ");
        let column = row(1).position(|c| c == "fetch.nMsg.sec").unwrap_or_else(|| panic!("{out}"));
        row(0).nth(column).unwrap().parse().unwrap()
    }

    fn tool(&self, name: &str, args: &[&str]) -> String {
        let class = format!("org.apache.kafka.tools.{name}");
        let out = java(&self.jars).arg(class).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
        text
    }
}

/// `java` with the jars on its class path.
pub fn java(jars: &Path) -> Command {
    let mut java = Command::new("java");
    java.args(["-Xmx1g", "-cp"]).arg(format!("{}/*", jars.display()));
    java
}
