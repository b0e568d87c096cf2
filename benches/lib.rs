//! Shared parts of the benchmarks: percentiles, the device's figure, sizes of a run.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub mod net;
mod placement;
mod report;

pub use placement::Placement;
pub use report::{Goal, Row, Table, short};

/// Latencies of one row, in nanoseconds.
#[derive(Default, Clone)]
pub struct Samples(pub Vec<u64>);

impl Samples {
    /// Times `f` once.
    pub fn time<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let t = Instant::now();
        let out = f();
        self.0.push(t.elapsed().as_nanos() as u64);
        out
    }

    /// The `q` quantile in microseconds.
    pub fn us(&mut self, q: f64) -> f64 {
        if self.0.is_empty() {
            return f64::NAN;
        }
        self.0.sort_unstable();
        let i = ((self.0.len() - 1) as f64 * q).round() as usize;
        self.0[i] as f64 / 1000.0
    }

    /// The quantiles above the median, in microseconds, as a note.
    pub fn tail(&mut self) -> String {
        let [p99, p999, max] = [0.99, 0.999, 1.0].map(|q| micros(self.us(q)));
        format!("p99 {p99}, p99.9 {p999}, max {max}")
    }

    /// Quantiles and their values in microseconds: what a plot over all of them needs.
    pub fn curve(&mut self) -> Vec<(f64, f64)> {
        const AT: [f64; 12] =
            [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0];
        if self.0.is_empty() {
            return Vec::new();
        }
        AT.iter().map(|&q| (q, self.us(q))).collect()
    }
}

fn micros(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

/// The median of repeated runs.
pub fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

/// `fdatasync` after a write of `len` bytes into a preallocated file: the device's figure.
pub fn device_sync(dir: &Path, len: usize, n: usize) -> Samples {
    let path = dir.join("device-probe");
    let file = OpenOptions::new().create(true).write(true).truncate(true).open(&path).unwrap();
    let zeros = vec![0u8; 1 << 20];
    for i in 0..(len * n).div_ceil(zeros.len()) + 1 {
        file.write_all_at(&zeros, (i * zeros.len()) as u64).unwrap();
    }
    file.sync_all().unwrap();
    let buf = vec![7u8; len];
    let mut s = Samples::default();
    for i in 0..n {
        s.time(|| {
            file.write_all_at(&buf, (i * len) as u64).unwrap();
            file.sync_data().unwrap();
        });
    }
    std::fs::remove_file(path).unwrap();
    s
}

/// Bytes of 1000 records of 100 bytes in the log.
const FRAMES: usize = 146_000;

/// The rate at which the page cache (or the device) accepts such groups in a new file, in records
/// per second.
pub fn plain_batches(dir: &Path, sync: bool) -> f64 {
    let path = dir.join("device-probe");
    let file = File::create(&path).unwrap();
    let (buf, n) = (vec![7u8; FRAMES], 400);
    let len = (n * FRAMES) as u64;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len).unwrap();
    file.sync_all().unwrap();
    let start = Instant::now();
    for i in 0..n {
        file.write_all_at(&buf, (i * FRAMES) as u64).unwrap();
        if sync {
            file.sync_data().unwrap();
        }
    }
    let rate = (n * 1000) as f64 / start.elapsed().as_secs_f64();
    std::fs::remove_file(path).unwrap();
    rate
}

/// The row with the figure of [`plain_batches`] as the device's.
pub fn beside_plain(row: Row, plain: Vec<f64>, sync: bool) -> Row {
    let (what, plain) = (if sync { " and fdatasync" } else { "" }, median(plain));
    let figure = row.figure();
    row.device(plain).note(format!(
        "a plain write{what} of the same bytes: {:.2} M rec/s, ratio {:.2}",
        plain / 1e6,
        figure / plain
    ))
}

/// The size of a run: `TOPICS_BENCH_SCALE`, 1 unless a smaller one tries the benchmarks.
fn scale() -> f64 {
    match std::env::var("TOPICS_BENCH_SCALE") {
        Ok(text) => text.parse().expect("TOPICS_BENCH_SCALE is a number"),
        Err(_) => 1.0,
    }
}

/// `seconds` at the size of this run.
pub fn scaled_seconds(seconds: f64) -> f64 {
    seconds * scale()
}

/// `n` at the size of this run, as a multiple of `step`, and not 0.
pub fn scaled(n: u64, step: u64) -> u64 {
    ((n as f64 * scale()) as u64 / step).max(1) * step
}

