//! Contents that may be given up, in queues by class, each in the order of last use.

use super::marks::Marks;
use super::{BANDS, CLASSES, Rule, SHARE, SMALL, class_of_queue, is_once, queue_of};
use crate::api::{Eviction, NONE};
use crate::lists::{Linked, List};
use serde::{Deserialize, Serialize};

/// Queue of what goes before anything else: contents of sequences of low priority.
pub(crate) const LOW: u8 = (CLASSES * BANDS) as u8;
/// Queue of what stays before anything else, as long as it is within its share.
pub(crate) const HIGH: u8 = LOW + BANDS as u8;
/// Classes, and what priority makes one of its own.
const KINDS: usize = CLASSES + 2;
/// How long a choice among all ages of all classes stands, in uses: what else could be better changes little in that time.
const CHOICE: u64 = 64;

/// Hits per use-time that even what nobody was ever seen to come back for may bring: where nothing else tells contents apart, what
/// they cost does.
const UNKNOWN: f64 = 1e-12;

const _: () = assert!(BANDS.is_power_of_two());

/// One queue.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Queue {
    list: List,
    marks: Marks,
}

/// All queues of a set of items; the items themselves are the caller's, who also remembers in which queue each of them stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Queues {
    /// On the heap: there are many sets, and their owner is moved about.
    queues: Vec<Queue>,
    /// Bands of depth that are told apart; one: none are.
    bands: u8,
    /// Of the queues, those that hold something, a bit each.
    filled: u64,
    len: u32,
    /// Of them, in the classes of what was used once.
    once: u32,
    /// The age of the class that the cost-aware rule found to go first, and until when that stands.
    choice: Choice,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Choice {
    place: u8,
    since: u64,
    until: u64,
}

/// What a rule would give up first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct First {
    pub at: u32,
    /// Smaller goes first, among those that one rule found in several sets at one time.
    key: f64,
}

impl Queues {
    /// With `deep` the bands of depth are told apart; without, a queue's items stand with those of other bands.
    pub fn new(deep: bool) -> Queues {
        let bands = if deep { BANDS } else { 1 };
        Queues {
            queues: vec![Queue::default(); KINDS * bands],
            bands: bands as u8,
            filled: 0,
            len: 0,
            once: 0,
            choice: Choice::default(),
        }
    }

    /// The place of a queue.
    fn place(&self, queue: u8) -> usize {
        usize::from(queue) * usize::from(self.bands) / BANDS
    }

    /// The class and the band of what stands at a place.
    fn kind(&self, place: usize) -> (usize, usize) {
        // A power of two, and asked for every queue at every eviction.
        (place >> self.bands.trailing_zeros(), place & (usize::from(self.bands) - 1))
    }

