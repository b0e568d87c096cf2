//! A bounded cache of open segments, evicted by the clock algorithm.

use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
struct Slot<T> {
    key: u64,
    used: bool,
    value: Arc<T>,
}

/// Values by key. Evicts approximately the least recently used one.
#[derive(Debug)]
pub struct Lru<T> {
    slots: Vec<Slot<T>>,
    places: HashMap<u64, usize>,
    hand: usize,
    most: usize,
}

impl<T> Lru<T> {
    pub fn new(most: usize) -> Self {
        Self { slots: Vec::new(), places: HashMap::new(), hand: 0, most }
    }

    pub fn get_or_insert(&mut self, key: u64, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        if let Some(&at) = self.places.get(&key) {
            self.slots[at].used = true;
            return self.slots[at].value.clone();
        }
        let value = make();
        let slot = Slot { key, used: false, value: value.clone() };
        if self.slots.len() < self.most {
            self.places.insert(key, self.slots.len());
            self.slots.push(slot);
            return value;
        }
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.hand = (self.hand + 1) % self.most;
        }
        self.places.remove(&self.slots[self.hand].key);
        self.places.insert(key, self.hand);
        self.slots[self.hand] = slot;
        self.hand = (self.hand + 1) % self.most;
        value
    }

    /// Removes and returns all values.
    pub fn take_all(&mut self) -> Vec<Arc<T>> {
        self.places.clear();
        self.hand = 0;
        self.slots.drain(..).map(|slot| slot.value).collect()
    }

    pub fn remove(&mut self, key: u64) -> Option<Arc<T>> {
        let at = self.places.remove(&key)?;
        let slot = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(moved.key, at);
        }
        self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
        Some(slot.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_values_that_are_used() {
        let mut lru = Lru::new(3);
        for key in 0..3 {
            lru.get_or_insert(key, || Arc::new(key));
        }
        for key in 3..50 {
            lru.get_or_insert(0, || unreachable!("0 is used all the time"));
            assert_eq!(*lru.get_or_insert(key, || Arc::new(key)), key);
        }
        assert_eq!(lru.slots.len(), 3);
        assert_eq!(lru.remove(0).as_deref(), Some(&0));
        assert!(lru.remove(0).is_none());
        assert_eq!(lru.slots.len(), 2);
        for key in 60..70 {
            assert_eq!(*lru.get_or_insert(key, || Arc::new(key)), key);
        }
        assert_eq!(lru.places.len(), 3);
        let mut all = lru.take_all();
        all.sort();
        assert_eq!((all.len(), *all[2]), (3, 69));
        assert!(lru.take_all().is_empty() && lru.remove(69).is_none());
        for key in 70..80 {
            assert_eq!(*lru.get_or_insert(key, || Arc::new(key)), key);
        }
        assert_eq!(lru.slots.len(), 3);
    }
}
