//! Log requests (`Note`) in flight to the index logs of the disks.

use crate::api::NONE;
use crate::lists::{Linked, Links, List};
use serde::{Deserialize, Serialize};

/// Kind of log request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NoteKind {
    Record,
    Erase,
    Flush,
}

/// One log request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    links: Links,
    live: bool,
    /// High half of its id, so that a stale id is detected.
    generation: u16,
    pub kind: NoteKind,
    /// The slot that it is about; none for a flush.
    pub slot: u32,
    /// Record: the log held no record of the slot before.
    pub fresh: bool,
}

impl Default for Note {
    fn default() -> Self {
        let (links, kind) = (Links::default(), NoteKind::Flush);
        Note { links, live: false, generation: 0, kind, slot: NONE, fresh: false }
    }
}

impl Note {
    pub fn new(kind: NoteKind, slot: u32, fresh: bool) -> Note {
        Note { kind, slot, fresh, ..Note::default() }
    }
}

impl Linked for Note {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Table of all log requests; its size limits how many are in flight.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Notes {
    recs: Vec<Note>,
    free: List,
}

impl Notes {
    pub fn new(count: u32) -> Notes {
        let mut notes = Notes { recs: vec![Note::default(); count as usize], ..Notes::default() };
        for i in 0..count {
            notes.free.push_back(&mut notes.recs, i);
        }
        notes
    }

    /// Return how many log requests may still be sent.
    pub fn free(&self) -> u32 {
        self.free.len
    }

    pub fn in_flight(&self) -> u32 {
        self.recs.len() as u32 - self.free.len
    }

    /// Take a free record and return the request's id. Return `None` if all are in flight.
    pub fn launch(&mut self, note: Note) -> Option<u32> {
        let at = self.free.pop_front(&mut self.recs)?;
        let generation = self.recs[at as usize].generation.wrapping_add(1);
        self.recs[at as usize] = Note { live: true, generation, ..note };
        Some(u32::from(generation) << 16 | at)
    }

    /// Free the record of a request that ended, and return it. Return `None` for a stale id.
    pub fn release(&mut self, id: u32) -> Option<Note> {
        let at = id & 0xffff;
        let rec = *self.recs.get(at as usize).filter(|n| n.live && u32::from(n.generation) == id >> 16)?;
        self.recs[at as usize] = Note { generation: rec.generation, ..Note::default() };
        self.free.push_back(&mut self.recs, at);
        Some(rec)
    }

    /// Return the requests in flight.
    pub fn live(&self) -> impl Iterator<Item = &Note> {
        self.recs.iter().filter(|n| n.live)
    }

    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<Note>()
    }
}
