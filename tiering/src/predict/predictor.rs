//! The predictor of a space: its tables, and how it learns.

use super::fit::{Fit, Lesson};
use super::float::{exp, exp_sum, ln};
use super::page::{AHEAD, FLOOR, FRESH, IN_TURN, LAST, LEAST, OFTEN, Page, QUERY, Rates, UNSAID, fixed, real, share};
use super::{Pages, ScoreKind, Seen, TURNS};
use serde::{Deserialize, Serialize};

/// Pending query estimates of one sequence in one plane: the step with attention that has not been observed yet, and the estimate
/// for pages that the digests do not name. A step of several sequences reports the estimates of all before the attention of any.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Fresh(Option<(u64, i16)>);

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plane {
    /// Fits without a look-ahead, and with one.
    fits: [Fit; 2],
    /// Step of the latest look-ahead estimates.
    ahead: Option<u64>,
    /// Number of observed steps.
    steps: u64,
    /// Moving average of the share of attention that moved to other pages from one step to the next; initially 1.
    turnover: f32,
}

/// Attention observed so far, by plane and block, and the prediction for the next step. Needs 16 bytes per page and 14 per
/// position.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Predictor {
    planes: Vec<Plane>,
    /// Plane by plane, so that pages evaluated together are adjacent in memory.
    pages: Vec<Page>,
    /// Number of pages per plane.
    blocks: usize,
    /// Share that the current entry names, by position.
    named: Vec<i16>,
    /// Positions named by the current entry.
    named_at: Vec<u32>,
    /// Scratch: shares of those positions, or scores of the current pages; `estimates`: the digests' estimates of those.
    scores: Vec<f32>,
    estimates: Vec<f32>,
}

impl Plane {
    /// Return the number of steps from one lesson to the next.
    fn every(&self) -> u64 {
        if self.turnover < STABLE { LEARN_EVERY_STABLE } else { LEARN_EVERY }
    }
}

const NOT_NAMED: i16 = i16::MIN;
/// Below this turnover a plane's attention stays on the same pages.
const STABLE: f32 = 0.1;
const TURNOVER_RATE: f32 = 0.05;
/// The first steps are all used for learning, later only every n-th: the fit then costs little, without a measurable loss.
const EAGER: u64 = 64;
/// Not multiples of two: otherwise the same pages would be due at every lesson.
const LEARN_EVERY: u64 = 17;
const LEARN_EVERY_STABLE: u64 = 33;
/// A lesson uses all pages predicted with at least this multiple of the mean share, and one in [`SAMPLE`] of the others.
const WEIGHTY: f32 = 0.5;
const SAMPLE: usize = 8;

/// The attention of a step, as far as it is known.
struct Step {
    /// Offset of the logarithms of an entry: the pages read share the attention that the digests do not assign to unread pages.
    scale: i32,
    /// The digests' estimate for pages that they do not name, if there are estimates.
    fresh: Option<i16>,
    rest: i16,
    mean: i16,
}

impl Step {
    /// Return a page's share, and whether it was read.
    fn of(&self, page: &Page, named: i16, rates: &Rates) -> (i16, bool) {
        if named == NOT_NAMED {
            let estimate = self.fresh.map(|rest| page.fresh(rest));
            return (estimate.unwrap_or_else(|| page.unread(self.rest, self.mean, rates)), false);
        }
        ((i32::from(named) + self.scale).clamp(i32::from(FLOOR), 0) as i16, true)
    }
}

impl Predictor {
    /// Create a predictor for block ids below `blocks_max` and sequences of at most `positions_max` blocks.
    #[must_use]
    pub fn new(planes: usize, blocks_max: usize, positions_max: usize) -> Predictor {
        let plane = Plane { fits: [Fit::new(false), Fit::new(true)], ahead: None, steps: 0, turnover: 1.0 };
        Predictor {
            planes: vec![plane; planes],
            pages: vec![Page::UNSEEN; planes * blocks_max],
            blocks: blocks_max,
            named: vec![NOT_NAMED; positions_max],
            named_at: Vec::with_capacity(positions_max),
            scores: vec![0.0; positions_max],
            estimates: vec![0.0; positions_max],
        }
    }

