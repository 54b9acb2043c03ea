//! Ranks pages by their stored values.

use super::float::ln;
use super::page::{AHEAD, LEAST, Page, QUERY, real};
use super::predictor::whole;
use super::{Pages, Predictor, Scoring};

impl Predictor {
    /// Predict the natural logarithm of the share of each evaluated page of a plane's attention at `step`. The pages of `often`
    /// come first in `scores`, which has room for all. Under `attention` the shares of a plane add up to 1, so they compare across
    /// planes. The other rankings order only the pages of one plane.
    pub fn rank(&mut self, plane: u16, step: u64, pages: &Pages<'_>, scores: &mut [f32]) {
        let plane = usize::from(plane);
        let count = pages.often.len() + pages.turn.len();
        if plane >= self.planes.len() || scores.len() < count {
            return;
        }
        let scores = &mut scores[..count];
        let ahead = self.planes[plane].ahead == Some(step);
        let first = plane * self.blocks;
        let all = pages.blocks.len();
        let looked_at = pages.often.iter().chain(pages.turn);
        let block = |at: u32| pages.blocks.get(at as usize).map(|block| *block as usize).filter(|b| *b < self.blocks);
        let newest = |at: u32| {
            let page = block(at).map_or(&Page::UNSEEN, |block| &self.pages[first + block]);
            real(page.values[if ahead { AHEAD } else { QUERY }])
        };
        let sum = |at: u32| {
            let sum = block(at).and_then(|block| self.sums.get(first + block)).copied().unwrap_or_default();
            ln(sum).max(LEAST)
        };
        match self.config.scoring {
            Scoring::Attention => {
                let most = self.fitted(plane, pages, ahead, scores);
                let whole = most + ln(whole(scores, pages.often.len(), most));
                scores.iter_mut().for_each(|score| *score -= whole);
            }
            Scoring::Streaming => scores.iter_mut().zip(looked_at).for_each(|(score, &at)| {
                let from_end = all.saturating_sub(at as usize).max(1);
                *score = if at == 0 { 0.0 } else { -ln(from_end as f32) };
            }),
            Scoring::H2o | Scoring::SnapKv => {
                scores.iter_mut().zip(looked_at).for_each(|(score, &at)| *score = sum(at))
            }
            Scoring::Quest | Scoring::ArkVale => {
                scores.iter_mut().zip(looked_at).for_each(|(score, &at)| *score = newest(at));
            }
        }
    }
}
