//! Intrusive doubly linked lists over dense vectors, by `u32` index: no allocation, O(1) removal.
//!
//! An item is in at most one list. Its owner records which one, beside the links.

use crate::api::NONE;
use serde::{Deserialize, Serialize};

/// Neighbours of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Links {
    pub prev: u32,
    pub next: u32,
}

impl Default for Links {
    fn default() -> Self {
        Links { prev: NONE, next: NONE }
    }
}

/// An item of a [`List`].
pub(crate) trait Linked {
    fn links(&self) -> &Links;
    fn links_mut(&mut self) -> &mut Links;
}

/// Implement [`Linked`] for a type by one of its fields.
macro_rules! linked {
    ($item:ident.$links:tt) => {
        impl $crate::lists::Linked for $item {
            fn links(&self) -> &$crate::lists::Links {
                &self.$links
            }
            fn links_mut(&mut self) -> &mut $crate::lists::Links {
                &mut self.$links
            }
        }
    };
}
pub(crate) use linked;

/// Ends of a list. Its items live in a slice that the caller passes to each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct List {
    pub head: u32,
    pub tail: u32,
    pub len: u32,
}

impl Default for List {
    fn default() -> Self {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn push_back<T: Linked>(&mut self, items: &mut [T], at: u32) {
        *items[at as usize].links_mut() = Links { prev: self.tail, next: NONE };
        match self.tail {
            NONE => self.head = at,
            tail => items[tail as usize].links_mut().next = at,
        }
        self.tail = at;
        self.len += 1;
    }

    pub fn push_front<T: Linked>(&mut self, items: &mut [T], at: u32) {
        *items[at as usize].links_mut() = Links { prev: NONE, next: self.head };
        match self.head {
            NONE => self.tail = at,
            head => items[head as usize].links_mut().prev = at,
        }
        self.head = at;
        self.len += 1;
    }

    /// Insert an item before another item of the list.
    pub fn insert_before<T: Linked>(&mut self, items: &mut [T], at: u32, next: u32) {
        let prev = std::mem::replace(&mut items[next as usize].links_mut().prev, at);
        match prev {
            NONE => self.head = at,
            prev => items[prev as usize].links_mut().next = at,
        }
        *items[at as usize].links_mut() = Links { prev, next };
        self.len += 1;
    }

    pub fn remove<T: Linked>(&mut self, items: &mut [T], at: u32) {
        let Links { prev, next } = *items[at as usize].links();
        match prev {
            NONE => self.head = next,
            prev => items[prev as usize].links_mut().next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => items[next as usize].links_mut().prev = prev,
        }
        *items[at as usize].links_mut() = Links::default();
        self.len -= 1;
    }

    pub fn pop_front<T: Linked>(&mut self, items: &mut [T]) -> Option<u32> {
        let head = self.head;
        if head == NONE {
            return None;
        }
        self.remove(items, head);
        Some(head)
    }

    /// Move an item of this list to its end.
    pub fn move_back<T: Linked>(&mut self, items: &mut [T], at: u32) {
        if self.tail != at {
            self.remove(items, at);
            self.push_back(items, at);
        }
    }

    /// Iterate over the items from head to tail.
    pub fn iter<'a, T: Linked>(&self, items: &'a [T]) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let here = at;
            (here != NONE).then(|| {
                at = items[here as usize].links().next;
                here
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Default)]
    struct Item(Links);
    linked!(Item.0);

    proptest! {
        #[test]
        fn behaves_like_a_deque(ops in prop::collection::vec((0u8..6, 0u32..16), 1..200)) {
            let mut items = vec![Item::default(); 16];
            let (mut list, mut model) = (List::default(), VecDeque::new());
            for (op, at) in ops {
                let inside = model.contains(&at);
                match op {
                    0 if !inside => { list.push_back(&mut items, at); model.push_back(at); }
                    1 if !inside => { list.push_front(&mut items, at); model.push_front(at); }
                    2 if inside => { list.remove(&mut items, at); model.retain(|&x| x != at); }
                    3 if inside => { list.move_back(&mut items, at); model.retain(|&x| x != at); model.push_back(at); }
                    4 if !inside && !model.is_empty() => {
                        let before = at as usize % model.len();
                        list.insert_before(&mut items, at, model[before]);
                        model.insert(before, at);
                    }
                    5 => { prop_assert_eq!(list.pop_front(&mut items), model.pop_front()); }
                    _ => {}
                }
                prop_assert_eq!(list.iter(&items).collect::<VecDeque<_>>(), model.clone());
                prop_assert_eq!(list.len as usize, model.len());
                prop_assert_eq!(list.tail, model.back().copied().unwrap_or(NONE));
            }
        }
    }
}
