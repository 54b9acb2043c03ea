//! The predictor of a space: what it remembers, and how it learns.

use super::fit::{Fit, Lesson};
use super::float::{exp, exp_sum, ln};
use super::page::{AHEAD, FLOOR, FRESH, IN_TURN, LAST, LEAST, OFTEN, Page, QUERY, Rates, UNSAID, fixed, real, share};
use super::{Kind, Pages, Scoring, Seen, TURNS};
use serde::{Deserialize, Serialize};

/// Of one sequence in one plane: the step of query estimates whose attention has not been seen yet, and what those say of pages that they
/// do not name. A step of several sequences asks for all of them before it tells of any.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Fresh(Option<(u64, i16)>);

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
    /// Steps of attention seen.
    steps: u64,
    /// Moving average of the share of attention that moved to other pages from one step to the next; 1 before anything is known.
    turnover: f32,
}

/// Attention seen so far, by plane and block, and what it says about the next step. 16 bytes a page, and 14 a position.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Predictor {
    pub(super) config: Config,
    pub(super) planes: Vec<Plane>,
    /// Plane by plane, so that what is looked at together stands together.
    pub(super) pages: Vec<Page>,
    /// Pages of a plane.
    pub(super) blocks: usize,
    /// Shares accumulated (`h2o`) or pooled (`snapkv`), as `pages`; empty otherwise.
    pub(super) sums: Vec<f32>,
    /// Of the entry in hand, by position: what it says of the page.
    named: Vec<i16>,
    /// Positions that it names.
    named_at: Vec<u32>,
    /// Shares of those, or scores of the pages in hand; and what digests said of those.
    pub(super) scores: Vec<f32>,
    estimates: Vec<f32>,
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
/// No multiples of two: the pages whose turn comes at lessons would be the same ones always.
const LEARN_EVERY: u64 = 17;
const LEARN_EVERY_STABLE: u64 = 33;
/// A lesson has all pages that were predicted this many times the mean share or more, and one in [`SAMPLE`] of the others.
const WEIGHTY: f32 = 0.5;
const SAMPLE: usize = 8;
/// Queries over which `snapkv` pools.
const WINDOW: f32 = 32.0;

/// Sums that a ranking keeps.
fn sums_of(config: Config, pages: usize) -> usize {
    if matches!(config.scoring, Scoring::H2o | Scoring::SnapKv) { pages } else { 0 }
}

/// A step's attention, as much as is known of it.
struct Step {
    /// Added to what an entry says of a page: what was read shares what the digests leave over from the pages that were not.
    scale: i32,
    /// What digests say of pages that they do not name, if they were asked.
    fresh: Option<i16>,
    rest: i16,
    mean: i16,
}

impl Step {
    /// A page's share, and whether it was read.
    fn of(&self, page: &Page, named: i16, rates: &Rates) -> (i16, bool) {
        if named == NOT_NAMED {
            let estimate = self.fresh.map(|rest| page.fresh(rest));
            return (estimate.unwrap_or_else(|| page.unread(self.rest, self.mean, rates)), false);
        }
        ((i32::from(named) + self.scale).clamp(i32::from(FLOOR), 0) as i16, true)
    }
}

