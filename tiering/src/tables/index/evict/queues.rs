//! Evictable entries, in queues by class, each in the order of last use.

use super::age_marks::AgeMarks;
use super::{BANDS, CLASSES, Rule, SHARE, SMALL, class_of_queue, is_used_once, queue_of};
use crate::api::Eviction;
use crate::lists::{Linked, List};
use crate::tables::index::steps;
use serde::{Deserialize, Serialize};

/// Queue that is evicted before all others: entries of sequences of low priority.
pub(crate) const LOW: u8 = (CLASSES * BANDS) as u8;
/// Queue that is evicted after all others while it is within its share: entries of high priority.
pub(crate) const HIGH: u8 = LOW + BANDS as u8;
/// Queue that is evicted last: entries to which stores in progress add children.
pub(crate) const HELD: u8 = HIGH + BANDS as u8;
/// Classes, plus one each for low and high priority and for held entries.
const KINDS: usize = CLASSES + 3;
/// Maximum items passed behind a mark, to put in an item by the time of its last use. Marks of young items are closer together.
const PASSED_MAX: usize = 32;
/// Number of uses for which the choice among all ages and classes stays valid. The alternatives change little in that time.
const CHOICE: u64 = 64;

/// Smallest expected hits per use-time, for entries without any observed reuse. It lets their cost decide where nothing else
/// distinguishes them.
const UNKNOWN: f64 = 1e-12;

const _: () = assert!(BANDS.is_power_of_two());

/// One queue.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Queue {
    list: List,
    age_marks: AgeMarks,
}

/// An item that knows its last use.
pub(crate) trait Used: Linked {
    /// Return the time of its last use, at most `now`.
    fn used(&self, now: u64) -> u64;
}

/// Numbers of items, from which rules compute shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Count {
    pub all: u32,
    /// In the classes of entries used once.
    pub used_once: u32,
    high: u32,
}

impl Count {
    pub fn add(&mut self, queue: u8) {
        self.all += 1;
        self.used_once += u32::from(is_used_once(class_of_queue(queue).into()));
        self.high += u32::from(queue == HIGH);
    }

    pub fn subtract(&mut self, queue: u8) {
        self.all -= 1;
        self.used_once -= u32::from(is_used_once(class_of_queue(queue).into()));
        self.high -= u32::from(queue == HIGH);
    }
}

/// All queues of a set of items. The caller owns the items, and remembers the queue of each item.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Queues {
    /// On the heap, because there are many sets and their owner is moved.
    queues: Vec<Queue>,
    /// Bands of depth that are kept apart; 1 if depth is ignored.
    bands: u8,
    /// Bitmap of non-empty queues.
    filled: u64,
    count: Count,
    /// Group (queue and age) that the cost-aware rule chose last, and until when the choice is valid.
    choice: Choice,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Choice {
    place: u8,
    since: u64,
    until: u64,
}

/// The item that a rule would evict first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct First {
    pub at: u32,
    /// Eviction key: smaller is evicted first. Comparable among items that one rule found in several sets at the same time.
    key: f64,
}

impl Queues {
    /// Create the queues. `deep`: keep bands of depth apart; otherwise items of all bands of a class share a queue.
    pub fn new(deep: bool) -> Queues {
        let bands = if deep { BANDS } else { 1 };
        Queues {
            queues: vec![Queue::default(); KINDS * bands],
            bands: bands as u8,
            filled: 0,
            count: Count::default(),
            choice: Choice::default(),
        }
    }

    /// Return the index of a queue in `queues`.
    fn place(&self, queue: u8) -> usize {
        usize::from(queue) * usize::from(self.bands) / BANDS
    }

    /// Return the class and the band of a queue index.
    fn kind(&self, place: usize) -> (usize, usize) {
        // Shift instead of divide: `bands` is a power of two, and this runs for every queue at every eviction.
        (place >> self.bands.trailing_zeros(), place & (usize::from(self.bands) - 1))
    }

