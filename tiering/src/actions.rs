//! The caller-owned buffer into which the core writes its actions: bounded, allocated once.

use crate::api::Action;

/// Most words of a result list, and most entries of a request's list; equals the words that the rings keep per tag.
pub const LIST_MAX: usize = 512;

/// Actions of one or more calls, with the arena that their lists point into. The caller drains it and then clears it.
#[derive(Clone, Debug)]
pub struct ActionBuf {
    actions: Vec<Action>,
    words: Vec<u32>,
    actions_max: usize,
    words_max: usize,
}

impl ActionBuf {
    /// Least room with which the core always makes progress: one action with a full list.
    pub const ACTIONS_MIN: usize = 1;

    /// A buffer for `actions_max` actions and `words_max` list words, at least [`ActionBuf::ACTIONS_MIN`] and [`LIST_MAX`].
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

    /// A buffer with exactly so much room, however little, for replay.
    pub(crate) fn with_room(actions_max: usize, words_max: usize) -> ActionBuf {
        ActionBuf { actions: Vec::new(), words: Vec::new(), actions_max, words_max }
    }

    /// What the core wants done, in order.
    #[must_use]
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// The list that an [`Action::Complete`] of this buffer names.
    #[must_use]
    pub fn list(&self, list: (u32, u32)) -> &[u32] {
        let (start, len) = (list.0 as usize, list.1 as usize);
        self.words.get(start..start.saturating_add(len)).unwrap_or(&[])
    }

    /// Forgets everything, keeps the memory.
    pub fn clear(&mut self) {
        self.actions.clear();
        self.words.clear();
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Actions that still fit.
    #[must_use]
    pub fn room(&self) -> usize {
        self.actions_max - self.actions.len()
    }

    /// List words that still fit.
    #[must_use]
    pub fn words_room(&self) -> usize {
        self.words_max - self.words.len()
    }

    /// Starts a list; its words follow by [`ActionBuf::push_word`].
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
