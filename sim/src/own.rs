//! What engines do with memory of their own, drawn for a space.

use crate::base::Rng;

/// Engines' own blocks, as an episode has them.
#[derive(Clone, Debug)]
pub struct Own {
    /// How often an engine's thread asks something about them instead of what else it does, per thousand.
    pub share: u64,
    /// So many replicas, the first ones, have no tier 0: they do nothing else.
    bare: usize,
    /// Blocks of a session's own memory, counted apart by each member.
    pub blocks: u32,
    /// Members: planes of different ones are numbered apart, as cache groups of an engine are.
    pub members: u16,
    /// Leases that a session holds at once.
    pub leases: u32,
    /// Replicas' prompts are salted, every other one's alike.
    salted: bool,
}

impl Own {
    /// Draw it: nothing in four spaces of ten, nor where steps alone take all the time that there is.
    pub fn draw(rng: &mut Rng, deep: bool, replicas: usize, seq_blocks: u32) -> Own {
        let some = !deep && rng.chance(600);
        let share = if some { rng.between(50, 500) } else { 0 };
        let bare = if some && rng.chance(400) { rng.between(1, replicas as u64) as usize } else { 0 };
        Own {
            share,
            bare,
            blocks: rng.between(2, u64::from(seq_blocks) * 2) as u32,
            members: rng.pick(&[1, 1, 2, 3]),
            leases: if some { rng.between(1, 3) as u32 } else { 0 },
            salted: rng.chance(300),
        }
    }

    /// Return whether a replica's sessions have no tier 0.
    #[must_use]
    pub fn is_bare(&self, replica: usize) -> bool {
        replica < self.bare
    }

    /// Return the salt of a replica's prompts.
    #[must_use]
    pub fn salt(&self, replica: usize) -> u64 {
        if self.salted { replica as u64 % 2 } else { 0 }
    }
}
