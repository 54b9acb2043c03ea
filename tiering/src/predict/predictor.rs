//! The predictor of a space: what it remembers, and how it learns.

use super::fit::{Fit, Lesson};
use super::float::{exp, exp_sum, ln};
use super::page::{AHEAD, FLOOR, FRESH, LAST, LEAST, Page, QUERY, fixed, real};
use super::{Kind, Scoring, Seen};
use serde::{Deserialize, Serialize};

/// What a predictor ranks by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The ranking.
    pub scoring: Scoring,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plane {
    /// Without a look-ahead, and with one.
    pub fits: [Fit; 2],
    /// Step of the newest look-ahead estimates.
    pub ahead: Option<u64>,
    /// Step of query estimates whose attention has not been seen yet.
    fresh: Option<u64>,
    /// Steps of attention seen.
    steps: u64,
    /// Moving average of the share of attention that moved to other pages from one step to the next; 1 before anything is known.
    turnover: f32,
}

/// Attention seen so far, by page id, and what it says about the next step. 26 bytes a page.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Predictor {
    pub(super) config: Config,
    pub(super) planes: Vec<Plane>,
    pub(super) pages: Vec<Page>,
    /// Shares accumulated (`h2o`) or pooled (`snapkv`), by page id; empty otherwise.
    pub(super) sums: Vec<f32>,
    /// Of the entry in hand, by position: what it says of the page.
    named: Vec<i16>,
    /// Twice as many numbers: scores of the pages in hand, or shares of those that an entry names and their estimates.
    scores: Vec<f32>,
}

impl Plane {
    /// Steps from one lesson to the next.
    fn every(&self) -> u64 {
        if self.turnover < STABLE { LEARN_EVERY_STABLE } else { LEARN_EVERY }
    }
}

const NOT_NAMED: i16 = i16::MIN;
/// Below this turnover a plane's attention stays where it is.
const STABLE: f32 = 0.1;
const TURNOVER_RATE: f32 = 0.05;
/// Each of the first steps is learnt from, later one in so many: the fit then costs little, and loses nothing that can be measured.
const EAGER: u64 = 64;
const LEARN_EVERY: u64 = 8;
const LEARN_EVERY_STABLE: u64 = 16;
/// A lesson has all pages that were predicted this many times the mean share or more, and one in [`SAMPLE`] of the others.
const WEIGHTY: f32 = 0.5;
const SAMPLE: usize = 8;
/// Queries over which `snapkv` pools.
const WINDOW: f32 = 32.0;

/// Sums that a ranking keeps.
fn sums_of(config: Config, pages: usize) -> usize {
    if matches!(config.scoring, Scoring::H2o | Scoring::SnapKv) { pages } else { 0 }
}

fn share(ln: f32) -> i16 {
    if ln.is_nan() { FLOOR } else { fixed(ln.clamp(LEAST, 0.0)) }
}

/// A step's attention, as much as is known of it.
struct Step {
    /// Added to what an entry says of a page: what was read shares what the digests leave over from the pages that were not.
    scale: i32,
    with_query: bool,
    rest: i16,
    mean: i16,
}

impl Step {
    /// A page's share, and whether it was read.
    fn of(&self, page: &Page, named: i16) -> (i16, bool) {
        if named == NOT_NAMED {
            return (page.unread(self.with_query, self.rest, self.mean), false);
        }
        ((i32::from(named) + self.scale).clamp(i32::from(FLOOR), 0) as i16, true)
    }
}

impl Predictor {
    /// For page ids below `pages_max`.
    #[must_use]
    pub fn new(planes: usize, pages_max: usize, config: Config) -> Predictor {
        let plane =
            Plane { fits: [Fit::new(false), Fit::new(true)], ahead: None, fresh: None, steps: 0, turnover: 1.0 };
        let sums = sums_of(config, pages_max);
        Predictor {
            config,
            planes: vec![plane; planes],
            pages: vec![Page::UNSEEN; pages_max],
            sums: vec![0.0; sums],
            named: vec![NOT_NAMED; pages_max],
            scores: vec![0.0; 2 * pages_max],
        }
    }

