//! A table with one entry for each session.

use crate::api::SessionId;
use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

/// One `T` for each session that can attach, found by the session's number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PerSession<T>(Vec<T>);

impl<T: Clone + Default> PerSession<T> {
    pub fn new(sessions: u16) -> PerSession<T> {
        PerSession(vec![T::default(); usize::from(sessions)])
    }
}

impl<T> PerSession<T> {
    /// Return the number of sessions that can attach.
    pub fn len(&self) -> u16 {
        self.0.len() as u16
    }

    pub fn get(&self, s: SessionId) -> Option<&T> {
        self.0.get(usize::from(s))
    }

    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// Return the bytes of the entries themselves.
    pub fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

impl<T> Index<SessionId> for PerSession<T> {
    type Output = T;
    fn index(&self, s: SessionId) -> &T {
        &self.0[usize::from(s)]
    }
}

impl<T> IndexMut<SessionId> for PerSession<T> {
    fn index_mut(&mut self, s: SessionId) -> &mut T {
        &mut self.0[usize::from(s)]
    }
}
