//! Names of blocks with members that the engine numbers separately: each name has one id for each member.
//!
//! The daemon knows only names. A copy request holds its names from before it is sent until it has ended, so that the ids of a name
//! do not change during a copy.

use crate::{Error, Result};
use kvtide_wire::status::Status;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum members of a block. Members are cache groups of an engine; hybrid models have a few.
pub const MEMBERS_MAX: u16 = 64;
/// Maximum ids of all names: 64 MiB.
const IDS_MAX: usize = 1 << 24;
/// The invalid id: a name with this id is unassigned.
pub const UNNAMED: u32 = u32::MAX;

/// The table of names.
#[derive(Debug)]
pub(crate) struct Names {
    members: usize,
    /// Ids are below this.
    count: u32,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// `members` ids for each name, up to the highest name given.
    ids: Vec<u32>,
    /// Requests in flight that hold each name.
    held: Vec<u32>,
}

impl Names {
    /// Create an empty table for blocks of `members` members, with ids below `count`.
    pub fn new(members: u16, count: u32) -> Names {
        Names { members: usize::from(members.max(1)), count, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set the ids of names from `first` on, `members` ids each; [`UNNAMED`] for all ids of a name removes it. All names are
    /// changed, or none.
    ///
    /// # Errors
    /// [`Error::Options`]: incomplete names, or ids out of range. `Limit`: more names than a table holds. `State`: one of the names
    /// is held.
    pub fn set(&self, first: u32, ids: &[u32]) -> Result<()> {
        let bad = |why: String| Err(Error::Options { option: "names", why });
        let members = self.members;
        if !ids.len().is_multiple_of(members) {
            return bad(format!("{} ids; a block needs {members} for each name", ids.len()));
        }
        for (at, name) in ids.chunks_exact(members).enumerate() {
            let none = name.iter().filter(|id| **id == UNNAMED).count();
            let wrong = name.iter().position(|id| *id >= self.count);
            if let Some(member) = wrong.filter(|_| none != members) {
                let (id, count) = (name[member], self.count);
                return bad(format!(
                    "name {}: member {member} has id {id}, not below {count}",
                    u64::from(first) + at as u64
                ));
            }
        }
        let refused = |status| Err(Error::call("name blocks from name", u64::from(first), status));
        let (from, names) = (first as usize, ids.len() / members);
        let Some(end) = from.checked_add(names).filter(|end| *end <= IDS_MAX / members) else {
            return refused(Status::Limit);
        };
        let mut table = self.table();
        if table.held.iter().take(end).skip(from).any(|held| *held > 0) {
            return refused(Status::State);
        }
        if table.held.len() < end {
            table.ids.resize(end * members, UNNAMED);
            table.held.resize(end, 0);
        }
        table.ids[from * members..end * members].copy_from_slice(ids);
        Ok(())
    }

    /// Write the ids of a name into `ids`; further elements stay unchanged. Return whether the name is assigned.
    pub fn ids(&self, name: u32, ids: &mut [u32; MEMBERS_MAX as usize]) -> bool {
        let table = self.table();
        let at = (name as usize).saturating_mul(self.members);
        match table.ids.get(at..at.saturating_add(self.members)) {
            Some(found) if found[0] != UNNAMED => {
                ids[..found.len()].copy_from_slice(found);
                true
            }
            _ => false,
        }
    }

    /// Hold names until the returned value is dropped.
    ///
    /// # Errors
    /// `Range`: one of them is unassigned.
    pub fn hold(self: &Arc<Self>, names: &[u32]) -> std::result::Result<Held, Status> {
        let mut table = self.table();
        let named = |name: &u32| table.ids.get(*name as usize * self.members).is_some_and(|id| *id != UNNAMED);
        if !names.iter().all(named) {
            return Err(Status::Range);
        }
        names.iter().for_each(|name| table.held[*name as usize] += 1);
        Ok(Held { of: Arc::clone(self), names: names.into() })
    }
}

/// Names that a request holds.
#[derive(Debug)]
pub(crate) struct Held {
    of: Arc<Names>,
    names: Box<[u32]>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.of.table();
        self.names.iter().for_each(|name| table.held[*name as usize] -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn of(names: &Names, name: u32) -> Option<[u32; 3]> {
        let mut ids = [0; MEMBERS_MAX as usize];
        names.ids(name, &mut ids).then(|| [ids[0], ids[1], ids[2]])
    }

    #[test]
    fn names_are_refused_in_words() {
        let names = Arc::new(Names::new(3, 10));
        let why = |first, ids: &[u32]| names.set(first, ids).unwrap_err();
        assert!(why(0, &[1, 2]).to_string().contains("2 ids; a block needs 3"));
        assert!(why(4, &[1, 2, 3, 4, 10, 6]).to_string().contains("name 5: member 1 has id 10, not below 10"));
        assert!(
            why(4, &[1, UNNAMED, 3]).to_string().contains("name 4: member 1"),
            "a name has an id for each member, or none"
        );
        assert_eq!(why((IDS_MAX / 3) as u32, &[1, 2, 3]).status(), Status::Limit);
        assert_eq!(why(u32::MAX, &[1, 2, 3]).status(), Status::Limit);
        assert_eq!(of(&names, 4), None);
        names.set(4, &[1, 2, 3]).unwrap();
        assert_eq!((of(&names, 4), of(&names, 3), of(&names, 5)), (Some([1, 2, 3]), None, None));
        assert_eq!(names.hold(&[4, 3]).unwrap_err(), Status::Range);
        assert_eq!(names.hold(&[u32::MAX]).unwrap_err(), Status::Range);
    }

    #[test]
    fn a_held_name_stays_what_it_is() {
        let names = Arc::new(Names::new(3, 10));
        names.set(0, &[1, 2, 3, 4, 5, 6]).unwrap();
        let (first, second) = (names.hold(&[1, 1]).unwrap(), names.hold(&[1]).unwrap());
        names.set(0, &[7, 7, 7]).unwrap();
        assert_eq!(names.set(0, &[8, 8, 8, 9, 9, 9]).unwrap_err().status(), Status::State);
        assert_eq!((of(&names, 0), of(&names, 1)), (Some([7, 7, 7]), Some([4, 5, 6])), "all names change, or none");
        drop(first);
        assert_eq!(names.set(1, &[9, 9, 9]).unwrap_err().status(), Status::State);
        drop(second);
        names.set(1, &[UNNAMED; 3]).unwrap();
        assert_eq!(of(&names, 1), None);
    }

    proptest! {
        #[test]
        fn names_are_a_map(calls in prop::collection::vec((0u32..40, prop::collection::vec(prop::option::of([0u32..9, 0..9, 0..9]), 0..6)), 0..30)) {
            let (names, mut model) = (Names::new(3, 9), HashMap::new());
            for (first, given) in calls {
                let ids: Vec<u32> = given.iter().flat_map(|ids| ids.unwrap_or([UNNAMED; 3])).collect();
                names.set(first, &ids).unwrap();
                for (name, ids) in (first..).zip(given) {
                    match ids {
                        Some(ids) => model.insert(name, ids),
                        None => model.remove(&name),
                    };
                }
            }
            for name in 0..50 {
                prop_assert_eq!(of(&names, name), model.get(&name).copied());
            }
        }
    }
}
