//! Engines' use of their own memory, drawn for a space.

use crate::base::Rng;

/// Engines' own blocks in an episode.
#[derive(Clone, Debug)]
pub struct Own {
    /// How often an engine's thread sends a request about them instead of another action, per thousand.
    pub share: u64,
    /// Number of replicas, from the first, without tier 0: they do nothing else.
    bare: usize,
    /// Blocks of a session's own memory, counted separately by each member.
    pub blocks: u32,
    /// Members: planes of different members have separate ids, as cache groups of an engine do.
    pub members: u16,
    /// Maximum leases of a session at one time.
    pub leases: u32,
    /// Prompts of replicas are salted; every second replica has the same salt.
    salted: bool,
}

impl Own {
    /// Draw it: no own memory in four spaces of ten, nor if steps alone take all the available time.
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
