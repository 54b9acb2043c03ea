//! Requests for host memory that wait for other spaces.
//!
//! Before the node refuses a request, it asks all other useful spaces for idle slabs, which must answer within [`ANSWER`]. If no
//! slab comes back, it asks one space at a time to empty a slab of cached blocks, in the order of `Node::giver`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Deadline for answers about idle slabs. Threads answer within microseconds; a hung thread delays a request no longer than this.
const ANSWER: Duration = Duration::from_millis(500);
/// Minimum interval between two rounds of questions for the same space, unless memory was returned in between. A space with full
/// memory repeats its request often.
const AGAIN: Duration = Duration::from_millis(10);

/// Total deadline of a request once spaces empty slabs; longer than one space waits for its disk.
const EMPTIED: Duration = Duration::from_secs(2);

/// A space's request for a slab of a size class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub space: u32,
    pub class: u8,
    /// NUMA node on which the slab is best.
    pub numa_node: Option<u16>,
    /// Spaces that have not answered.
    unheard: BTreeSet<u32>,
    /// Spaces that returned nothing when asked for cached memory.
    empty: BTreeSet<u32>,
    /// Spaces are being asked for cached memory, no longer for idle memory alone.
    cached: bool,
    /// No further space is asked.
    over: bool,
    began: Instant,
}

impl Need {
    /// Return true if one more space may be asked for cached memory. Spaces that missed the deadline for idle memory are skipped.
    pub fn may_ask_cached(&mut self, now: Instant) -> bool {
        if !self.cached && (self.unheard.is_empty() || self.due() <= now) {
            self.cached = true;
            self.empty.append(&mut self.unheard);
        }
        self.unheard.is_empty() && !self.is_over(now)
    }

    /// Return true if an answer is pending and the deadline has not passed.
    pub fn waits(&self, now: Instant) -> bool {
        !self.unheard.is_empty() && !self.is_over(now)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.over || self.due() <= now
    }

    /// Return true if the space has no memory to return.
    pub fn has_nothing(&self, space: u32) -> bool {
        self.empty.contains(&space)
    }

    fn due(&self) -> Instant {
        self.began + if self.cached { EMPTIED } else { ANSWER }
    }
}

/// All waiting requests.
#[derive(Debug, Default)]
pub(super) struct Needs {
    waiting: Vec<Need>,
    /// Spaces with an open question; true: for cached memory. A space has at most one open question.
    asked: BTreeMap<u32, bool>,
    /// Spaces refused since memory was last returned.
    refused: BTreeSet<u32>,
    /// Time of the last round of questions for each space, since memory was last returned.
    questions: BTreeMap<u32, Instant>,
}

impl Needs {
    /// Ask other spaces for idle slabs on behalf of a space. `ask` sends a question and returns false if it could not. The request
    /// ends at once if no answer is pending and the last round for the same space was less than [`AGAIN`] ago.
    pub fn ask_idle(
        &mut self,
        (space, class, numa_node): (u32, u8, Option<u16>),
        helpers: impl Iterator<Item = u32>,
        now: Instant,
        ask: impl Fn(u32) -> bool,
    ) -> Need {
        let lately = self.questions.get(&space).is_some_and(|at| now.saturating_duration_since(*at) < AGAIN);
        let mut unheard = BTreeSet::new();
        for helper in helpers {
            if !lately && !self.asked.contains_key(&helper) && ask(helper) {
                self.asked.insert(helper, false);
            }
            // An answer to a question for another space or size class counts too.
            if self.asked.contains_key(&helper) {
                unheard.insert(helper);
            }
        }
        if !lately {
            self.questions.insert(space, now);
        }
        let over = lately && unheard.is_empty();
        Need { space, class, numa_node, unheard, empty: BTreeSet::new(), cached: false, over, began: now }
    }

    /// Ask a space to empty a slab of cached blocks. If a question to it is still open, wait for that answer first.
    pub fn ask_cached(&mut self, need: &mut Need, giver: u32, ask: impl Fn(u32) -> bool) {
        if self.asked.contains_key(&giver) || ask(giver) {
            self.asked.entry(giver).or_insert(true);
            need.unheard.insert(giver);
        } else {
            need.empty.insert(giver);
        }
    }

    /// Record a space's answer; `gave`: it returned a slab.
    pub fn heard(&mut self, space: u32, gave: bool) {
        let cached = self.asked.remove(&space) == Some(true);
        for need in &mut self.waiting {
            // A space without idle memory may still have cached blocks.
            if need.unheard.remove(&space) && cached && !gave {
                need.empty.insert(space);
            }
        }
    }

    /// Remove a space that has ended.
    pub fn gone(&mut self, space: u32) {
        self.heard(space, false);
        self.waiting.retain(|need| need.space != space);
        self.refused.remove(&space);
        self.questions.remove(&space);
    }