/// Calls `call`; while the engine refuses it for overload, calls it again after the time that the
/// refusal names.
pub fn retried<T>(mut call: impl FnMut() -> topics_engine::Result<T>) -> T {
    loop {
        match call() {
            Err(topics_engine::Error::Throttled { retry_after_ms, .. }) => {
                std::thread::sleep(Duration::from_millis(retry_after_ms));
            }
            other => return other.unwrap(),
        }
    }
}

/// Flushes everything else first, so that a synced run does not pay for it.
pub fn sync_all() {
    rustix::fs::sync();
}

/// A process whose cost is measured.
#[derive(Clone, Copy)]
pub struct Process(u32);

impl Process {
    /// This process.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    /// The process with this id: a measured server.
    pub fn of(pid: &str) -> Self {
        Self(pid.parse().expect("the id of a process"))
    }

    /// Starts counting.
    pub fn cost(self) -> Cost {
        Cost { of: self, cpu: self.cpu_seconds(), written: self.written_bytes() }
    }

    fn cpu_seconds(self) -> f64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        let rest: Vec<&str> = text.rsplit(") ").next().unwrap_or("").split(' ').collect();
        let ticks = |i: usize| rest.get(i).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / 100.0
    }

    fn written_bytes(self) -> u64 {
        field(&format!("/proc/{}/io", self.0), "wchar:")
    }
}

/// CPU seconds and bytes written by a process since a point in time.
pub struct Cost {
    of: Process,
    cpu: f64,
    written: u64,
}

impl Cost {
    /// Of this process, from now on.
    pub fn start() -> Self {
        Process::own().cost()
    }

    /// CPU microseconds and bytes written since the start, per record.
    pub fn per_record(&self, records: u64) -> String {
        let cpu = self.cpu_per_record(records);
        let bytes = (self.of.written_bytes() - self.written) as f64 / records as f64;
        format!("{cpu:.2} cpu-µs, {bytes:.0} B written per record")
    }

    /// CPU microseconds since the start, per record.
    pub fn cpu_per_record(&self, records: u64) -> f64 {
        (self.of.cpu_seconds() - self.cpu) * 1e6 / records as f64
    }
}

/// Anonymous resident memory of a process in bytes.
pub fn rss_anon(pid: &str) -> u64 {
    field(&format!("/proc/{pid}/status"), "RssAnon:") * 1024
}

fn field(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .find_map(|l| l.strip_prefix(name))
        .and_then(|v| v.split_whitespace().next())
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

/// Bytes of all files below `dir`, as allocated length.
pub fn disk_bytes(dir: &Path) -> u64 {
    let mut total = 0;
    let mut todo = vec![dir.to_path_buf()];
    while let Some(d) = todo.pop() {
        for e in std::fs::read_dir(d).into_iter().flatten().flatten() {
            match e.metadata() {
                Ok(m) if m.is_dir() => todo.push(e.path()),
                Ok(m) => {
                    use std::os::unix::fs::MetadataExt;
                    total += m.blocks() * 512;
                }
                Err(_) => {}
            }
        }
    }
    total
}

/// A fresh directory below `TOPICS_BENCH_DIR` (default: `target/bench`), on the disk under test.
pub fn scratch(name: &str) -> PathBuf {
    let base = std::env::var("TOPICS_BENCH_DIR").unwrap_or_else(|_| "target/bench".into());
    let dir = Path::new(&base).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// The I/O backend: `TOPICS_IO_BACKEND`, as the engine reads it.
pub fn backend() -> topics_env::real::Backend {
    let name = std::env::var("TOPICS_IO_BACKEND").unwrap_or_else(|_| "auto".into());
    let mut known = topics_env::real::Backend::NAMES.into_iter();
    let found = known.find(|(known, _)| *known == name);
    found.expect("TOPICS_IO_BACKEND is auto, posix or uring").1
}

/// Runs `threads` closures concurrently for about `time` and returns operations per second.
pub fn closed_loop(threads: usize, time: Duration, op: impl Fn(usize, u64) + Sync) -> f64 {
    let start = Instant::now();
    let total: u64 = std::thread::scope(|s| {
        let op = &op;
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                s.spawn(move || {
                    let mut n = 0;
                    while start.elapsed() < time {
                        op(t, n);
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).sum()
    });
    total as f64 / start.elapsed().as_secs_f64()
}

/// Opens a file for the append journal of a benchmark child.
pub fn create(path: &Path) -> File {
    File::create(path).unwrap()
}