    /// Return the bytes of its tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.planes.capacity() * size_of::<Plane>()
            + self.pages.capacity() * size_of::<Page>()
            + self.named.capacity() * size_of::<i16>()
            + self.named_at.capacity() * size_of::<u32>()
            + (self.scores.capacity() + self.estimates.capacity()) * size_of::<f32>()
    }

    /// Learn from a plane's attention, or from the digests' estimates of it, for the evaluated pages. Blocks and positions out of
    /// range are ignored; invalid shares count as none.
    pub fn observe(&mut self, plane: u16, pages: &Pages<'_>, seen: Seen<'_>, fresh: &mut Fresh) {
        let plane = usize::from(plane);
        if plane >= self.planes.len() || pages.blocks.is_empty() || pages.blocks.len() > self.named.len() {
            return;
        }
        match seen.kind {
            ScoreKind::Query => self.query(plane, pages, &seen, fresh),
            ScoreKind::Ahead => self.look_ahead(plane, pages, &seen),
            ScoreKind::Mass => {
                self.name(pages, &seen);
                self.mass(plane, pages, &seen, fresh);
            }
        }
    }

    /// Return the logarithm of the share that the latest attention named for a position, if it did.
    #[must_use]
    pub fn named(&self, position: u32) -> Option<f32> {
        self.named.get(position as usize).filter(|named| **named != NOT_NAMED).map(|named| real(*named))
    }

    /// Record the shares of an entry by position, replacing those of the previous entry.
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

    /// Store estimates in the named pages until attention is observed and the pages are evaluated; other pages need no update.
    fn query(&mut self, plane: usize, pages: &Pages<'_>, seen: &Seen<'_>, fresh: &mut Fresh) {
        let rest = rest_of(seen, pages.blocks.len());
        let missed = fresh.0.replace((seen.step, rest)).filter(|missed| missed.0 != seen.step);
        let of = &mut self.pages[plane * self.blocks..][..self.blocks];
        if let Some((_, rest)) = missed {
            // That query's attention was never reported.
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
        // A page that is not evaluated keeps an older guess; a lesson may use it if attention names the page.
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
            // Two loops: whether there are estimates is the same for all pages. Which pages were read is not, and costs no branch.
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
        self.planes[plane].steps += 1;
    }

    fn lesson_due(&self, plane: usize) -> bool {
        let of = &self.planes[plane];
        of.steps < EAGER || of.steps.is_multiple_of(of.every())
    }

    /// Return the page at a position, or one without observations if it is out of range.
    fn page(&self, plane: usize, pages: &Pages<'_>, at: u32) -> &Page {
        let of = &self.pages[plane * self.blocks..][..self.blocks];
        pages.blocks.get(at as usize).and_then(|&block| of.get(block as usize)).unwrap_or(&Page::UNSEEN)
    }

    /// Measure how much of a step's attention is on other pages than at the previous step.
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

    /// Derive from an entry how to interpret its shares.
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
        // At least a twentieth: digests that see nothing of the pages read are not trusted, and shares either add up to 1 or are
        // none.
        let named = (1.0 - rest_share(seen)).max(0.05);
        let scale = if self.named_at.is_empty() { 0 } else { fixed(ln(estimated.clamp(0.05, 1.0) / named)) };
        Step { scale: i32::from(scale), fresh: Some(fresh), rest, mean }
    }

    /// Fit to the current step, from the state before it.
    fn learn(&mut self, plane: usize, pages: &Pages<'_>, number: u64, step: &Step) {
        let of = &self.planes[plane];
        // If there are look-aheads, one lesson in four goes to the fit without them.
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

    /// Predict the natural logarithm of the share of each evaluated page of a plane's attention at `step`. The pages of `often`
    /// come first in `scores`, which has room for all. The shares of a plane add up to 1, so they compare across planes.
    pub fn rank(&self, plane: u16, step: u64, pages: &Pages<'_>, scores: &mut [f32]) {
        let plane = usize::from(plane);
        let count = pages.often.len() + pages.turn.len();
        if plane >= self.planes.len() || scores.len() < count {
            return;
        }
        let scores = &mut scores[..count];
        let most = self.fitted(plane, pages, self.planes[plane].ahead == Some(step), scores);
        let whole = most + ln(whole(scores, pages.often.len(), most));
        scores.iter_mut().for_each(|score| *score -= whole);
    }

    /// Compute w·x of the evaluated pages, and return the largest.
    fn fitted(&self, plane: usize, pages: &Pages<'_>, ahead: bool, scores: &mut [f32]) -> f32 {
        let of = &self.pages[plane * self.blocks..][..self.blocks];
        self.planes[plane].fits[usize::from(ahead)].scores(of, pages, scores)
    }

    /// Forget the observations of a block's page in a plane, because the block id will be reused.
    pub fn forget(&mut self, plane: u16, block: u32) {
        if block as usize >= self.blocks {
            return;
        }
        if let Some(page) = self.pages.get_mut(usize::from(plane) * self.blocks + block as usize) {
            *page = Page::UNSEEN;
        }
    }

    /// Return whether the plane's attention stays on the same pages from step to step. Such a plane need not be ranked at every
    /// step.
    #[must_use]
    pub fn stable(&self, plane: u16) -> bool {
        self.planes.get(usize::from(plane)).is_some_and(|p| p.turnover < STABLE)
    }
}

/// Write the shares of an entry into one value of their pages.
fn put(of: &mut [Page], blocks: &[u32], top: &[(u32, f32)], value: usize) {
    for &(at, ln) in top {
        if let Some(page) = blocks.get(at as usize).and_then(|&block| of.get_mut(block as usize)) {
            page.values[value] = share(ln);
        }
    }
}

/// Return the share of each page that is not named: an equal part of the rest.
fn rest_of(seen: &Seen<'_>, pages: usize) -> i16 {
    let unnamed = pages.saturating_sub(seen.top.len()).max(1);
    share(ln(rest_share(seen) / unnamed as f32))
}

/// Return the sum of exp(score − `most`) over all pages: the first `often` scores count once, the others [`TURNS`] times, for the
/// pages that are not evaluated at this step.
fn whole(scores: &[f32], often: usize, most: f32) -> f32 {
    exp_sum(&scores[..often], most) + TURNS as f32 * exp_sum(&scores[often..], most)
}

fn rest_share(seen: &Seen<'_>) -> f32 {
    if seen.rest.is_nan() { 0.0 } else { seen.rest.clamp(0.0, 1.0) }
}