    /// Ranks by something else from now on; what was seen stays, but for sums, which begin anew.
    pub fn configure(&mut self, config: Config) {
        if config != self.config {
            self.config = config;
            self.sums = vec![0.0; sums_of(config, self.pages.len())];
        }
    }

    /// Bytes of its tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.planes.capacity() * size_of::<Plane>()
            + self.pages.capacity() * size_of::<Page>()
            + self.named.capacity() * size_of::<i16>()
            + (self.sums.capacity() + self.scores.capacity()) * size_of::<f32>()
    }

    /// Learns from what a plane's attention over `pages` (ids in index order) looked at, or from what digests say of it. Page
    /// ids and positions that are not there are ignored; shares that are no numbers count as none.
    pub fn observe(&mut self, plane: u16, pages: &[u32], seen: Seen<'_>) {
        let pages = &pages[..pages.len().min(self.named.len())];
        if usize::from(plane) >= self.planes.len() || pages.is_empty() {
            return;
        }
        match seen.kind {
            Kind::Query => self.query(usize::from(plane), pages, &seen),
            Kind::Ahead => {
                self.planes[usize::from(plane)].ahead = Some(seen.step);
                self.set(pages, &seen, AHEAD);
            }
            Kind::Mass => self.mass(usize::from(plane), pages, &seen),
        }
    }

    fn query(&mut self, plane: usize, pages: &[u32], seen: &Seen<'_>) {
        if self.planes[plane].fresh.replace(seen.step).is_some_and(|missed| missed != seen.step) {
            // That query's attention was never told.
            for &id in pages {
                if let Some(page) = self.pages.get_mut(id as usize) {
                    page.values[QUERY] = page.values[FRESH];
                }
            }
        }
        self.set(pages, seen, FRESH);
    }

    fn set(&mut self, pages: &[u32], seen: &Seen<'_>, value: usize) {
        let rest = rest_of(seen, pages.len());
        for &id in pages {
            if let Some(page) = self.pages.get_mut(id as usize) {
                page.values[value] = rest;
            }
        }
        for &(at, ln) in seen.top {
            if let Some(page) = pages.get(at as usize).and_then(|&id| self.pages.get_mut(id as usize)) {
                page.values[value] = share(ln);
            }
        }
    }

    fn mass(&mut self, plane: usize, pages: &[u32], seen: &Seen<'_>) {
        let with_query = self.planes[plane].fresh.take() == Some(seen.step);
        let step = self.take(pages, seen, with_query);
        if self.lesson_due(plane) {
            self.watch(plane, pages, &step);
            self.learn(plane, pages, seen.step, &step);
        }
        for (&id, &named) in pages.iter().zip(&self.named) {
            let Some(page) = self.pages.get_mut(id as usize) else { continue };
            let (share, read) = step.of(page, named);
            page.saw(share, read, with_query);
        }
        self.accumulate(pages);
        for &(at, _) in seen.top {
            if let Some(place) = self.named.get_mut(at as usize) {
                *place = NOT_NAMED;
            }
        }
        self.planes[plane].steps += 1;
    }

    fn lesson_due(&self, plane: usize) -> bool {
        let of = &self.planes[plane];
        of.steps < EAGER || of.steps.is_multiple_of(of.every())
    }

    /// Measures how much of a step's attention lies on other pages than at the step before.
    fn watch(&mut self, plane: usize, pages: &[u32], step: &Step) {
        let mut moved = 0.0f32;
        for (&id, &named) in pages.iter().zip(&self.named).filter(|(_, named)| **named != NOT_NAMED) {
            let page = self.pages.get(id as usize).unwrap_or(&Page::UNSEEN);
            let (share, last) = (step.of(page, named).0, page.values[LAST]);
            if share > last {
                moved += exp(real(share)) - exp(real(last));
            }
        }
        let plane = &mut self.planes[plane];
        plane.turnover += TURNOVER_RATE * (moved.min(1.0) - plane.turnover);
    }

    /// Writes down by position what an entry names.
    fn take(&mut self, pages: &[u32], seen: &Seen<'_>, with_query: bool) -> Step {
        let (mut read, (says, estimates)) = (0, self.scores.split_at_mut(self.named.len()));
        for &(at, ln) in seen.top.iter().filter(|(at, _)| (*at as usize) < pages.len()) {
            let place = &mut self.named[at as usize];
            if *place == NOT_NAMED {
                *place = share(ln);
                let page = self.pages.get(pages[at as usize] as usize).unwrap_or(&Page::UNSEEN);
                (says[read], estimates[read]) = (real(*place), real(page.values[FRESH]));
                read += 1;
            }
        }
        let (named, estimated) = (exp_sum(&says[..read], 0.0), exp_sum(&estimates[..read], 0.0));
        // A twentieth at least: digests that see nothing of what was read are not believed.
        let scale = if with_query && named > 0.0 { fixed(ln(estimated.clamp(0.05, 1.0) / named)) } else { 0 };
        let mean = fixed(-ln(pages.len() as f32).min(-LEAST));
        Step { scale: i32::from(scale), with_query, rest: rest_of(seen, pages.len()), mean }
    }

    /// What `h2o` and `snapkv` rank by: attention as it was read, no estimates.
    fn accumulate(&mut self, pages: &[u32]) {
        if self.sums.is_empty() {
            return;
        }
        for (&id, &named) in pages.iter().zip(&self.named) {
            let Some(sum) = self.sums.get_mut(id as usize) else { continue };
            let share = if named == NOT_NAMED { 0.0 } else { exp(real(named)) };
            match self.config.scoring {
                Scoring::H2o => *sum += share,
                _ => *sum += (share - *sum) / WINDOW,
            }
        }
    }

    /// Fits to the step in hand, from what was known before it.
    fn learn(&mut self, plane: usize, pages: &[u32], number: u64, step: &Step) {
        let of = &self.planes[plane];
        if self.config.scoring != Scoring::Attention {
            return;
        }
        // Where there are look-aheads, the fit without them has one lesson in four.
        let ahead = of.ahead == Some(number) && of.steps / of.every() % 4 != 3;
        let scores = &mut self.scores[..pages.len()];
        let most = of.fits[usize::from(ahead)].scores(&self.pages, pages, scores);
        let total = exp_sum(scores, most);
        let weighty = most + ln(WEIGHTY * total / pages.len() as f32);
        let sampled = (of.steps / of.every()) as usize % SAMPLE;
        let mut lesson = Lesson::new(ahead);
        let mut before = None;
        for (at, &id) in pages.iter().enumerate() {
            let page = self.pages.get(id as usize).unwrap_or(&Page::UNSEEN);
            let last = before.replace(page.values[LAST]).unwrap_or(page.values[LAST]);
            let stands_for = match scores[at] >= weighty {
                true => 1.0,
                false if at % SAMPLE == sampled => SAMPLE as f32,
                false => continue,
            };
            let share = step.of(page, self.named[at]).0;
            let (predicted, seen) = (exp(scores[at] - most) * stands_for, exp(real(share)) * stands_for);
            lesson.page(page, last, (at, pages.len()), predicted, seen);
        }
        self.planes[plane].fits[usize::from(ahead)].step(&lesson);
    }

    /// The page id will stand for something else.
    pub fn forget(&mut self, page: u32) {
        if let Some(page) = self.pages.get_mut(page as usize) {
            *page = Page::UNSEEN;
        }
        if let Some(sum) = self.sums.get_mut(page as usize) {
            *sum = 0.0;
        }
    }

    /// Whether the plane's attention stays on the same pages from step to step, so that it need not be ranked at every step.
    #[must_use]
    pub fn stable(&self, plane: u16) -> bool {
        self.planes.get(usize::from(plane)).is_some_and(|p| p.turnover < STABLE)
    }
}

/// What each page that is not named gets of the rest.
fn rest_of(seen: &Seen<'_>, pages: usize) -> i16 {
    let unnamed = pages.saturating_sub(seen.top.len()).max(1);
    let rest = if seen.rest.is_nan() { 0.0 } else { seen.rest.clamp(0.0, 1.0) };
    share(ln(rest / unnamed as f32))
}