    /// Return the indices of non-empty queues, in ascending order.
    fn filled(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.filled;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (place < u64::BITS).then_some(place as usize)
        })
    }

    /// Return the bytes of the queues themselves.
    pub fn bytes(&self) -> usize {
        self.queues.capacity() * size_of::<Queue>()
    }

    /// Append an item to a queue. `since`: its last use, as far as is known; not later than `now`.
    pub fn push<T: Linked>(&mut self, items: &mut [T], at: u32, queue: u8, since: u64, now: u64) {
        let place = self.place(queue);
        let q = &mut self.queues[place];
        q.list.push_back(items, at);
        q.age_marks.pushed(at, since.max(q.age_marks.newest()), now);
        self.filled |= 1 << place;
        self.count.add(queue);
    }

    /// Add an item to a queue by the time of its last use. If more than [`PASSED_MAX`] items are between it and the mark before it, it
    /// counts as used before the rest of them.
    pub fn insert<T: Used>(&mut self, items: &mut [T], at: u32, queue: u8, now: u64) {
        let since = items[at as usize].used(now);
        let place = self.place(queue);
        let q = &mut self.queues[place];
        if q.list.is_empty() || items[q.list.tail as usize].used(now) <= since {
            return self.push(items, at, queue, since, now);
        }
        let mark = q.age_marks.last_until(since);
        let mut next = mark.map_or(q.list.head, |(_, first)| first);
        for _ in 0..PASSED_MAX {
            if items[next as usize].used(now) > since {
                break;
            }
            steps::count();
            next = items[next as usize].links().next;
        }
        q.age_marks.inserted(mark.map(|(mark, _)| mark), at, next, since, now);
        q.list.insert_before(items, at, next);
        self.count.add(queue);
    }

    /// Remove an item from its queue.
    pub fn remove<T: Linked>(&mut self, items: &mut [T], at: u32, queue: u8) {
        let place = self.place(queue);
        let q = &mut self.queues[place];
        q.age_marks.removed(at, items[at as usize].links().next);
        q.list.remove(items, at);
        if q.list.len == 0 {
            self.filled &= !(1 << place);
        }
        self.count.subtract(queue);
    }

    /// Return the numbers of items.
    pub fn count(&self) -> Count {
        self.count
    }

    /// Return the least recently used item of the classes used once, or of the other classes.
    pub fn oldest_used_once(&self, used_once: bool) -> Option<u32> {
        self.oldest(|i| is_used_once(i) == used_once).map(|f| f.at)
    }

    /// Return an item that was certainly not used after `clock`, and is not held.
    pub fn used_before(&self, clock: u64) -> Option<u32> {
        self.filled().take_while(|&place| place < self.place(HELD)).find_map(|place| {
            let (at, until) = self.queues[place].age_marks.head()?;
            (until <= clock).then_some(at)
        })
    }

    /// Return the least recently used head of the queues with a class that satisfies `of`.
    fn oldest(&self, of: impl Fn(usize) -> bool) -> Option<First> {
        let mut first: Option<First> = None;
        for place in self.filled().filter(|&place| of(self.kind(place).0)) {
            if let Some((at, since)) = self.queues[place].age_marks.get().next() {
                let key = since as f64;
                // Of equal ages, prefer the class with fewer uses: its entries are more likely leaves.
                if first.is_none_or(|f| key < f.key) {
                    first = Some(First { at, key });
                }
            }
        }
        first
    }

    /// Return the least recently used item of all.
    pub fn least_recent(&self) -> Option<u32> {
        self.oldest(|_| true).map(|f| f.at)
    }

    /// Return the item that a rule evicts first. `of`: numbers of all items of the cache, since shares apply to all sets. `high`:
    /// share of the cache that the high-priority queue may take, in units of 1/[`SHARE`].
    pub fn first(&mut self, rule: Rule<'_>, of: Count, high: u32, now: u64) -> Option<First> {
        let class = |i: usize| i < CLASSES;
        let key = |f: First, key: f64| First { key, ..f };
        if let Some(low) = self.oldest(|i| i == usize::from(class_of_queue(LOW))) {
            return Some(key(low, low.key - 1e18));
        }
        let [len, used_once, highs] = [of.all, of.used_once, of.high].map(u64::from);
        let top = self.oldest(|i| i == usize::from(class_of_queue(HIGH)));
        if let Some(top) = top.filter(|_| highs * u64::from(SHARE) > len * u64::from(high)) {
            return Some(key(top, top.key - 1e18));
        }
        let over = |share: u32| used_once * u64::from(SHARE) > len * u64::from(share);
        let split = |share: u32| {
            let used_once = self.oldest(is_used_once);
            let more = self.oldest(|i| class(i) && !is_used_once(i));
            // Evict from the protected side only if no set has anything else.
            let (wanted, other) = if over(share) { (used_once, more) } else { (more, used_once) };
            wanted.or(other.map(|f| key(f, f.key + 1e18)))
        };
        let found = match rule.policy {
            Eviction::Lru => self.oldest(class),
            Eviction::S3Fifo => split(SMALL),
            Eviction::Arc => split(rule.used_once),
            Eviction::CostAware | Eviction::Auto => self.least_worth(rule, now),
        };
        let held = || self.oldest(|i| i == usize::from(class_of_queue(HELD)));
        found.or(top.map(|f| key(f, f64::MAX))).or_else(|| held().map(|f| key(f, f64::INFINITY)))
    }

    /// Return the oldest item of the class, band and age with the lowest value.
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
            && let Some(at) = self.queues[usize::from(place)].age_marks.of(since)
        {
            return Some(First { at, key: worth(usize::from(place), since) });
        }
        let mut first: Option<First> = None;
        for place in self.filled().take_while(|&place| place < CLASSES * bands) {
            for (at, since) in self.queues[place].age_marks.get() {
                let key = worth(place, since);
                if first.is_none_or(|f| key < f.key) {
                    first = Some(First { at, key });
                    self.choice = Choice { place: place as u8, since, until: now + CHOICE };
                }
            }
        }
        first
    }

    /// Return all items, each queue from its least recently used on.
    pub fn iter<'a, T: Linked>(&'a self, items: &'a [T]) -> impl Iterator<Item = (u8, u32)> + 'a {
        self.queues.iter().enumerate().flat_map(move |(place, q)| {
            let (class, band) = self.kind(place);
            q.list.iter(items).map(move |at| (queue_of(class as u8, band as u8), at))
        })
    }
}

