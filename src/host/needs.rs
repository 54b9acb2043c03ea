//! Who waits for host memory that the node could not give at once.
//!
//! Before a space is told no, every other one that holds memory is asked to give back what is idle there, and all have answered, or
//! had [`ANSWER`] to. So nobody is refused for what an engine holds that has let go of it, or that has left a moment ago.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the others may take to answer. Their threads answer within microseconds; one that hangs holds up nobody for longer.
const ANSWER: Duration = Duration::from_millis(50);
/// A space that was refused has the others asked again after this time at the earliest: memory that is full for good is asked for often.
const AGAIN: Duration = Duration::from_millis(10);

/// A space waits for a slab of a size class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub space: u32,
    pub class: u8,
    /// Spaces that have not answered.
    unheard: BTreeSet<u32>,
    due: Instant,
}

impl Need {
    /// Whether nothing more is to be hoped for.
    pub fn is_over(&self, now: Instant) -> bool {
        self.unheard.is_empty() || self.due <= now
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Needs {
    waiting: Vec<Need>,
    /// Spaces that were refused since memory came back last.
    refused: BTreeSet<u32>,
    /// When a space last had the others asked.
    asked: BTreeMap<u32, Instant>,
}

impl Needs {
    /// Whether the others are to be asked for the sake of a space; if so, they count as asked now.
    pub fn ask(&mut self, space: u32, now: Instant) -> bool {
        let lately = self.asked.get(&space).is_some_and(|at| now.saturating_duration_since(*at) < AGAIN);
        if !lately {
            self.asked.insert(space, now);
        }
        !lately
    }

    /// A space waits for those that were asked.
    pub fn wait(&mut self, space: u32, class: u8, unheard: BTreeSet<u32>, now: Instant) {
        self.waiting.push(Need { space, class, unheard, due: now + ANSWER });
    }

    /// A space has given back what it could.
    pub fn heard(&mut self, space: u32) {
        for need in &mut self.waiting {
            need.unheard.remove(&space);
        }
    }

    /// A space has ended.
    pub fn gone(&mut self, space: u32) {
        self.heard(space);
        self.waiting.retain(|need| need.space != space);
        self.refused.remove(&space);
        self.asked.remove(&space);
    }

    /// All that wait, in the order in which they asked; who still waits is put back by [`Needs::keep`].
    pub fn take(&mut self) -> Vec<Need> {
        std::mem::take(&mut self.waiting)
    }

    /// It waits on.
    pub fn keep(&mut self, need: Need) {
        self.waiting.push(need);
    }

    /// A space was told no: it wants to hear when memory comes back.
    pub fn refuse(&mut self, space: u32) {
        self.refused.insert(space);
    }

    /// Memory came back: who is to hear of it, once.
    pub fn take_refused(&mut self) -> BTreeSet<u32> {
        std::mem::take(&mut self.refused)
    }

    /// When the first of those that wait has waited long enough.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|need| need.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_over_when_all_have_answered_or_ended_or_its_time_has() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        assert!(needs.ask(1, now));
        needs.wait(1, 0, [2, 3].into(), now);
        needs.heard(2);
        let [need] = &needs.take()[..] else { panic!("one waits") };
        assert!(!need.is_over(now) && need.is_over(now + ANSWER));
        needs.keep(need.clone());
        assert_eq!(needs.due(), Some(now + ANSWER));
        needs.gone(3);
        let [need] = &needs.take()[..] else { panic!("one waits") };
        assert!(need.is_over(now));
        needs.keep(need.clone());
        needs.gone(1);
        assert_eq!((needs.take(), needs.due()), (vec![], None));
    }

    #[test]
    fn the_others_are_not_asked_again_and_again_and_who_was_refused_hears_once() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        assert!(needs.ask(1, now) && !needs.ask(1, now) && needs.ask(2, now) && needs.ask(1, now + AGAIN));
        needs.refuse(1);
        needs.refuse(2);
        needs.gone(2);
        assert_eq!(needs.take_refused(), [1].into());
        assert!(needs.take_refused().is_empty());
    }
}
