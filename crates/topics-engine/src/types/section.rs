//! Sections of a snapshot.

use topics_storage::snapshot::Section;

use super::error::{Error, Result};

/// Whether a section is of this kind; an error if it is, in a version that this build does not read.
pub(crate) fn is_of(section: &Section, kind: u16, version: u16, what: &str) -> Result<bool> {
    if section.kind != kind {
        return Ok(false);
    }
    if section.version != version {
        let (found, supported) = (u32::from(section.version), u32::from(version));
        let what = format!("{what} in the snapshot");
        return Err(Error::Version { what, found, supported });
    }
    Ok(true)
}