    /// Places of queues that hold something, in order.
    fn filled(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.filled;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (place < u64::BITS).then_some(place as usize)
        })
    }

    /// Bytes of the queues themselves.
    pub fn bytes(&self) -> usize {
        self.queues.capacity() * size_of::<Queue>()
    }

    /// Puts an item at the end of a queue. `since`: when it was used last, as far as is known; `now` or earlier.
    pub fn push<T: Linked>(&mut self, items: &mut [T], at: u32, queue: u8, since: u64, now: u64) {
        let place = self.place(queue);
        let q = &mut self.queues[place];
        q.list.push_back(items, at);
        q.marks.pushed(at, since.max(q.marks.newest()), now);
        self.filled |= 1 << place;
        self.len += 1;
        self.once += u32::from(is_once(self.kind(place).0));
    }

    /// Takes an item out of its queue.
    pub fn remove<T: Linked>(&mut self, items: &mut [T], at: u32, queue: u8) {
        let place = self.place(queue);
        let q = &mut self.queues[place];
        q.marks.removed(at, items[at as usize].links().next);
        q.list.remove(items, at);
        if q.list.len == 0 {
            self.filled &= !(1 << place);
        }
        self.len -= 1;
        self.once -= u32::from(is_once(self.kind(place).0));
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    /// Of them, those of classes used once.
    pub fn once(&self) -> u32 {
        self.once
    }

    /// The least recently used item of the classes used once, or of the others.
    pub fn oldest_once(&self, once: bool) -> Option<u32> {
        self.oldest(|i| is_once(i) == once).map(|f| f.at)
    }

    /// An item that was surely used before the clock stood there.
    pub fn used_before(&self, clock: u64) -> Option<u32> {
        self.filled().find_map(|place| {
            let (at, until) = self.queues[place].marks.head()?;
            (until <= clock).then_some(at)
        })
    }

    /// Since when the item at the head of a queue is there, which is about when it was used last; `u64::MAX` if there is none.
    pub fn since(&self, queue: u8) -> u64 {
        self.queues[self.place(queue)].marks.get().next().map_or(u64::MAX, |m| m.1)
    }

    /// The same of an item, if it is the head of its queue.
    pub fn since_of(&self, queue: u8, at: u32) -> Option<u64> {
        let place = self.place(queue);
        (self.queues[place].list.head == at).then(|| self.since(queue))
    }

    /// The queue whose head was used least recently, of those of some classes.
    fn oldest(&self, of: impl Fn(usize) -> bool) -> Option<First> {
        let mut first: Option<First> = None;
        for place in self.filled().filter(|&place| of(self.kind(place).0)) {
            if let Some((at, since)) = self.queues[place].marks.get().next() {
                let key = since as f64;
                // Of one age, what was used less: it is rather what others do not stand on.
                if first.is_none_or(|f| key < f.key) {
                    first = Some(First { at, key });
                }
            }
        }
        first
    }

    /// The least recently used item of all.
    pub fn least_recent(&self) -> Option<u32> {
        self.oldest(|_| true).map(|f| f.at)
    }

    /// What goes first by a rule. `other`: the other set of the same cache, for shares are of both;
    /// `high`: share of all that the queue of high priority may take, of [`SHARE`].
    pub fn first(&mut self, rule: Rule<'_>, other: Option<&Queues>, high: u32, now: u64) -> Option<First> {
        let class = |i: usize| i < CLASSES;
        let key = |f: First, key: f64| First { key, ..f };
        if let Some(low) = self.oldest(|i| i == usize::from(class_of_queue(LOW))) {
            return Some(key(low, low.key - 1e18));
        }
        let both = |of: fn(&Queues) -> u32| u64::from(of(self)) + other.map_or(0, |other| u64::from(of(other)));
        let (len, once) = (both(|q| q.len), both(|q| q.once));
        let highs = both(|q| q.queues[q.place(HIGH)].list.len);
        let top = self.oldest(|i| i == usize::from(class_of_queue(HIGH)));
        if let Some(top) = top.filter(|_| highs * u64::from(SHARE) > len * u64::from(high)) {
            return Some(key(top, top.key - 1e18));
        }
        let over = |share: u32| once * u64::from(SHARE) > len * u64::from(share);
        let split = |share: u32| {
            let once = self.oldest(is_once);
            let more = self.oldest(|i| class(i) && !is_once(i));
            // What the rule does not want goes only if there is nothing else, in any set.
            let (wanted, other) = if over(share) { (once, more) } else { (more, once) };
            wanted.or(other.map(|f| key(f, f.key + 1e18)))
        };
        let found = match rule.policy {
            Eviction::Lru => self.oldest(class),
            Eviction::S3Fifo => split(SMALL),
            Eviction::Arc => split(rule.once),
            Eviction::CostAware | Eviction::Auto => self.least_worth(rule, now),
        };
        found.or(top.map(|f| key(f, f64::MAX)))
    }

    /// The oldest item of the age of a class and a band that is worth least.
    fn least_worth(&mut self, rule: Rule<'_>, now: u64) -> Option<First> {
        let bands = usize::from(self.bands);
        let worth = |place: usize, since: u64| {
            let age = now.saturating_sub(since);
            match bands {
                1 => rule.values.of_class(place, age),
                _ => (rule.values.get(place, age) + UNKNOWN) * rule.saved_us[place % bands],
            }
        };
        let Choice { place, since, until } = self.choice;
        if now < until
            && let Some(at) = self.queues[usize::from(place)].marks.of(since)
        {
            return Some(First { at, key: worth(usize::from(place), since) });
        }
        let mut first: Option<First> = None;
        for place in self.filled().take_while(|&place| place < CLASSES * bands) {
            for (at, since) in self.queues[place].marks.get() {
                let key = worth(place, since);
                if first.is_none_or(|f| key < f.key) {
                    first = Some(First { at, key });
                    self.choice = Choice { place: place as u8, since, until: now + CHOICE };
                }
            }
        }
        first
    }

    /// Items from `at` on in the order of its queue, then those of the other queues, each least recently used first.
    pub fn near<'a, T: Linked>(&'a self, items: &'a [T], at: u32) -> impl Iterator<Item = u32> + 'a {
        let mut here = at;
        let rest = std::iter::from_fn(move || {
            let found = here;
            (found != NONE).then(|| {
                here = items[found as usize].links().next;
                found
            })
        });
        rest.chain(self.queues.iter().flat_map(|q| q.list.iter(items)))
    }

    /// All items, for checks.
    pub fn iter<'a, T: Linked>(&'a self, items: &'a [T]) -> impl Iterator<Item = (u8, u32)> + 'a {
        self.queues.iter().enumerate().flat_map(move |(place, q)| {
            let (class, band) = self.kind(place);
            q.list.iter(items).map(move |at| (queue_of(class as u8, band as u8), at))
        })
    }
}

