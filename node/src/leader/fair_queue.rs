//! A queue that serves boundaries in turn, so that a busy one cannot starve its neighbours.

use std::collections::{HashMap, VecDeque};

/// Items in lanes; lanes that hold items take turns, one item each.
pub(super) struct FairQueue<T> {
    lanes: HashMap<u64, VecDeque<T>>,
    turns: VecDeque<u64>,
    len: usize,
}

impl<T> FairQueue<T> {
    pub(super) fn new() -> Self {
        Self { lanes: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push_back(&mut self, lane: u64, item: T) {
        let items = self.lanes.entry(lane).or_default();
        if items.is_empty() {
            self.turns.push_back(lane);
        }
        items.push_back(item);
        self.len += 1;
    }

    /// Puts an item back that was taken out: it is served before everything else.
    pub(super) fn push_front(&mut self, lane: u64, item: T) {
        let items = self.lanes.entry(lane).or_default();
        if !items.is_empty() {
            self.turns.retain(|turn| *turn != lane);
        }
        self.turns.push_front(lane);
        items.push_front(item);
        self.len += 1;
    }

    /// The item whose turn it is.
    pub(super) fn peek(&self) -> Option<&T> {
        self.turns.front().and_then(|lane| self.lanes.get(lane)).and_then(VecDeque::front)
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let lane = self.turns.pop_front()?;
        let items = self.lanes.get_mut(&lane).expect("a lane with a turn exists");
        let item = items.pop_front().expect("a lane with a turn holds an item");
        if items.is_empty() {
            // Lanes come and go with boundaries: keep no memory of idle ones.
            self.lanes.remove(&lane);
        } else {
            self.turns.push_back(lane);
        }
        self.len -= 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn a_busy_lane_does_not_starve_another() {
        let mut queue = FairQueue::new();
        for item in 0..4 {
            queue.push_back(1, item);
        }
        queue.push_back(2, 100);
        assert_eq!(queue.len(), 5);
        assert_eq!(drain(&mut queue), [0, 100, 1, 2, 3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_was_put_back_comes_first_and_in_its_lane_s_order() {
        let mut queue = FairQueue::new();
        queue.push_back(1, 2);
        queue.push_back(2, 10);
        queue.push_front(1, 1);
        assert_eq!(queue.peek(), Some(&1));
        assert_eq!(drain(&mut queue), [1, 10, 2]);
    }
}