impl First {
    /// Return whether it is evicted before `other`.
    pub fn before(self, other: First) -> bool {
        self.key < other.key
    }
}

#[cfg(test)]
mod tests {
    use super::super::reuse::Values;
    use super::*;
    use crate::lists::{Links, linked};
    use proptest::prelude::*;

    #[derive(Clone, Default)]
    struct Item(Links);
    linked!(Item.0);

    proptest! {
        /// Compare with plain lists of (item, time): the queue that each rule takes from, and that it takes the oldest item
        /// there.
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
                let used_once = |q: u8| class_of_queue(q) < 2;
                let more = |q: u8| !used_once(q) && q < LOW;
                let whole = u64::from(SHARE);
                let crowded = count(&|q| q == HIGH) * whole > model.len() as u64 * u64::from(high);
                for (policy, share) in [(Eviction::Lru, 0), (Eviction::S3Fifo, SMALL), (Eviction::Arc, share)] {
                    let rule = Rule { policy, used_once: share, values: &values, saved_us };
                    let over = count(&used_once) * whole > model.len() as u64 * u64::from(share);
                    let by_rule = match policy {
                        Eviction::Lru => of(&|q| q < LOW),
                        _ if over => of(&used_once).or(of(&more)),
                        _ => of(&more).or(of(&used_once)),
                    };
                    let crowd = if crowded { of(&|q| q == HIGH) } else { None };
                    let expected = of(&|q| q == LOW).or(crowd).or(by_rule).or(of(&|q| q == HIGH));
                    // Marks are few, so with many items in a queue ages are approximate. Here at most 200 items are in 14
                    // classes.
                    let first = queues.first(rule, queues.count(), high, now).map(|f| f.at);
                    prop_assert_eq!(first, expected, "{:?}", policy);
                }
                let rule = Rule { policy: Eviction::CostAware, used_once: 0, values: &values, saved_us };
                let first = queues.first(rule, queues.count(), SHARE, now + CHOICE).map(|f| f.at);
                prop_assert_eq!(first.is_some(), !model.is_empty());
                prop_assert_eq!(queues.count().all as usize, model.len());
                prop_assert_eq!(u64::from(queues.count().used_once), count(&used_once));
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