    /// Take all waiting requests, oldest first. [`Needs::keep`] returns those that still wait.
    pub fn take(&mut self) -> Vec<Need> {
        std::mem::take(&mut self.waiting)
    }

    /// Keep a request waiting.
    pub fn keep(&mut self, need: Need) {
        self.waiting.push(need);
    }

    /// Remember a refused space, to notify it when memory is returned.
    pub fn refuse(&mut self, space: u32) {
        self.refused.insert(space);
    }

    /// Record that memory was returned; take the spaces to notify.
    pub fn came_back(&mut self) -> BTreeSet<u32> {
        self.questions.clear();
        std::mem::take(&mut self.refused)
    }

    /// Return the earliest deadline of the waiting requests.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(Need::due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(needs: &mut Needs, space: u32, helpers: &[u32], now: Instant) -> Need {
        needs.ask_idle((space, 0, None), helpers.iter().copied(), now, |_| true)
    }

    #[test]
    fn cached_blocks_are_asked_for_when_all_have_answered_or_ended_or_their_time_is_over() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        let mut need = ask(&mut needs, 1, &[2, 3], now);
        assert!(need.waits(now) && !need.may_ask_cached(now));
        needs.keep(need.clone());
        assert_eq!(needs.due(), Some(now + ANSWER));
        needs.heard(2, false);
        needs.gone(3);
        let [answered] = &mut needs.take()[..] else { panic!("one waits") };
        assert!(!answered.has_nothing(2), "no idle memory, but perhaps cached blocks");
        assert!(answered.may_ask_cached(now) && !answered.waits(now));
        // A space that missed the deadline is not asked for cached memory.
        assert!(need.may_ask_cached(now + ANSWER) && need.has_nothing(2) && need.has_nothing(3));
        assert!(!need.may_ask_cached(now + EMPTIED), "the deadline has passed");
        needs.keep(need);
        needs.gone(1);
        assert_eq!((needs.take(), needs.due()), (vec![], None));
    }

    #[test]
    fn one_space_after_the_other_is_asked_for_cached_blocks() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        let mut need = ask(&mut needs, 1, &[], now);
        for (giver, gave) in [(2, true), (3, false)] {
            assert!(need.may_ask_cached(now));
            needs.ask_cached(&mut need, giver, |_| true);
            assert!(need.waits(now) && !need.may_ask_cached(now));
            needs.keep(need);
            needs.heard(giver, gave);
            need = needs.take().pop().unwrap();
            assert_eq!((need.waits(now), need.has_nothing(giver)), (false, !gave));
        }
        needs.ask_cached(&mut need, 4, |_| false);
        assert!(need.has_nothing(4) && !need.waits(now), "its mailbox is full");
    }

    #[test]
    fn an_answer_about_idle_memory_says_nothing_of_cached_blocks() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        assert!(ask(&mut needs, 1, &[2], now).waits(now));
        // Meanwhile another space needs the cached blocks of space 2.
        let mut need = ask(&mut needs, 3, &[], now);
        assert!(need.may_ask_cached(now));
        needs.ask_cached(&mut need, 2, |_| panic!("a question is already open"));
        needs.keep(need);
        needs.heard(2, false);
        let mut need = needs.take().pop().unwrap();
        assert!(!need.has_nothing(2) && need.may_ask_cached(now), "the space can be asked for cached blocks now");
    }

    #[test]
    fn a_second_size_class_waits_for_the_question_of_the_first() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        assert!(ask(&mut needs, 1, &[2], now).waits(now));
        let never = |_| panic!("a question is already open");
        assert!(needs.ask_idle((1, 1, None), [2].into_iter(), now, never).waits(now));
        assert!(
            needs.ask_idle((3, 0, None), [2].into_iter(), now, never).waits(now),
            "not asked for another space either"
        );
        needs.heard(2, false);
        let mut over =
            needs.ask_idle((1, 0, None), [2].into_iter(), now, |_| panic!("space 2 has just answered: no slab"));
        assert!(!over.waits(now) && !over.may_ask_cached(now));
        assert!(ask(&mut needs, 1, &[2], now + AGAIN).waits(now + AGAIN));
        needs.heard(2, false);
        needs.came_back();
        assert!(ask(&mut needs, 1, &[2], now + AGAIN).waits(now + AGAIN), "the last round returned memory");
    }

    #[test]
    fn one_that_cannot_be_asked_is_not_waited_for_and_who_was_refused_hears_once() {
        let (mut needs, now) = (Needs::default(), Instant::now());
        assert!(!needs.ask_idle((1, 0, None), [2].into_iter(), now, |_| false).waits(now));
        needs.refuse(1);
        needs.refuse(2);
        needs.gone(2);
        assert_eq!(needs.came_back(), [1].into());
        assert!(needs.came_back().is_empty());
    }
}
