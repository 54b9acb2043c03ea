//! Publish: make blocks findable by their hashes.

use super::{
    Answered, OTHER_PLACE, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work,
    part, place,
};
use kvtide_types::Level;
use kvtide_wire::lists::HASHES_MAX;

/// Blocks that are being published, in as many requests as needed.
///
/// If one request cannot hold them, all blocks are published first and then requested at their level. So all of them can be found,
/// and are being written back, at the same time.
#[derive(Debug)]
pub struct Publish {
    seq: u32,
    first: u32,
    parent: u128,
    hashes: Vec<u128>,
    /// Hashes already published at the level now requested.
    at: usize,
    asked: Level,
    level: Level,
    /// The lowest level that the requests reached.
    reached: Level,
}

impl Publish {
    pub fn begin(
        sequences: &mut Sequences,
        session: &Session,
        seq: u32,
        (first, parent): (u32, u128),
        hashes: &[u128],
        level: Level,
    ) -> Result<Started, Refusal> {
        sequences.seq(seq)?;
        let page_tokens = u64::from(session.shared.geometry().bounds().page_tokens);
        let (end, sealed) =
            (u64::from(first) + hashes.len() as u64, session.shared.seqs().committed(seq) / page_tokens);
        if end > sealed {
            let why = format!("blocks {first} to {end}; {sealed} blocks are sealed: commit their tokens first");
            return Err(Refusal::because(Status::State, why));
        }
        if hashes.is_empty() {
            return Ok(Started::Done(Outcome::Level(level)));
        }
        place(first, parent, hashes)?;
        Ok(Started::Send(Work::Publish(Publish::new(seq, (first, parent), hashes, level))))
    }

    fn new(seq: u32, (first, parent): (u32, u128), hashes: &[u128], level: Level) -> Publish {
        let asked = if hashes.len() > HASHES_MAX { Level::Published } else { level };
        Publish { seq, first, parent, hashes: hashes.to_vec(), at: 0, asked, level, reached: Level::Durable }
    }

    /// Record the level that the last request reached. Return false if no request is left.
    fn go_on(&mut self, level: Level) -> bool {
        self.at += part(&self.hashes, self.at).len();
        let last = self.asked == self.level;
        if last {
            self.reached = self.reached.min(level);
        }
        if self.at < self.hashes.len() {
            return true;
        }
        (self.asked, self.at) = (self.level, 0);
        !last
    }
}

impl Operation for Publish {
    fn request(&self) -> WireRequest<'_> {
        let Publish { seq, first, at, asked, .. } = *self;
        let parent = at.checked_sub(1).map_or(self.parent, |last| self.hashes[last]);
        let hashes = part(&self.hashes, at);
        WireRequest::Publish { seq, first: first + at as u32, parent, hashes, level: asked }
    }

    fn why(&self, _: &Session, status: Status) -> Option<String> {
        match status {
            Status::Invalid => Some(OTHER_PLACE.into()),
            Status::State => Some("a block was published under another hash, or another call is in flight".into()),
            _ => None,
        }
    }

    fn answered(&mut self, _: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        let level = reply.level().ok_or(Status::Protocol);
        reply.check(level.is_ok())?;
        if self.go_on(level?) {
            return Ok(None);
        }
        for (index, name) in (self.first..).zip(&self.hashes) {
            session.shared.seqs().block(self.seq, index).inspect(|block| session.attention.named(*block, *name));
        }
        Ok(Some(Outcome::Level(self.reached)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the requests sent for `count` hashes (first block, count, level, parent), and the level reached.
    fn sent(count: usize, level: Level, answers: &[Level]) -> (Vec<(u32, u32, u16, u64)>, Level) {
        let hashes: Vec<u128> = (1..=count as u128).collect();
        let mut publish = Publish::new(3, (10, 77), &hashes, level);
        let (mut seen, mut answers) = (Vec::new(), answers.iter());
        loop {
            let (sent, list) = kvtide_wire::request::encode(publish.request());
            assert_eq!(sent.count as usize, list.hashes.len());
            seen.push((sent.first, sent.count, sent.flags, sent.hash[0]));
            if !publish.go_on(*answers.next().expect("an answer for each request")) {
                break;
            }
        }
        assert!(answers.next().is_none(), "a request for each answer");
        (seen, publish.reached)
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
