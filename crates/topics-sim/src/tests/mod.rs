//! Tests of the simulated environment.

use std::path::Path;
use std::sync::Arc;

use super::*;
use topics_env::{File, Fs, OpenMode};

mod contract;
mod crash;
mod faults;
mod model;
mod overlay;

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn create(fs: &SimFs, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = fs.open(p(path), OpenMode::Truncate).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// A file that survives every crash.
fn durable(fs: &SimFs, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(fs, path, bytes);
    file.sync_data().unwrap();
    fs.sync_dir(p(path).parent().unwrap()).unwrap();
    file
}

/// Every state at the end of the journal.
fn end_states(fs: &SimFs, options: &CrashOptions) -> Vec<CrashState> {
    let mut out = Vec::new();
    fs.crash_states(fs.ops_len(), 7, options, &mut |s| out.push(s));
    out
}

fn end_image(fs: &SimFs, survival: Survival) -> DiskImage {
    let mut cursor = fs.crash_cursor();
    cursor.seek(usize::MAX);
    cursor.image(survival)
}

/// The names of all files of an image.
fn names(image: &DiskImage) -> Vec<String> {
    image.files().into_iter().map(|(path, _)| path).collect()
}

fn contents(fs: &SimFs, path: &str) -> Vec<u8> {
    contents_of(&*fs.open(p(path), OpenMode::Read).unwrap())
}

fn contents_of(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_test_controls_clock_and_randomness() {
    use topics_env::{Clock, Rng};
    let clock = SimClock::new(5_000);
    let start = clock.mono_ns();
    clock.advance_ms(10);
    clock.advance_ns(5);
    clock.step_wall_ms(-10_000);
    assert_eq!((clock.wall_ms(), clock.mono_ns()), (0, start + 10_000_005));
    clock.step_wall_ms(77);
    assert_eq!(clock.wall_ms(), 77);
    let draw = |seed| {
        let rng = SimRng::new(seed);
        let mut bytes = [0; 13];
        rng.fill(&mut bytes);
        (bytes, rng.next_u64())
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
