//! The operating system: files through rustix, clocks, entropy.
