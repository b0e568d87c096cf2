//! A directory that consists of a snapshot: its log is empty and cleanly closed.
//!
//! It is made in memory, to open with the ordinary code what an object store has of a directory.

use topics_env::{Env, OpenMode};

use crate::dir::{Paths, STORE_VERSION, Store, create_dir, show};
use crate::format::frame;
use crate::format::record::{Body, CleanClose, Group, Start};
use crate::format::wal_file::{self, WalFileHeader};
use crate::snapshot::{self, EncodedSnapshot, SnapshotBody};
use crate::{Result, StorageError};

/// Writes the directory of a snapshot. `body` has at least one shard.
pub fn write_view(env: &Env, paths: &Paths, body: &SnapshotBody) -> Result<()> {
    for dir in [paths.root(), &paths.meta(), &paths.wal(), &paths.topics(), &paths.txn()] {
        create_dir(env, "dir.names", dir)?;
    }
    snapshot::write(env, paths, 1, &mut EncodedSnapshot::of(body)?, || Ok(()))?;
    for (i, shard) in body.shards.iter().enumerate() {
        let header = WalFileHeader {
            store_id: body.store_id,
            shard: i as u32,
            shards: body.shards.len() as u32,
            layout: body.layout,
            generation: body.generation,
            ordinal: 1,
            salt: env.rng.next_u64(),
            boot_id: [0; 16],
            mount_id: 0,
            prior: 0,
        };
        let dir = paths.shard(i as u32);
        create_dir(env, "dir.shard", &dir)?;
        let name = wal_file::name(header.generation, header.ordinal);
        let path = dir.join(&name);
        let io = |e| StorageError::io(show(&path), e);
        let file = env.fs.open(&path, OpenMode::CreateNew).map_err(io)?;
        file.write_all_at(&closed_log(&header, shard.last_lsn + 1), 0).map_err(io)?;
        wal_file::write_current(env, &dir, &name)?;
    }
    Store { id: body.store_id, version: STORE_VERSION }.restore(env, paths)
}

/// A log file whose only group is a clean close.
fn closed_log(header: &WalFileHeader, first_lsn: u64) -> Vec<u8> {
    let mut out = header.encode();
    let (mut start, mut group, mut close) = (Vec::new(), Vec::new(), Vec::new());
    Start { first_lsn }.encode_frame(&mut start);
    CleanClose {}.encode_frame(&mut close, 0, 0, 0);
    let bytes = close.len() as u64;
    Group { lsn: first_lsn, frames: 1, bytes, synced_lsn: first_lsn - 1 }.encode_frame(&mut group);
    frame::seal(&mut start, header.salt, first_lsn);
    frame::seal(&mut group, header.salt, first_lsn);
    frame::seal(&mut close, header.salt, first_lsn + 1);
    for part in [start, group, close] {
        out.extend_from_slice(&part);
    }
    out
}
