//! Outcome of every page that was prefetched to tier 0.

use super::super::trace::Attention;
use super::baseline::Oracle;

/// Counters of a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct Stats {
    /// By plane: share of attention in tier 0 at the time of use, summed over steps.
    pub(super) recall: Vec<f64>,
    /// By plane: pages in tier 0 at the time of use, summed over steps.
    pub(super) pages: Vec<u64>,
    /// Attention mass of the oracle's pages that were not in tier 0 at the previous use, and of those of them that were prefetched.
    new_mass: f64,
    covered: f64,
    /// Prefetched pages, and those of them that the oracle has at their use or the next one.
    pub(super) prefetched: u64,
    precise: u64,
    /// Prefetches that ended after the use that they were for.
    late: u64,
    /// Prefetched pages that left tier 0 without being one of the oracle's pages while they were there.
    wasted: u64,
    /// Pages loaded because a step waited for them.
    pub(super) demanded: u64,
    steps: u64,
    /// By plane and page: in tier 0 at the last use.
    there: Vec<bool>,
    /// By plane and page: prefetched, and not one of the oracle's pages yet.
    idle: Vec<bool>,
    stride: usize,
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

impl Stats {
    pub(super) fn new(trace: &Attention) -> Stats {
        let flags = || vec![false; trace.planes * trace.pages];
        Stats {
            recall: vec![0.0; trace.planes],
            pages: vec![0; trace.planes],
            there: flags(),
            idle: flags(),
            stride: trace.pages,
            ..Stats::default()
        }
    }

    /// Count a prefetch of a page for its use at `step`; `late`: it arrived after that use.
    pub(super) fn prefetched(&mut self, oracle: &Oracle, (step, plane, page): (usize, usize, u32), late: bool) {
        self.prefetched += 1;
        self.late += u64::from(late);
        self.precise += u64::from(oracle.has(step, plane, page) || oracle.has(step + 1, plane, page));
        self.idle[plane * self.stride + page as usize] = true;
    }

    /// Count a use of a plane. `read`: its pages in tier 0; `mass`: attention of each page. The first step only serves as the basis
    /// of the next.
    pub(super) fn used(&mut self, oracle: &Oracle, (step, plane): (usize, usize), read: &[bool], mass: &[f32]) {
        let tail = read.len() - 1;
        if step > 0 {
            self.steps += u64::from(plane == 0);
            let there = (0..read.len()).filter(|page| read[*page]);
            self.recall[plane] += there.map(|page| f64::from(mass[page])).sum::<f64>();
            self.pages[plane] += read.iter().filter(|there| **there).count() as u64;
            for &page in oracle.at(step, plane) {
                // The page that is being written cannot be prefetched.
                if page as usize != tail && !self.there[plane * self.stride + page as usize] {
                    self.new_mass += f64::from(mass[page as usize]);
                    self.covered += if read[page as usize] { f64::from(mass[page as usize]) } else { 0.0 };
                }
            }
        }
        for (page, &there) in read.iter().enumerate() {
            let at = plane * self.stride + page;
            if self.idle[at] && (!there || oracle.has(step, plane, page as u32)) {
                self.wasted += u64::from(!there);
                self.idle[at] = false;
            }
            self.there[at] = there;
        }
    }

    /// End the replay: prefetched pages that were never one of the oracle's count as wasted.
    pub(super) fn end(&mut self) {
        self.wasted += self.idle.iter().filter(|idle| **idle).count() as u64;
        self.idle.fill(false);
        let steps = self.steps.max(1) as f64;
        self.recall.iter_mut().for_each(|recall| *recall /= steps);
    }

    pub(super) fn coverage(&self) -> f64 {
        ratio(self.covered, self.new_mass)
    }

    pub(super) fn precision(&self) -> f64 {
        ratio(self.precise as f64, self.prefetched as f64)
    }

    pub(super) fn late(&self) -> f64 {
        ratio(self.late as f64, self.prefetched as f64)
    }

    pub(super) fn wasted(&self) -> u64 {
        self.wasted
    }

    /// Return the mean number of pages of a plane in tier 0 at its use.
    pub(super) fn pages(&self, plane: usize) -> f64 {
        ratio(self.pages[plane] as f64, self.steps as f64)
    }
}
