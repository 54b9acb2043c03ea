//! Publishing more blocks than one request holds.

use kvtide_wire::{
    entry::{Level, Submission},
    lists::HASHES_MAX,
};

/// Blocks that are being published, in as many requests as needed.
///
/// If one request cannot hold them, all blocks are published first and then requested at their level. So all of them can be found,
/// and are being written back, at the same time.
#[derive(Debug)]
pub(super) struct Publishing {
    pub seq: u32,
    first: u32,
    parent: u128,
    hashes: Vec<u128>,
    /// Hashes already sent at the level now requested.
    sent: usize,
    asked: Level,
    level: Level,
    /// The lowest level that the requests reached.
    pub reached: Level,
}

impl Publishing {
    /// Start to publish `hashes` from block `first`. Return the first request too.
    pub fn new(seq: u32, first: u32, parent: u128, hashes: &[u128], level: Level) -> (Self, (Submission, Vec<u128>)) {
        let asked = if hashes.len() > HASHES_MAX { Level::Published } else { level };
        let reached = Level::Durable;
        let hashes = hashes.to_vec();
        let mut publishing = Publishing { seq, first, parent, hashes, sent: 0, asked, level, reached };
        let request = publishing.request();
        (publishing, request)
    }

    fn request(&mut self) -> (Submission, Vec<u128>) {
        let parent = self.sent.checked_sub(1).map_or(self.parent, |last| self.hashes[last]);
        let rest = &self.hashes[self.sent..];
        let hashes = rest[..rest.len().min(HASHES_MAX)].to_vec();
        let submission = Submission {
            seq: self.seq,
            first: self.first + self.sent as u32,
            count: hashes.len() as u32,
            flags: self.asked as u16,
            hash: [parent as u64, (parent >> 64) as u64],
            ..Submission::default()
        };
        self.sent += hashes.len();
        (submission, hashes)
    }

    /// Return block indices and the hashes of their blocks.
    pub fn names(&self) -> impl Iterator<Item = (u32, u128)> + '_ {
        (self.first..).zip(self.hashes.iter().copied())
    }

    /// Record the level that the last request reached. Return the next request, if any.
    pub fn answered(&mut self, level: Level) -> Option<(Submission, Vec<u128>)> {
        if self.asked == self.level {
            self.reached = self.reached.min(level);
        }
        if self.sent == self.hashes.len() {
            if self.asked == self.level {
                return None;
            }
            (self.asked, self.sent) = (self.level, 0);
        }
        Some(self.request())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the requests sent for `count` hashes (first block, count, level, parent), and the level reached.
    fn sent(count: usize, level: Level, answers: &[Level]) -> (Vec<(u32, u32, u16, u64)>, Level) {
        let hashes: Vec<u128> = (1..=count as u128).collect();
        let (mut publishing, first) = Publishing::new(3, 10, 77, &hashes, level);
        let (mut seen, mut next, mut answers) = (Vec::new(), Some(first), answers.iter());
        while let Some((submission, list)) = next {
            assert_eq!(submission.count as usize, list.len());
            seen.push((submission.first, submission.count, submission.flags, submission.hash[0]));
            next = publishing.answered(*answers.next().expect("an answer for each request"));
        }
        assert!(answers.next().is_none(), "a request for each answer");
        (seen, publishing.reached)
    }

    #[test]
    fn many_blocks_are_published_first_and_asked_for_their_level_then() {
        use Level::{Durable, Published, Stored};
        assert_eq!(sent(5, Stored, &[Stored]), (vec![(10, 5, 1, 77)], Stored));
        assert_eq!(sent(5, Durable, &[Published]), (vec![(10, 5, 2, 77)], Published));
        let max = HASHES_MAX as u32;
        let parts = |flags| [(10, max, flags, 77), (10 + max, max, flags, u64::from(max))];
        let rest = |flags| (10 + 2 * max, 1, flags, 2 * u64::from(max));
        let published = [&parts(0)[..], &[rest(0)]].concat();
        let all = [&published[..], &parts(1), &[rest(1)]].concat();
        let count = 2 * HASHES_MAX + 1;
        let first = [Published; 3];
        assert_eq!(sent(count, Published, &first), (published.clone(), Published));
        assert_eq!(sent(count, Stored, &[&first[..], &[Stored, Durable, Stored]].concat()), (all.clone(), Stored));
        assert_eq!(sent(count, Stored, &[&first[..], &[Stored, Published, Stored]].concat()), (all, Published));
    }
}
