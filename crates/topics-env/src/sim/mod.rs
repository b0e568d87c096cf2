//! A simulated disk, clock and random source.
