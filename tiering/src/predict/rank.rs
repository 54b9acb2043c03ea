//! From what is remembered to a ranking.

use super::float::{exp_sum, ln};
use super::page::{AHEAD, LEAST, Page, QUERY, real};
use super::{Predictor, Scoring};

impl Predictor {
    /// Predicts, for every page of a plane's attention at `step`, the natural logarithm of its share. Under `attention` the shares
    /// of a plane add up to 1, so that they compare across planes; the other rankings order the pages of one plane. `scores` is as
    /// long as `pages`; what has no page is not touched.
    pub fn rank(&mut self, plane: u16, step: u64, pages: &[u32], scores: &mut [f32]) {
        let Some(of_plane) = self.planes.get(usize::from(plane)) else { return };
        let ahead = of_plane.ahead == Some(step);
        let count = pages.len().min(scores.len());
        let (pages, scores) = (&pages[..count], &mut scores[..count]);
        let page = |id: u32| self.pages.get(id as usize).unwrap_or(&Page::UNSEEN);
        let sum = |id: u32| ln(self.sums.get(id as usize).copied().unwrap_or_default()).max(LEAST);
        let newest = |page: &Page| real(page.values[if ahead { AHEAD } else { QUERY }]);
        match self.config.scoring {
            Scoring::Attention => self.fitted(usize::from(plane), pages, ahead, scores),
            Scoring::Streaming => {
                for (at, score) in scores.iter_mut().enumerate() {
                    *score = if at == 0 { 0.0 } else { -ln((count - at) as f32) };
                }
            }
            Scoring::H2o | Scoring::SnapKv => scores.iter_mut().zip(pages).for_each(|(score, &id)| *score = sum(id)),
            Scoring::Quest | Scoring::ArkVale => {
                scores.iter_mut().zip(pages).for_each(|(score, &id)| *score = newest(page(id)));
            }
        }
    }

    fn fitted(&self, plane: usize, pages: &[u32], ahead: bool, scores: &mut [f32]) {
        let most = self.planes[plane].fits[usize::from(ahead)].scores(&self.pages, pages, scores);
        let whole = most + ln(exp_sum(scores, most));
        scores.iter_mut().for_each(|score| *score -= whole);
    }
}
