//! The predictor of a space.

use super::fit::{Features, Fit, Lesson, features};
use super::float::{exp, ln};
use super::page::{AHEAD, FRESH, LAST, LEAST, Page, QUERY, fixed};
use super::{Kind, Scoring, Seen};

/// What a predictor ranks by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The ranking.
    pub scoring: Scoring,
}

#[derive(Clone, Debug)]
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

/// Attention seen so far, by page id, and what it says about the next step.
#[derive(Debug)]
pub struct Predictor {
    pub(super) config: Config,
    pub(super) planes: Vec<Plane>,
    pub(super) pages: Vec<Page>,
    /// Shares accumulated (`h2o`) or pooled (`snapkv`), by page id; empty otherwise.
    pub(super) sums: Vec<f32>,
    /// Of the entry in hand, by position: what it says of the page, NaN where it says nothing.
    named: Vec<f32>,
}

/// Below this turnover a plane's attention stays where it is.
const STABLE: f32 = 0.1;
const TURNOVER_RATE: f32 = 0.05;
/// Each of the first steps is learnt from; later every so manieth, by which the fit costs little and loses nothing measurable.
const EAGER: u64 = 64;
const LEARN_EVERY: u64 = 4;
const LEARN_EVERY_STABLE: u64 = 16;
/// A page that was not read and has no digest drifts towards the mean share by this part a step, until it is read again and its
/// share is known: so that nothing stays unread because it was not read.
const DRIFT: f32 = 0.02;
/// Queries over which `snapkv` pools.
const WINDOW: f32 = 32.0;

fn share_ln(ln: f32) -> f32 {
    if ln.is_nan() { LEAST } else { ln.clamp(LEAST, 0.0) }
}

impl Predictor {
    /// For page ids below `pages_max`.
    #[must_use]
    pub fn new(planes: usize, pages_max: usize, config: Config) -> Predictor {
        let plane =
            Plane { fits: [Fit::new(false), Fit::new(true)], ahead: None, fresh: None, steps: 0, turnover: 1.0 };
        let sums = if matches!(config.scoring, Scoring::H2o | Scoring::SnapKv) { pages_max } else { 0 };
        Predictor {
            config,
            planes: vec![plane; planes],
            pages: vec![Page::default(); pages_max],
            sums: vec![0.0; sums],
            named: vec![f32::NAN; pages_max],
        }
    }

    /// Learns from what a plane's attention over `pages` (ids in index order) looked at, or from what digests say of it. Page
    /// ids and positions that are not there are ignored; shares that are no numbers count as none.
    pub fn observe(&mut self, plane: u16, pages: &[u32], seen: Seen<'_>) {
        let pages = &pages[..pages.len().min(self.named.len())];
        if usize::from(plane) >= self.planes.len() || pages.is_empty() {
            return;
        }
        match seen.kind {
            Kind::Query => self.estimates(usize::from(plane), pages, &seen, FRESH),
            Kind::Ahead => self.estimates(usize::from(plane), pages, &seen, AHEAD),
            Kind::Mass => self.mass(usize::from(plane), pages, &seen),
        }
    }

    fn estimates(&mut self, plane: usize, pages: &[u32], seen: &Seen<'_>, value: usize) {
        let plane = &mut self.planes[plane];
        let missed = value == FRESH && plane.fresh.is_some();
        *(if value == AHEAD { &mut plane.ahead } else { &mut plane.fresh }) = Some(seen.step);
        let rest = fixed(rest_of(seen, pages.len()));
        for &id in pages {
            if let Some(page) = self.pages.get_mut(id as usize) {
                if missed {
                    // That query's attention was never told.
                    page.set(QUERY, fixed(page.get(FRESH)));
                }
                page.set(value, rest);
            }
        }
        for &(at, ln) in seen.top {
            if let Some(page) = pages.get(at as usize).and_then(|&id| self.pages.get_mut(id as usize)) {
                page.set(value, fixed(share_ln(ln)));
            }
        }
    }

