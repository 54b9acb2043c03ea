//! How calls refer to the engine's own blocks: by their numbers, or by names if blocks have members that the engine numbers
//! separately. Each name has one id for each member.
//!
//! The daemon knows only names. A copy request holds its names from before it is sent until it has ended, so that the ids of a name
//! do not change during a copy.

use crate::{Error, Result, client::Refusal};
use kvtide_wire::status::Status;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum members of a block. Members are cache groups of an engine; hybrid models have a few.
pub const MEMBERS_MAX: u16 = 64;
/// Maximum ids of all names: 64 MiB.
const IDS_MAX: usize = 1 << 24;
/// The invalid id: a name with this id is unassigned.
pub const UNNAMED: u32 = u32::MAX;

/// How calls refer to the engine's own blocks.
#[derive(Clone, Debug, Default)]
pub(crate) enum Numbering {
    /// No blocks are registered.
    #[default]
    Nothing,
    /// By numbers below this.
    Numbers(u32),
    /// By names.
    Names(Arc<Names>),
}

const NO_BLOCKS: &str = "no blocks are registered: call set_blocks first";

impl Numbering {
    /// Check that all of a call's blocks exist. A call without blocks needs none.
    ///
    /// # Errors
    /// `State`: no blocks are registered. `Range`: there is no such block.
    pub fn check(&self, blocks: &[u32]) -> std::result::Result<(), Refusal> {
        match self {
            Numbering::Nothing if blocks.is_empty() => Ok(()),
            Numbering::Nothing => Err(Refusal::because(Status::State, NO_BLOCKS)),
            Numbering::Numbers(count) => {
                check_each(blocks, |block| block < *count, || format!("only {count} blocks are registered"))
            }
            Numbering::Names(names) => names.table().check(names.members, blocks),
        }
    }

    /// Check the blocks of a request, and hold their names, if they have names, until the returned value is dropped.
    ///
    /// # Errors
    /// As [`Numbering::check`].
    pub fn hold(&self, blocks: &[u32]) -> std::result::Result<Option<Held>, Refusal> {
        match self {
            Numbering::Names(names) => names.hold(blocks).map(Some),
            Numbering::Nothing | Numbering::Numbers(_) => self.check(blocks).map(|()| None),
        }
    }

    /// Return the table of names.
    ///
    /// # Errors
    /// `State`: blocks have no names.
    pub fn names(&self) -> std::result::Result<&Arc<Names>, Refusal> {
        const ONE_MEMBER: &str = "blocks have a single member, so loads and stores take their numbers, not names";
        match self {
            Numbering::Names(names) => Ok(names),
            Numbering::Numbers(_) => Err(Refusal::because(Status::State, ONE_MEMBER)),
            Numbering::Nothing => Err(Refusal::because(Status::State, NO_BLOCKS)),
        }
    }
}

/// Check that each block of a call exists. `why` says what a block without one lacks.
fn check_each(
    blocks: &[u32],
    exists: impl Fn(u32) -> bool,
    why: impl FnOnce() -> String,
) -> std::result::Result<(), Refusal> {
    match blocks.iter().position(|block| !exists(*block)) {
        Some(at) => Err(Refusal::because(Status::Range, format!("blocks[{at}] is {}; {}", blocks[at], why()))),
        None => Ok(()),
    }
}

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

impl Table {
    fn check(&self, members: usize, names: &[u32]) -> std::result::Result<(), Refusal> {
        let assigned = |name: u32| self.ids.get(name as usize * members).is_some_and(|id| *id != UNNAMED);
        check_each(names, assigned, || "this name has no ids: call name_blocks first".into())
    }
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
        let refused = |status, why: String| {
            Err(Error::refused("name blocks from name", u64::from(first), Refusal::because(status, why)))
        };
        let (from, names) = (first as usize, ids.len() / members);
        let Some(end) = from.checked_add(names).filter(|end| *end <= IDS_MAX / members) else {
            let most = IDS_MAX / members;
            return refused(Status::Limit, format!("{names} names from there on; names must be below {most}"));
        };
        let mut table = self.table();
        if let Some(at) = table.held.iter().take(end).skip(from).position(|held| *held > 0) {
            let name = from + at;
            return refused(Status::State, format!("a load or store of name {name} is in flight: wait for its end"));
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
    pub fn hold(self: &Arc<Self>, names: &[u32]) -> std::result::Result<Held, Refusal> {
        let mut table = self.table();
        table.check(self.members, names)?;
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
        assert_eq!(names.hold(&[4, 3]).unwrap_err().status, Status::Range);
        assert_eq!(names.hold(&[u32::MAX]).unwrap_err().status, Status::Range);
    }

    #[test]
    fn calls_have_blocks_that_exist() {
        let names = Arc::new(Names::new(3, 10));
        names.set(4, &[1, 2, 3]).unwrap();
        let all = [Numbering::Nothing, Numbering::Numbers(3), Numbering::Names(names)];
        let why = |numbering: &Numbering, blocks: &[u32]| {
            let refusal = numbering.check(blocks).unwrap_err();
            assert_eq!(numbering.hold(blocks).unwrap_err().status, refusal.status);
            (refusal.status, Error::refused("store blocks", 0, refusal).to_string())
        };
        for numbering in &all {
            numbering.check(&[]).unwrap();
            assert!(numbering.hold(&[]).is_ok());
        }
        assert_eq!(why(&all[0], &[0]), (Status::State, format!("store blocks 0: {NO_BLOCKS}")));
        all[1].check(&[2, 0]).unwrap();
        let beyond = "store blocks 0: blocks[1] is 3; only 3 blocks are registered".to_owned();
        assert_eq!(why(&all[1], &[2, 3, 9]), (Status::Range, beyond));
        all[2].check(&[4]).unwrap();
        let unnamed = "store blocks 0: blocks[0] is 5; this name has no ids: call name_blocks first".to_owned();
        assert_eq!(why(&all[2], &[5]), (Status::Range, unnamed));
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