impl First {
    /// Whether it goes before another.
    pub fn before(self, other: First) -> bool {
        self.key < other.key
    }
}

#[cfg(test)]
mod tests {
    use super::super::reuse::Values;
    use super::*;
    use crate::lists::Links;
    use proptest::prelude::*;

    #[derive(Clone, Default)]
    struct Item(Links);
    impl Linked for Item {
        fn links(&self) -> &Links {
            &self.0
        }
        fn links_mut(&mut self) -> &mut Links {
            &mut self.0
        }
    }

    proptest! {
        /// Against plain lists of (item, when): which queue each rule takes from, and that it takes the oldest there.
        #[test]
        fn each_rule_takes_the_oldest_of_whom_it_wants(
            ops in prop::collection::vec((0u8..4, 0u8..14, 0u8..4, 1u64..400), 1..200),
            share in 0u32..=SHARE, high in 0u32..=SHARE, deep in any::<bool>(),
        ) {
            let (values, saved_us) = (Values::new(), &[1.0; BANDS]);
            let (mut items, mut queues, mut model) = (vec![Item::default(); 200], Queues::new(deep), Vec::<(u32, u8, u64)>::new());
            let mut now = 0;
            for (i, (op, class, band, gap)) in ops.into_iter().enumerate() {
                now += 32 + gap;
                let queue = queue_of(class, if usize::from(class) < CLASSES { band } else { 0 });
                if op > 0 {
                    queues.push(&mut items, i as u32, queue, now, now);
                    model.push((i as u32, queue, now));
                } else if !model.is_empty() {
                    let (at, queue, _) = model.remove(gap as usize % model.len());
                    queues.remove(&mut items, at, queue);
                }
                let of = |wanted: &dyn Fn(u8) -> bool| model.iter().filter(|m| wanted(m.1)).min_by_key(|m| m.2).map(|m| m.0);
                let count = |wanted: &dyn Fn(u8) -> bool| model.iter().filter(|m| wanted(m.1)).count() as u64;
                let once = |q: u8| class_of_queue(q) < 2;
                let more = |q: u8| !once(q) && q < LOW;
                let whole = u64::from(SHARE);
                let crowded = count(&|q| q == HIGH) * whole > model.len() as u64 * u64::from(high);
                for (policy, share) in [(Eviction::Lru, 0), (Eviction::S3Fifo, SMALL), (Eviction::Arc, share)] {
                    let rule = Rule { policy, once: share, values: &values, saved_us };
                    let over = count(&once) * whole > model.len() as u64 * u64::from(share);
                    let by_rule = match policy {
                        Eviction::Lru => of(&|q| q < LOW),
                        _ if over => of(&once).or(of(&more)),
                        _ => of(&more).or(of(&once)),
                    };
                    let crowd = if crowded { of(&|q| q == HIGH) } else { None };
                    let expected = of(&|q| q == LOW).or(crowd).or(by_rule).or(of(&|q| q == HIGH));
                    // Marks are few: with many items in a queue ages are known roughly, and here there are at most 200 in 14.
                    let first = queues.first(rule, None, high, now).map(|f| f.at);
                    prop_assert_eq!(first, expected, "{:?}", policy);
                }
                let rule = Rule { policy: Eviction::CostAware, once: 0, values: &values, saved_us };
                let first = queues.first(rule, None, SHARE, now + CHOICE).map(|f| f.at);
                prop_assert_eq!(first.is_some(), !model.is_empty());
                prop_assert_eq!(queues.len() as usize, model.len());
                prop_assert_eq!(queues.once() as u64, count(&once));
                let told = |queue: u8| if deep { queue } else { queue_of(class_of_queue(queue), 0) };
                let mut all: Vec<_> = model.iter().map(|m| (told(m.1), m.0)).collect();
                all.sort_unstable();
                let mut there: Vec<_> = queues.iter(&items).collect();
                there.sort_unstable();
                prop_assert_eq!(there, all);
            }
        }
    }
}
