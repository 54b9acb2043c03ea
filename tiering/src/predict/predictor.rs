//! The predictor of a space.

use super::fit::{FEATURES, Fit, Known, features};
use super::page::{LN_SHARE_MIN, Page, SHARE_MIN};
use super::{Kind, Scoring, Seen};

/// What a predictor ranks by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The ranking.
    pub scoring: Scoring,
}

#[derive(Clone, Debug, Default)]
struct Plane {
    fit: Fit,
    /// Step of the newest look-ahead and query estimates.
    ahead: Option<u64>,
    query: Option<u64>,
    /// Moving average of how much of one step's attention lay on other pages at the step before: 0 for a plane that does not move.
    turnover: f32,
}

/// Attention seen so far, by page id, and what it says about the next step.
#[derive(Debug)]
pub struct Predictor {
    config: Config,
    planes: Vec<Plane>,
    pages: Vec<Page>,
}

/// Below this turnover a plane's best pages hardly change.
const STABLE: f32 = 0.1;
const TURNOVER: f32 = 0.05;

impl Predictor {
    /// For page ids below `pages_max`.
    #[must_use]
    pub fn new(planes: usize, pages_max: usize, config: Config) -> Predictor {
        let plane = Plane { turnover: 1.0, ..Plane::default() };
        Predictor { config, planes: vec![plane; planes], pages: vec![Page::default(); pages_max] }
    }

    /// Learns from what a plane's attention over `pages` (ids in index order) looked at. Positions and ids that are not there
    /// are ignored, and so are shares that are no numbers.
    pub fn observe(&mut self, plane: u16, pages: &[u32], seen: Seen<'_>) {
        let Some(of_plane) = self.planes.get_mut(usize::from(plane)) else { return };
        let unnamed = pages.len().saturating_sub(seen.top.len()).max(1);
        let rest = (seen.rest.clamp(0.0, 1.0) / unnamed as f32).max(SHARE_MIN);
        let named = |ln: f32| if ln.is_nan() { LN_SHARE_MIN } else { ln.clamp(LN_SHARE_MIN, 0.0) };
        match seen.kind {
            Kind::Query | Kind::Ahead => {
                let ahead = seen.kind == Kind::Ahead;
                *(if ahead { &mut of_plane.ahead } else { &mut of_plane.query }) = Some(seen.step);
                let mut set = |id: u32, ln: f32| {
                    if let Some(page) = self.pages.get_mut(id as usize) {
                        *(if ahead { &mut page.ahead } else { &mut page.query }) = ln;
                    }
                };
                pages.iter().for_each(|&id| set(id, rest.ln()));
                for &(at, ln) in seen.top {
                    if let Some(&id) = pages.get(at as usize) {
                        set(id, named(ln));
                    }
                }
            }
            Kind::Mass => {
                self.learn(plane, pages, &seen, rest);
                let mut moved = 0.0;
                for &id in pages {
                    if let Some(page) = self.pages.get_mut(id as usize) {
                        // Marks the page as not named; `last` still holds the step before where it is named.
                        page.slow = page.slow.max(SHARE_MIN);
                    }
                }
                let mut named_at = seen.top.iter().map(|&(at, ln)| (at as usize, named(ln).exp())).collect::<Vec<_>>();
                named_at.sort_unstable_by_key(|n| n.0);
                let mut next = named_at.iter().peekable();
                for (at, &id) in pages.iter().enumerate() {
                    let Some(page) = self.pages.get_mut(id as usize) else { continue };
                    let mut share = rest;
                    while let Some((_, of)) = next.next_if(|n| n.0 <= at) {
                        share = *of;
                    }
                    moved += (share - page.last).max(0.0);
                    page.saw(share);
                }
                let of_plane = &mut self.planes[usize::from(plane)];
                of_plane.turnover += TURNOVER * (moved.min(1.0) - of_plane.turnover);
            }
        }
    }

    fn known(&self, plane: u16, step: u64) -> Known {
        let of_plane = &self.planes[usize::from(plane)];
        Known {
            ahead: of_plane.ahead == Some(step),
            query: of_plane.query.is_some_and(|q| q == step || q.wrapping_add(1) == step),
        }
    }

    fn learn(&mut self, plane: u16, pages: &[u32], seen: &Seen<'_>, _rest: f32) {
        if self.config.scoring != Scoring::Attention {
            return;
        }
        let known = self.known(plane, seen.step);
        let fit = &self.planes[usize::from(plane)].fit;
        let page = |at: usize| pages.get(at).and_then(|&id| self.pages.get(id as usize)).copied().unwrap_or_default();
        let of = |at: usize| features(&page(at), &page(at.saturating_sub(1)), pages.len() - 1 - at, known);
        let most = (0..pages.len()).map(|at| fit.score(&of(at))).fold(f32::NEG_INFINITY, f32::max);
        let (mut sum, mut mean) = (0.0f32, [0.0f32; FEATURES]);
        for at in 0..pages.len() {
            let x = of(at);
            let e = (fit.score(&x) - most).exp();
            sum += e;
            mean.iter_mut().zip(x).for_each(|(m, x)| *m += e * x);
        }
        let (mut total, mut target) = (0.0f32, [0.0f32; FEATURES]);
        for &(at, ln) in seen.top {
            if (at as usize) < pages.len() && ln <= 0.0 {
                let share = ln.exp();
                total += share;
                target.iter_mut().zip(of(at as usize)).for_each(|(t, x)| *t += share * x);
            }
        }
        if !(sum > 0.0 && total > 0.0) {
            return;
        }
        let mut gradient = [0.0; FEATURES];
        for (g, (m, t)) in gradient.iter_mut().zip(mean.iter().zip(target)) {
            *g = m / sum - t / total;
        }
        self.planes[usize::from(plane)].fit.step(&gradient);
    }

    /// Predicts, for every page of a plane's attention at `step`, the natural logarithm of its share, up to a constant of the
    /// plane; larger is better. `scores` is as long as `pages`.
    pub fn rank(&mut self, plane: u16, step: u64, pages: &[u32], scores: &mut [f32]) {
        if usize::from(plane) >= self.planes.len() {
            return;
        }
        let known = self.known(plane, step);
        let fit = &self.planes[usize::from(plane)].fit;
        let page = |at: usize| pages.get(at).and_then(|&id| self.pages.get(id as usize)).copied().unwrap_or_default();
        for (at, score) in scores.iter_mut().enumerate().take(pages.len()) {
            let this = page(at);
            let estimate = if known.ahead { this.ahead } else { this.query };
            *score = match self.config.scoring {
                Scoring::Streaming => -((pages.len() - at) as f32).ln(),
                Scoring::H2o => this.slow.max(SHARE_MIN).ln(),
                Scoring::SnapKv => this.fast.max(SHARE_MIN).ln(),
                Scoring::Quest => estimate,
                Scoring::ArkVale => 0.5 * (estimate + this.last.max(SHARE_MIN).ln()),
                Scoring::Attention => {
                    let before = page(at.saturating_sub(1));
                    fit.score(&features(&this, &before, pages.len() - 1 - at, known))
                }
            };
        }
    }

    /// The page id will stand for something else.
    pub fn forget(&mut self, page: u32) {
        if let Some(page) = self.pages.get_mut(page as usize) {
            *page = Page::default();
        }
    }

    /// Whether the plane's best pages hardly change from step to step, so that it need not be ranked at every step.
    #[must_use]
    pub fn stable(&self, plane: u16) -> bool {
        self.planes.get(usize::from(plane)).is_some_and(|p| p.turnover < STABLE)
    }
}