    fn mass(&mut self, plane: usize, pages: &[u32], seen: &Seen<'_>) {
        let with_query = self.planes[plane].fresh.take() == Some(seen.step);
        // What was read: as a share of what the digests leave over from the pages that were not.
        let (mut named, mut named_estimate) = (0.0f32, 0.0f32);
        for &(at, share) in seen.top.iter().filter(|(at, _)| (*at as usize) < pages.len()) {
            let place = &mut self.named[at as usize];
            if place.is_nan() {
                *place = share_ln(share);
                named += exp(*place);
                if let Some(page) = self.pages.get(pages[at as usize] as usize) {
                    named_estimate += exp(page.get(FRESH));
                }
            }
        }
        let scale = if with_query && named > 0.0 { ln(named_estimate.clamp(0.05, 1.0) / named) } else { 0.0 };
        let rest = rest_of(seen, pages.len());
        let mean = -ln(pages.len() as f32);
        let unread = |page: &Page| match with_query {
            true => page.get(FRESH),
            false => rest.max(page.get(LAST) + DRIFT * (mean - page.get(LAST)).max(0.0)),
        };
        self.learn(plane, pages, seen.step, scale, &unread);
        let mut moved = 0.0f32;
        for (&id, named) in pages.iter().zip(&self.named) {
            let Some(page) = self.pages.get_mut(id as usize) else { continue };
            let read = !named.is_nan();
            let share = if read { share_ln(named + scale) } else { unread(page) };
            if read {
                moved += (exp(share) - exp(page.get(LAST))).max(0.0);
            }
            page.saw(share, read, with_query);
        }
        self.accumulate(pages);
        for &(at, _) in seen.top {
            if let Some(place) = self.named.get_mut(at as usize) {
                *place = f32::NAN;
            }
        }
        let plane = &mut self.planes[plane];
        plane.steps += 1;
        plane.turnover += TURNOVER_RATE * (moved.min(1.0) - plane.turnover);
    }

    /// What `h2o` and `snapkv` rank by: attention as it was read, no estimates.
    fn accumulate(&mut self, pages: &[u32]) {
        if self.sums.is_empty() {
            return;
        }
        for (&id, named) in pages.iter().zip(&self.named) {
            let Some(sum) = self.sums.get_mut(id as usize) else { continue };
            let share = if named.is_nan() { 0.0 } else { exp(*named) };
            match self.config.scoring {
                Scoring::H2o => *sum += share,
                _ => *sum += (share - *sum) / WINDOW,
            }
        }
    }

    /// Fits to the step in hand, from what was known before it.
    fn learn(&mut self, plane: usize, pages: &[u32], step: u64, scale: f32, unread: &dyn Fn(&Page) -> f32) {
        let of = &self.planes[plane];
        let every = if of.turnover < STABLE { LEARN_EVERY_STABLE } else { LEARN_EVERY };
        if self.config.scoring != Scoring::Attention || of.steps >= EAGER && !of.steps.is_multiple_of(every) {
            return;
        }
        // Where there are look-aheads, the fit without them learns from every fourth lesson.
        let ahead = of.ahead == Some(step) && of.steps / every % 4 != 3;
        let fit = &of.fits[usize::from(ahead)];
        let most = self.each(pages, ahead).fold(f32::NEG_INFINITY, |most, (_, x)| most.max(fit.score(&x)));
        let mut lesson = Lesson::default();
        for (at, x) in self.each(pages, ahead) {
            let named = self.named[at];
            let share = if named.is_nan() {
                self.pages.get(pages[at] as usize).map_or(LEAST, unread)
            } else {
                share_ln(named + scale)
            };
            lesson.page(&x, fit.score(&x) - most, exp(share));
        }
        self.planes[plane].fits[usize::from(ahead)].step(&lesson);
    }

    /// Every page's position and features.
    pub(super) fn each(&self, pages: &[u32], ahead: bool) -> impl Iterator<Item = (usize, Features)> {
        let mut before = None;
        pages.iter().enumerate().map(move |(at, &id)| {
            let page = self.pages.get(id as usize).copied().unwrap_or_default();
            let last = page.get(LAST);
            let x = features(&page, before.unwrap_or(last), at, pages.len() - 1 - at, ahead);
            before = Some(last);
            (at, x)
        })
    }

    /// The page id will stand for something else.
    pub fn forget(&mut self, page: u32) {
        if let Some(page) = self.pages.get_mut(page as usize) {
            *page = Page::default();
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

/// The logarithm of what each page that is not named gets of the rest.
fn rest_of(seen: &Seen<'_>, pages: usize) -> f32 {
    let unnamed = pages.saturating_sub(seen.top.len()).max(1);
    let rest = if seen.rest.is_nan() { 0.0 } else { seen.rest.clamp(0.0, 1.0) };
    ln(rest / unnamed as f32).max(LEAST)
}
