//! Assigns fragments to copy engines and kernel, as a function of the copies only.

use super::{Copy, batch::Piece};
use crate::params::CopyFragment;

/// A launch of the copy kernel: its fragments of the list, and the length of the longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub first: u32,
    pub count: u32,
    pub bytes_max: u32,
}

/// A batch, split. Its vectors are reused from one batch to the next.
#[derive(Default)]
pub(super) struct Plan {
    joined: Vec<Copy>,
    /// For the copy engines.
    pub engines: Vec<Piece>,
    /// All fragments for the kernel.
    pub fragments: Vec<CopyFragment>,
    /// The kernel's launches; they cover `fragments` in order.
    pub launches: Vec<Launch>,
}

impl Plan {
    /// Join neighbours, send fragments of at least `crossover` bytes to the copy engines and the others to the kernel, and cut the
    /// latter into launches of at most `launch_bytes`.
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

    /// Join copies with adjacent sources and adjacent targets in one region.
    fn join(&mut self, copies: &[Copy]) {
        self.joined.clear();
        self.joined.extend(copies.iter().filter(|copy| copy.bytes > 0));
        self.joined.sort_unstable_by_key(|copy| copy.from);
        self.joined.dedup_by(|next, held| {
            let end = held.bytes as u64;
            let follows = held.region == next.region && held.from + end == next.from && held.to + end == next.to;
            if follows {
                held.bytes += next.bytes;
            }
            follows
        });
    }
}

/// Cut a copy into fragments that fit into a launch.
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
