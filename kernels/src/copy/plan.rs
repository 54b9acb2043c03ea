//! Which fragment goes which way: a function of the copies alone.

use super::{Copy, batch::Piece};
use crate::params::CopyFragment;

/// A launch of the copy kernel: which fragments of the list, and how long the longest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub first: u32,
    pub count: u32,
    pub bytes_max: u32,
}

/// A batch, split. Its vectors are kept from one batch to the next.
#[derive(Default)]
pub(super) struct Plan {
    joined: Vec<Copy>,
    /// For the copy engines.
    pub engines: Vec<Piece>,
    /// For the kernel, all of them.
    pub fragments: Vec<CopyFragment>,
    /// The kernel's launches, over `fragments` from first to last.
    pub launches: Vec<Launch>,
}

impl Plan {
    /// Joins neighbours, sends fragments of at least `crossover` bytes to the copy engines and the others to the kernel, and cuts
    /// the latter into launches of at most `launch_bytes`.
    pub fn make(&mut self, copies: &[Copy], crossover: usize, launch_bytes: u32) {
        self.join(copies);
        self.engines.clear();
        self.fragments.clear();
        for copy in &self.joined {
            if copy.bytes >= crossover {
                self.engines.push(Piece { to: copy.to, from: copy.from, bytes: copy.bytes });
            } else {
                cut(*copy, launch_bytes, &mut self.fragments);
            }
        }
        self.launches.clear();
        let mut held = 0_u32;
        for (at, fragment) in self.fragments.iter().enumerate() {
            match self.launches.last_mut() {
                Some(launch) if fragment.bytes <= launch_bytes - held => {
                    launch.count += 1;
                    launch.bytes_max = launch.bytes_max.max(fragment.bytes);
                }
                _ => {
                    held = 0;
                    self.launches.push(Launch { first: at as u32, count: 1, bytes_max: fragment.bytes });
                }
            }
            held += fragment.bytes;
        }
    }

    /// Copies whose sources and targets both follow one another become one.
    fn join(&mut self, copies: &[Copy]) {
        self.joined.clear();
        self.joined.extend(copies.iter().filter(|copy| copy.bytes > 0));
        self.joined.sort_unstable_by_key(|copy| copy.from);
        self.joined.dedup_by(|next, held| {
            let follows = held.from + held.bytes as u64 == next.from && held.to + held.bytes as u64 == next.to;
            if follows {
                held.bytes += next.bytes;
            }
            follows
        });
    }
}

/// A fragment that no launch can be larger than.
fn cut(copy: Copy, launch_bytes: u32, into: &mut Vec<CopyFragment>) {
    let mut done = 0;
    while done < copy.bytes {
        let bytes = (copy.bytes - done).min(launch_bytes as usize) as u32;
        into.push(CopyFragment { from: copy.from + done as u64, to: copy.to + done as u64, bytes, reserved: 0 });
        done += bytes as usize;
    }
}

#[cfg(test)]
mod tests;
