//! The caller-owned buffer for the actions of the core: bounded, allocated once.

use crate::api::Action;

/// Maximum words of a result list and maximum entries of a request's list; equals the words that the rings have per tag.
pub const LIST_MAX: usize = 512;

/// Actions of one or more calls, with the arena of their lists. The caller executes the actions and then clears the buffer.
#[derive(Clone, Debug)]
pub struct ActionBuf {
    actions: Vec<Action>,
    words: Vec<u32>,
    actions_max: usize,
    words_max: usize,
}

impl ActionBuf {
    /// Minimum room with which the core always makes progress: one action with a full list.
    pub const ACTIONS_MIN: usize = 1;

    /// Create a buffer for `actions_max` actions and `words_max` list words, at least [`ActionBuf::ACTIONS_MIN`] and [`LIST_MAX`].
    #[must_use]
    pub fn new(actions_max: usize, words_max: usize) -> ActionBuf {
        let (actions_max, words_max) = (actions_max.max(Self::ACTIONS_MIN), words_max.max(LIST_MAX));
        ActionBuf {
            actions: Vec::with_capacity(actions_max),
            words: Vec::with_capacity(words_max),
            actions_max,
            words_max,
        }
    }

    /// Create a buffer with exactly this room, without the minimum, for replay.
    pub(crate) fn with_room(actions_max: usize, words_max: usize) -> ActionBuf {
        ActionBuf { actions: Vec::new(), words: Vec::new(), actions_max, words_max }
    }

    /// Return the actions in the order of execution.
    #[must_use]
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// Return the list of an action in this buffer.
    #[must_use]
    pub fn list(&self, list: (u32, u32)) -> &[u32] {
        let (start, len) = (list.0 as usize, list.1 as usize);
        self.words.get(start..start.saturating_add(len)).unwrap_or(&[])
    }

    /// Remove all actions and lists; keep the memory.
    pub fn clear(&mut self) {
        self.actions.clear();
        self.words.clear();
    }

    /// Return whether the buffer has no actions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Return the number of actions that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.actions_max - self.actions.len()
    }

    /// Return the number of list words that still fit.
    #[must_use]
    pub fn words_room(&self) -> usize {
        self.words_max - self.words.len()
    }

    /// Start a list and return its first index; its words follow by [`ActionBuf::push_word`].
    pub(crate) fn list_start(&self) -> u32 {
        self.words.len() as u32
    }

    pub(crate) fn push_word(&mut self, word: u32) {
        debug_assert!(self.words.len() < self.words_max);
        self.words.push(word);
    }

    pub(crate) fn push(&mut self, action: Action) {
        debug_assert!(self.actions.len() < self.actions_max);
        self.actions.push(action);
    }
}
