//! Who waits for host memory that the node could not give at once.
//!
//! Before a space is told no, every other one that could help is asked to give back what is idle there, and all have answered, or
//! had [`ANSWER`] to. So nobody is refused for what an engine holds that has let go of it, or that has left a moment ago.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long the others may take to answer. Their threads answer within microseconds; one that hangs holds up nobody for longer.
const ANSWER: Duration = Duration::from_millis(500);
/// After a question that brought nothing a space is refused without another one for so long: memory that is full for good is asked for
/// often.
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
    /// Spaces that were asked and have not answered: they are asked nothing more until they do.
    asked: BTreeSet<u32>,
    /// Spaces that were refused since memory came back last.
    refused: BTreeSet<u32>,
    /// For whose sake others were asked since memory came back last, and when.
    questions: BTreeMap<u32, Instant>,
}

impl Needs {
    /// A space waits for the others' answers: `ask` sends a question, and says whether it could. False: there is nobody to wait for.
    pub fn wait(
        &mut self,
        (space, class): (u32, u8),
        helpers: impl Iterator<Item = u32>,
        now: Instant,
        ask: impl Fn(u32) -> bool,
    ) -> bool {
        let lately = self.questions.get(&space).is_some_and(|at| now.saturating_duration_since(*at) < AGAIN);
        let mut unheard = BTreeSet::new();
        for helper in helpers {
            if !lately && !self.asked.contains(&helper) && ask(helper) {
                self.asked.insert(helper);
            }
            // What was asked for another's sake, or for another size class, is as good.
            if self.asked.contains(&helper) {
                unheard.insert(helper);
            }
        }
        if !lately {
            self.questions.insert(space, now);
        }
        let hope = !unheard.is_empty();
        if hope {
            self.waiting.push(Need { space, class, unheard, due: now + ANSWER });
        }
        hope
    }

    /// A space has given back what it could.
    pub fn heard(&mut self, space: u32) {
        self.asked.remove(&space);
        for need in &mut self.waiting {
            need.unheard.remove(&space);
        }
    }

    /// A space has ended.
    pub fn gone(&mut self, space: u32) {
        self.heard(space);
        self.waiting.retain(|need| need.space != space);
        self.refused.remove(&space);
        self.questions.remove(&space);
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
    pub fn came_back(&mut self) -> BTreeSet<u32> {
        self.questions.clear();
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
        assert!(!needs.wait((1, 0), [].into_iter(), now, |_| true), "nobody to ask");
        needs.came_back();
        assert!(needs.wait((1, 0), [2, 3].into_iter(), now, |_| true));
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
    fn a_second_size_class_waits_for_the_question_of_the_first() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        assert!(needs.wait((1, 0), [2].into_iter(), now, |_| true));
        let never = |_| panic!("it has yet to answer");
        assert!(needs.wait((1, 1), [2].into_iter(), now, never));
        assert!(needs.wait((3, 0), [2].into_iter(), now, never), "nor for another space");
        needs.heard(2);
        assert!(needs.take().iter().all(|need| need.is_over(now)));
        assert!(!needs.wait((1, 0), [2].into_iter(), now, |_| panic!("it has just said that there is nothing")));
        assert!(needs.wait((1, 0), [2].into_iter(), now + AGAIN, |_| true));
        needs.heard(2);
        needs.came_back();
        assert!(needs.wait((1, 0), [2].into_iter(), now + AGAIN, |_| true), "it brought something");
    }

    #[test]
    fn one_that_cannot_be_asked_is_not_waited_for_and_who_was_refused_hears_once() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        assert!(!needs.wait((1, 0), [2].into_iter(), now, |_| false));
        needs.refuse(1);
        needs.refuse(2);
        needs.gone(2);
        assert_eq!(needs.came_back(), [1].into());
        assert!(needs.came_back().is_empty());
    }
}
