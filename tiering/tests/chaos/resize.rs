//! Tier 0 grows and shrinks: after a successful shrink the removed frames are empty and stay so.

use super::{Asked, Chaos};
use kvtide_fake::Done;
use kvtide_tiering::api::*;

impl Chaos {
    pub fn resize(&mut self, s: SessionId) {
        let classes = self.w.core.classes().to_vec();
        let class = self.rng.below(classes.len() as u64) as usize;
        let (_, max, _) = self.w.agents[&s].sizes[class];
        let least = classes[class].planes.max(2) - u32::from(self.rng.one_in(20));
        let frames = least + self.rng.below(u64::from(max - least + 1)) as u32 + u32::from(self.rng.one_in(20));
        if self.pending.iter().any(|(k, a)| k.0 == s && matches!(a, Asked::Resize { class: c, .. } if *c == class)) {
            let done = self.w.call(s, Request::Tier0Resize { class: class as u8, frames });
            return assert!(matches!(done.status, Status::State | Status::Range), "two at once: {done:?}");
        }
        // To grow, the memory must exist first.
        let size = &mut self.w.agents.get_mut(&s).unwrap().sizes[class].2;
        let before = *size;
        *size = before.max(frames.min(max));
        let timeout = 1 + self.rng.below(4_000);
        let request = Request::Tier0Resize { class: class as u8, frames };
        if self.ask_within(s, request, Asked::Resize { class, frames, before }, timeout).is_none() {
            self.w.agents.get_mut(&s).unwrap().sizes[class].2 = before;
        }
    }

    pub fn resized(&mut self, s: SessionId, (class, frames, before): (usize, u32, u32), done: &Done) {
        let planes = self.w.core.classes()[class].planes;
        let agent = self.w.agents.get_mut(&s).unwrap();
        let (base, max, size) = &mut agent.sizes[class];
        *size = if done.status == Status::Ok { frames } else { before };
        match done.status {
            Status::Ok => assert_eq!(done.value, u64::from(frames)),
            Status::Range => assert!(frames > *max || frames < planes.max(2)),
            // A shrink fits only if disks take the evicted pages, and they may fail.
            Status::Busy | Status::NoSpace | Status::TimedOut | Status::Canceled | Status::Io => {
                assert!(frames < before)
            }
            status => panic!("resize to {frames} of {max}: {status:?}"),
        }
        self.shrunk += u64::from(done.status == Status::Ok && frames < before);
        let gone = *base + *size..*base + *max;
        let shown: Vec<_> = agent.table.iter().filter(|(_, f)| gone.contains(f)).collect();
        assert!(shown.is_empty(), "session {s} class {class}: {shown:?} in frames {gone:?}, which are gone");
    }
}