impl Predictor {
    /// For blocks below `blocks_max` and sequences of at most `positions_max`.
    #[must_use]
    pub fn new(planes: usize, blocks_max: usize, positions_max: usize, config: Config) -> Predictor {
        let plane = Plane { fits: [Fit::new(false), Fit::new(true)], ahead: None, steps: 0, turnover: 1.0 };
        let pages = planes * blocks_max;
        Predictor {
            config,
            planes: vec![plane; planes],
            pages: vec![Page::UNSEEN; pages],
            blocks: blocks_max,
            sums: vec![0.0; sums_of(config, pages)],
            named: vec![NOT_NAMED; positions_max],
            named_at: Vec::with_capacity(positions_max),
            scores: vec![0.0; positions_max],
            estimates: vec![0.0; positions_max],
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
            + self.named_at.capacity() * size_of::<u32>()
            + (self.sums.capacity() + self.scores.capacity() + self.estimates.capacity()) * size_of::<f32>()
    }

    /// Learns from what a plane's attention looked at, or from what digests say of it: of the pages that are looked at. Blocks and
    /// positions that are not there are ignored; shares that are no numbers count as none.
    pub fn observe(&mut self, plane: u16, pages: &Pages<'_>, seen: Seen<'_>, fresh: &mut Fresh) {
        let plane = usize::from(plane);
        if plane >= self.planes.len() || pages.blocks.is_empty() || pages.blocks.len() > self.named.len() {
            return;
        }
        match seen.kind {
            Kind::Query => self.query(plane, pages, &seen, fresh),
            Kind::Ahead => self.look_ahead(plane, pages, &seen),
            Kind::Mass => {
                self.name(pages, &seen);
                self.mass(plane, pages, &seen, fresh);
            }
        }
    }

    /// What the newest attention said of a position, as a logarithm, if it named it.
    #[must_use]
    pub fn named(&self, position: u32) -> Option<f32> {
        self.named.get(position as usize).filter(|named| **named != NOT_NAMED).map(|named| real(*named))
    }

    /// Writes down by position what an entry names, in place of what the one before named.
    fn name(&mut self, pages: &Pages<'_>, seen: &Seen<'_>) {
        for at in self.named_at.drain(..) {
            self.named[at as usize] = NOT_NAMED;
        }
        for &(at, ln) in seen.top {
            let Some(place) = self.named[..pages.blocks.len()].get_mut(at as usize) else { continue };
            if *place == NOT_NAMED {
                *place = share(ln);
                self.named_at.push(at);
            }
        }
    }

    /// Pages that are named remember it until attention was seen and they were looked at; the others need not be touched.
    fn query(&mut self, plane: usize, pages: &Pages<'_>, seen: &Seen<'_>, fresh: &mut Fresh) {
        let rest = rest_of(seen, pages.blocks.len());
        let missed = fresh.0.replace((seen.step, rest)).filter(|missed| missed.0 != seen.step);
        let of = &mut self.pages[plane * self.blocks..][..self.blocks];
        if let Some((_, rest)) = missed {
            // That query's attention was never told.
            for &block in pages.blocks {
                if let Some(page) = of.get_mut(block as usize) {
                    (page.values[QUERY], page.values[FRESH]) = (page.fresh(rest), UNSAID);
                }
            }
        }
        put(of, pages.blocks, seen.top, FRESH);
    }

    fn look_ahead(&mut self, plane: usize, pages: &Pages<'_>, seen: &Seen<'_>) {
        self.planes[plane].ahead = Some(seen.step);
        let rest = rest_of(seen, pages.blocks.len());
        let of = &mut self.pages[plane * self.blocks..][..self.blocks];
        for positions in [pages.often, pages.turn] {
            for &at in positions {
                if let Some(page) = pages.blocks.get(at as usize).and_then(|&block| of.get_mut(block as usize)) {
                    page.values[AHEAD] = rest;
                }
            }
        }
        // A page that is not looked at keeps an older guess; a lesson may see it if attention names the page.
        put(of, pages.blocks, seen.top, AHEAD);
    }

    fn mass(&mut self, plane: usize, pages: &Pages<'_>, seen: &Seen<'_>, fresh: &mut Fresh) {
        let fresh = fresh.0.take().filter(|fresh| fresh.0 == seen.step).map(|fresh| fresh.1);
        let step = self.take(plane, pages, seen, fresh);
        if self.lesson_due(plane) {
            self.watch(plane, pages, &step);
            self.learn(plane, pages, seen.step, &step);
        }
        let of = &mut self.pages[plane * self.blocks..][..self.blocks];
        let named = &self.named[..pages.blocks.len()];
        for (positions, rates) in [(pages.often, &OFTEN), (pages.turn, &IN_TURN)] {
            let each = positions.iter().filter_map(|&at| Some((*pages.blocks.get(at as usize)?, named[at as usize])));
            // Two loops: which digests were asked is the same for all, which pages were read is not, and costs no branch.
            if let Some(rest) = fresh {
                for (block, named) in each {
                    let Some(page) = of.get_mut(block as usize) else { continue };
                    let (fresh, read) = (page.fresh(rest), named != NOT_NAMED);
                    let told = (i32::from(named) + step.scale).clamp(i32::from(FLOOR), 0) as i16;
                    page.saw_beside(if read { told } else { fresh }, read, fresh, rates);
                }
            } else {
                for (block, named) in each {
                    let Some(page) = of.get_mut(block as usize) else { continue };
                    page.saw(step.of(page, named, rates).0, rates);
                }
            }
        }
        self.accumulate(plane, pages);
        self.planes[plane].steps += 1;
    }

    fn lesson_due(&self, plane: usize) -> bool {
        let of = &self.planes[plane];
        of.steps < EAGER || of.steps.is_multiple_of(of.every())
    }

    /// Of the page at a position, as far as it is there.
    fn page(&self, plane: usize, pages: &Pages<'_>, at: u32) -> &Page {
        let of = &self.pages[plane * self.blocks..][..self.blocks];
        pages.blocks.get(at as usize).and_then(|&block| of.get(block as usize)).unwrap_or(&Page::UNSEEN)
    }

    /// Measures how much of a step's attention lies on other pages than at the step before.
    fn watch(&mut self, plane: usize, pages: &Pages<'_>, step: &Step) {
        let mut more = std::mem::take(&mut self.scores);
        let mut less = std::mem::take(&mut self.estimates);
        let mut count = 0;
        for &at in &self.named_at {
            let page = self.page(plane, pages, at);
            let (share, last) = (step.of(page, self.named[at as usize], &OFTEN).0, page.values[LAST]);
            if share > last {
                (more[count], less[count]) = (real(share), real(last));
                count += 1;
            }
        }
        let moved = exp_sum(&more[..count], 0.0) - exp_sum(&less[..count], 0.0);
        (self.scores, self.estimates) = (more, less);
        let plane = &mut self.planes[plane];
        plane.turnover += TURNOVER_RATE * (moved.clamp(0.0, 1.0) - plane.turnover);
    }

    /// How what an entry says is to be read.
    fn take(&mut self, plane: usize, pages: &Pages<'_>, seen: &Seen<'_>, fresh: Option<i16>) -> Step {
        let mean = fixed(-ln(pages.blocks.len() as f32).min(-LEAST));
        let rest = rest_of(seen, pages.blocks.len());
        let Some(fresh) = fresh else { return Step { scale: 0, fresh, rest, mean } };
        let of = &self.pages[plane * self.blocks..][..self.blocks];
        for (&at, estimate) in self.named_at.iter().zip(&mut self.estimates) {
            let page = of.get(pages.blocks[at as usize] as usize).unwrap_or(&Page::UNSEEN);
            *estimate = real(page.fresh(fresh));
        }
        let estimated = exp_sum(&self.estimates[..self.named_at.len()], 0.0);
        // A twentieth at least: digests that see nothing of what was read are not believed, and shares add up to 1 or are none.
        let named = (1.0 - rest_share(seen)).max(0.05);
        let scale = if self.named_at.is_empty() { 0 } else { fixed(ln(estimated.clamp(0.05, 1.0) / named)) };
        Step { scale: i32::from(scale), fresh: Some(fresh), rest, mean }
    }

    /// What `h2o` and `snapkv` rank by: attention as it was read, no estimates.
    fn accumulate(&mut self, plane: usize, pages: &Pages<'_>) {
        if self.sums.is_empty() {
            return;
        }
        let of = &mut self.sums[plane * self.blocks..][..self.blocks];
        for (&block, &named) in pages.blocks.iter().zip(&self.named) {
            let Some(sum) = of.get_mut(block as usize) else { continue };
            let share = if named == NOT_NAMED { 0.0 } else { exp(real(named)) };
            match self.config.scoring {
                Scoring::H2o => *sum += share,
                _ => *sum += (share - *sum) / WINDOW,
            }
        }
    }

    /// Fits to the step in hand, from what was known before it.
    fn learn(&mut self, plane: usize, pages: &Pages<'_>, number: u64, step: &Step) {
        let of = &self.planes[plane];
        if self.config.scoring != Scoring::Attention {
            return;
        }
        // Where there are look-aheads, the fit without them has one lesson in four.
        let ahead = of.ahead == Some(number) && of.steps / of.every() % 4 != 3;
        let mut scores = std::mem::take(&mut self.scores);
        let most = self.fitted(plane, pages, ahead, &mut scores);
        let often = pages.often.len();
        let whole = whole(&scores[..often + pages.turn.len()], often, most);
        let weighty = most + ln(WEIGHTY * whole / pages.blocks.len() as f32);
        let sampled = (of.steps / of.every()) as usize % SAMPLE;
        let mut lesson = Lesson::new(ahead);
        for (i, (&at, &score)) in pages.often.iter().chain(pages.turn).zip(&scores).enumerate() {
            let (stands_for, rates) = match i < often {
                true if score >= weighty => (1.0, &OFTEN),
                true if i % SAMPLE == sampled => (SAMPLE as f32, &OFTEN),
                true => continue,
                false => (TURNS as f32, &IN_TURN),
            };
            let page = self.page(plane, pages, at);
            let last = self.page(plane, pages, at.saturating_sub(1)).values[LAST];
            let share = step.of(page, self.named.get(at as usize).copied().unwrap_or(NOT_NAMED), rates).0;
            let (predicted, seen) = (exp(score - most) * stands_for, exp(real(share)) * stands_for);
            lesson.page(page, last, (at as usize, pages.blocks.len()), predicted, seen);
        }
        self.scores = scores;
        self.planes[plane].fits[usize::from(ahead)].step(&lesson);
    }

    /// w·x of the pages that are looked at, and the largest.
    pub(super) fn fitted(&self, plane: usize, pages: &Pages<'_>, ahead: bool, scores: &mut [f32]) -> f32 {
        let of = &self.pages[plane * self.blocks..][..self.blocks];
        self.planes[plane].fits[usize::from(ahead)].scores(of, pages, scores)
    }

    /// The block's page in the plane will stand for something else.
    pub fn forget(&mut self, plane: u16, block: u32) {
        if block as usize >= self.blocks {
            return;
        }
        let at = usize::from(plane) * self.blocks + block as usize;
        if let Some(page) = self.pages.get_mut(at) {
            *page = Page::UNSEEN;
        }
        if let Some(sum) = self.sums.get_mut(at) {
            *sum = 0.0;
        }
    }

    /// Whether the plane's attention stays on the same pages from step to step, so that it need not be ranked at every step.
    #[must_use]
    pub fn stable(&self, plane: u16) -> bool {
        self.planes.get(usize::from(plane)).is_some_and(|p| p.turnover < STABLE)
    }
}

/// Writes what entries name into a value of their pages.
fn put(of: &mut [Page], blocks: &[u32], top: &[(u32, f32)], value: usize) {
    for &(at, ln) in top {
        if let Some(page) = blocks.get(at as usize).and_then(|&block| of.get_mut(block as usize)) {
            page.values[value] = share(ln);
        }
    }
}

/// What each page that is not named gets of the rest.
fn rest_of(seen: &Seen<'_>, pages: usize) -> i16 {
    let unnamed = pages.saturating_sub(seen.top.len()).max(1);
    share(ln(rest_share(seen) / unnamed as f32))
}

/// Sum of the exponentials of all pages' scores less `most`: those of the first `often` have their own, the others stand for those
/// whose turn it is not.
pub(super) fn whole(scores: &[f32], often: usize, most: f32) -> f32 {
    exp_sum(&scores[..often], most) + TURNS as f32 * exp_sum(&scores[often..], most)
}

fn rest_share(seen: &Seen<'_>) -> f32 {
    if seen.rest.is_nan() { 0.0 } else { seen.rest.clamp(0.0, 1.0) }
}
