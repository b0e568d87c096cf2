//! Data directories of released format versions, stored as files: later builds must read them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use topics_engine::{CommitRequest, Engine, Error, TopicType};
use topics_sim::DiskImage;

use crate::damage::files;
use crate::oracle::Observation;
use crate::run::DIR;

/// The directory of the fixtures of a format version.
pub fn home(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/v{version}"))
}

/// Writes a directory as files, with the state that it serves beside it.
pub fn write(version: u32, name: &str, image: &DiskImage, state: &str) -> io::Result<()> {
    let home = home(version).join(name);
    for (path, bytes) in files(image) {
        let file = home.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap_or(&home))?;
        fs::write(file, bytes)?;
    }
    fs::write(home.join("expected.txt"), state)
}

/// The names of a version's fixtures.
pub fn names(version: u32) -> io::Result<Vec<String>> {
    let mut out: Vec<String> = fs::read_dir(home(version))?
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .collect();
    out.sort();
    Ok(out)
}

/// A fixture's files on a simulated disk, and the state that it must serve.
pub fn load(version: u32, name: &str) -> io::Result<(DiskImage, String)> {
    let home = home(version).join(name);
    let fs = std::sync::Arc::new(topics_sim::SimFs::new());
    let mut bytes = Vec::new();
    collect(&home.join(DIR.trim_start_matches('/')), Path::new(DIR), &*fs, &mut bytes)?;
    // The corpora ended in their second boot, which a killed process does not end.
    let mut image = fs.kill_image().with_boot(2).with_mount(2);
    for (path, content) in bytes {
        if !image.put(&path, &content) {
            return Err(io::Error::other(format!("cannot store {path}")));
        }
    }
    Ok((image, fs::read_to_string(home.join("expected.txt"))?))
}

fn collect(
    from: &Path,
    to: &Path,
    disk: &dyn topics_env::Fs,
    out: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    disk.create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &place, disk, out)?;
        } else {
            out.push((place.to_string_lossy().into_owned(), fs::read(entry.path())?));
        }
    }
    Ok(())
}

/// An observation as text, without the parts that depend on its time.
pub fn render(seen: &Observation) -> String {
    let mut out = String::new();
    for t in &seen.topics {
        let s = &t.state;
        let _ = writeln!(
            out,
            "topic {} id {} epoch {} head {} earliest {} floor {} next {} count {} bytes {} {:?}",
            s.topic,
            s.topic_id,
            s.epoch,
            s.head_seq,
            s.earliest_seq,
            s.evict_floor,
            s.next_seq,
            s.count,
            s.bytes,
            s.config.durability,
        );
        for g in &s.gaps {
            let _ = writeln!(out, "  gap {}..={} {}", g.from, g.to, g.reason.as_str());
        }
        for r in &t.records {
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            let _ = writeln!(
                out,
                "  {} ts {} tag {:?} node {:?} meta {:?} binary {} {}",
                r.seq,
                r.ts,
                text(&r.tag),
                text(&r.node),
                text(&r.meta),
                r.binary,
                text(&r.data),
            );
        }
    }
    out
}

/// Jobs, consumers, routers and writers as text, without the parts that depend on its time.
pub fn render_work(engine: &Engine, seen: &Observation) -> topics_engine::Result<String> {
    let mut out = String::new();
    for t in &seen.topics {
        let topic = &t.state.topic;
        if t.state.config.kind == TopicType::Queue {
            for (job, _) in engine.peek(topic, None, 10_000)?.iter() {
                let _ = writeln!(
                    out,
                    "job {topic} {} {:?} deliveries {} lease {:?} error {:?}",
                    job.seq, job.state, job.deliveries, job.lease_id, job.error,
                );
            }
        }
        for c in engine.consumers(topic)? {
            let _ = writeln!(out, "consumer {topic} {} {:?} cursor {}", c.name, c.mode, c.cursor);
        }
    }
    for r in engine.routers("") {
        let _ = writeln!(
            out,
            "router {} {} {} lag {}",
            r.router, r.request.source, r.request.dest, r.lag
        );
    }
    for w in engine.writers("", None) {
        let state = engine.writer_state(&w.writer)?;
        let _ = writeln!(out, "writer {} epoch {:?}", w.writer, state.last_epoch);
        for s in &state.staged {
            let _ = writeln!(out, "  stage {:?} parts {} rows {}", s.stage, s.parts, s.records);
        }
        if let Some(query) = state.last_epoch.and_then(|e| query_of(engine, &w.writer, e)) {
            let _ = writeln!(out, "  by query {query:?}");
        }
    }
    Ok(out)
}

/// The query that committed the last epoch of a writer: the refusal of another one names it.
fn query_of(engine: &Engine, writer: &str, epoch: u64) -> Option<String> {
    let req = CommitRequest { epoch, query: "not the one", ..CommitRequest::default() };
    match engine.commit(writer, &req) {
        Err(Error::EpochOfOtherQuery { committed_by, .. }) => Some(committed_by),
        _ => None,
    }
}
