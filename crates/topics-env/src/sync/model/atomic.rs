//! Atomics. Every operation is sequentially consistent, whatever ordering the caller names.

use shuttle::sync::atomic as real;
pub use std::sync::atomic::Ordering;

use super::{SyncOp, is_broken};

macro_rules! atomic {
    ($(#[$doc:meta])* $name:ident, $t:ty) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name(real::$name);

        impl $name {
            /// Creates an atomic with this value.
            #[must_use]
            pub const fn new(value: $t) -> Self {
                Self(real::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $t {
                self.0.load(order)
            }

            /// Stores a value.
            #[track_caller]
            pub fn store(&self, value: $t, order: Ordering) {
                if is_broken(SyncOp::Store) {
                    return;
                }
                self.0.store(value, order);
            }

            /// Stores a value and returns the previous one.
            #[track_caller]
            pub fn swap(&self, value: $t, order: Ordering) -> $t {
                match is_broken(SyncOp::Change) {
                    true => self.torn(|_| Some(value)).unwrap_or_else(|old| old),
                    false => self.0.swap(value, order),
                }
            }

            /// Replaces the value if it equals `current`.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $t,
                new: $t,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$t, $t> {
                match is_broken(SyncOp::Change) {
                    true => self.torn(|old| (old == current).then_some(new)),
                    false => self.0.compare_exchange(current, new, success, failure),
                }
            }

            /// Replaces the value by the result of `f`, unless that is `None`.
            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                f: impl FnMut($t) -> Option<$t>,
            ) -> Result<$t, $t> {
                match is_broken(SyncOp::Change) {
                    true => self.torn(f),
                    false => self.0.fetch_update(set, fetch, f),
                }
            }

            /// A read-modify-write that is not atomic: other threads can run between the read and
            /// the write.
            fn torn(&self, mut f: impl FnMut($t) -> Option<$t>) -> Result<$t, $t> {
                let old = self.0.load(Ordering::SeqCst);
                shuttle::thread::yield_now();
                match f(old) {
                    Some(new) => {
                        self.0.store(new, Ordering::SeqCst);
                        Ok(old)
                    }
                    None => Err(old),
                }
            }

            /// The value; `&mut` excludes other threads.
            pub fn get_mut(&mut self) -> &mut $t {
                self.0.get_mut()
            }

            #[must_use]
            pub fn into_inner(self) -> $t {
                self.0.into_inner()
            }
        }
    };
}

macro_rules! integer {
    ($(#[$doc:meta])* $name:ident, $t:ty) => {
        atomic! { $(#[$doc])* $name, $t }

        impl $name {
            /// Adds and returns the previous value.
            #[track_caller]
            pub fn fetch_add(&self, n: $t, order: Ordering) -> $t {
                match is_broken(SyncOp::Change) {
                    true => self.torn(|old| Some(old.wrapping_add(n))).unwrap_or_else(|old| old),
                    false => self.0.fetch_add(n, order),
                }
            }

            /// Subtracts and returns the previous value.
            #[track_caller]
            pub fn fetch_sub(&self, n: $t, order: Ordering) -> $t {
                match is_broken(SyncOp::Change) {
                    true => self.torn(|old| Some(old.wrapping_sub(n))).unwrap_or_else(|old| old),
                    false => self.0.fetch_sub(n, order),
                }
            }

            /// Sets the bits and returns the previous value.
            #[track_caller]
            pub fn fetch_or(&self, bits: $t, order: Ordering) -> $t {
                match is_broken(SyncOp::Change) {
                    true => self.torn(|old| Some(old | bits)).unwrap_or_else(|old| old),
                    false => self.0.fetch_or(bits, order),
                }
            }

            /// Stores the larger value and returns the previous one.
            #[track_caller]
            pub fn fetch_max(&self, n: $t, order: Ordering) -> $t {
                match is_broken(SyncOp::Change) {
                    true => self.torn(|old| Some(old.max(n))).unwrap_or_else(|old| old),
                    false => self.0.fetch_max(n, order),
                }
            }
        }
    };
}

atomic! {
    AtomicBool, bool
}
integer! {
    AtomicU8, u8
}
integer! {
    /// A number of 32 bits.
    AtomicU32, u32
}
integer! {
    /// A number of 64 bits.
    AtomicU64, u64
}
integer! {
    /// A signed number of 64 bits.
    AtomicI64, i64
}
integer! {
    /// A number of the size of an address.
    AtomicUsize, usize
}
