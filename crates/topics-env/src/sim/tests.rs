//! What the simulated world promises.
