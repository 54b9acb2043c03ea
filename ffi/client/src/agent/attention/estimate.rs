//! Estimates the attention that an `approx` step lost on the pages that it did not read.
//!
//! Where digests exist for each query head, each head's loss is estimated separately. A mean of ratios is not the ratio of
//! means, and the head that loses most matters. The engine may report the sum that each head read (`sums`). Then only the
//! unread pages are estimated; otherwise the read pages are estimated too, for the same head. The pages that were read show by
//! how much sketches overestimate or underestimate.

use super::{Candidate, Heads};

/// Attention that a step lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lost {
    /// Share of attention on unread pages, mean over query heads.
    pub mean: f32,
    /// The same for the head that lost most. Equal to the mean if heads are not known separately.
    pub worst: f32,
    /// Factor that turns predictions into shares of the attention read.
    pub factor: f32,
}

/// Estimate the loss on the pages that were not read; their share is NaN. `shares` are the shares of the pages that were
/// read, of everything read. `heads` are the digests' scores for the step's query. `sums` has, for each head, the logarithm of
/// the sum of exponentials that it read. `heads` and `sums` may be empty.
#[must_use]
pub fn estimate(pages: &[Candidate], shares: &[f32], heads: &Heads, sums: &[f32]) -> Lost {
    let (mean, factor) = by_prediction(pages, shares);
    let told = sums.len() == heads.count() && sums.iter().all(|sum| sum.is_finite());
    let ratios = if told { beside(pages, shares, heads, sums) } else { by_heads(pages, shares, heads) };
    if ratios.is_empty() {
        return Lost { mean, worst: mean, factor };
    }
    let lost = ratios.iter().map(|ratio| if ratio.is_finite() { ratio / (1.0 + ratio) } else { 1.0 });
    Lost { mean: lost.clone().sum::<f32>() / ratios.len() as f32, worst: lost.fold(0.0, f32::max), factor }
}

/// Return one head's digest scores, summed over the pages that were read and over those that were not.
fn split(pages: &[Candidate], shares: &[f32], of_head: &[f32]) -> (f32, f32) {
    let each = || pages.iter().zip(shares).zip(of_head);
    let sum = |read: bool| each().filter(|((_, share), _)| share.is_finite() == read).map(|(_, of)| of).sum();
    (sum(true), sum(false))
}

/// Return the loss of each head as a multiple of the attention that it read, by the reported sums.
fn beside(pages: &[Candidate], shares: &[f32], heads: &Heads, sums: &[f32]) -> Vec<f32> {
    let mut told = 0.0;
    let mut ratios: Vec<f32> = Vec::with_capacity(heads.count());
    for ((of, total), read) in heads.of(pages.len()).zip(sums) {
        let (known, omitted) = split(pages, shares, of);
        told += known * (total - read).exp();
        ratios.push(omitted * (total - read).exp());
    }
    // Correct by the ratio of the true shares of pages with digests to the shares that the digests predict.
    let truth = sealed(pages, shares).sum::<f32>() * ratios.len() as f32;
    if told > 0.0 && truth > 0.0 {
        ratios.iter_mut().for_each(|ratio| *ratio *= truth / told);
    }
    ratios
}

/// Return the loss of each head as a multiple of the attention that it read, by the digests. For pages without digests (unsealed),
/// only the mean over heads is known.
fn by_heads(pages: &[Candidate], shares: &[f32], heads: &Heads) -> Vec<f32> {
    let known: f32 = sealed(pages, shares).sum();
    let ratio = |(of, _): (&[f32], f32)| {
        let (read, omitted) = split(pages, shares, of);
        if omitted > 0.0 { omitted * known / read } else { 0.0 }
    };
    heads.of(pages.len()).map(ratio).collect()
}

/// Return the shares of pages that were read and have digests.
fn sealed<'a>(pages: &'a [Candidate], shares: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    pages.iter().zip(shares).filter(|(page, share)| page.digest.is_some() && share.is_finite()).map(|(_, share)| *share)
}

/// Return the lost share by the predictions, and the factor that corrects them. The factor comes from the pages that were
/// picked by prediction. Sinks and recent pages behave differently, so they count only if nothing else was read.
fn by_prediction(pages: &[Candidate], shares: &[f32]) -> (f32, f32) {
    let (mut picked, mut always_kept, mut omitted) = ((0.0, 0.0), (0.0, 0.0), 0.0);
    for (page, share) in pages.iter().zip(shares) {
        let sum = match (share.is_finite(), page.always_kept) {
            (true, false) => &mut picked,
            (true, true) if page.digest.is_some() => &mut always_kept,
            (true, true) => continue, // not sealed: it has no prediction
            (false, _) => {
                omitted += page.predicted;
                continue;
            }
        };
        *sum = (sum.0 + share, sum.1 + page.predicted);
    }
    let (read, predicted) = if picked.1 > 0.0 { picked } else { always_kept };
    let factor = if predicted > 0.0 { read / predicted } else { 1.0 };
    let ratio = factor * omitted;
    (ratio / (1.0 + ratio), factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f32 = f32::NAN;

    fn pages(predicted: &[f32]) -> Vec<Candidate> {
        let page = |(at, predicted): (usize, &f32)| Candidate {
            index: at as u32,
            digest: Some(0.1),
            predicted: *predicted,
            ..Candidate::default()
        };
        predicted.iter().enumerate().map(page).collect()
    }

    fn close(found: f32, expected: f32) {
        assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
    }

    #[test]
    fn without_heads_it_is_the_predicted_share_of_what_was_not_read() {
        let mut pages = pages(&[0.2, 0.1, 0.05, 0.05]);
        pages[0].always_kept = true;
        // Of the attention read, the hard page has 0.4 and the other page 0.6. So predictions are a sixth of the truth.
        let told = |pages: &[Candidate], shares: &[f32]| estimate(pages, shares, &Heads::default(), &[]);
        let Lost { mean, worst, factor } = told(&pages, &[0.4, 0.6, NAN, NAN]);
        assert!((factor - 6.0).abs() < 1e-5 && (mean - 0.6 / 1.6).abs() < 1e-6 && worst == mean);
        assert_eq!(told(&pages[..2], &[0.4, 0.6]).mean, 0.0);
        // If only a hard page was read, its factor is used: its true share is half of the prediction.
        let Lost { mean, factor, .. } = told(&pages, &[0.1, NAN, NAN, NAN]);
        assert!((factor - 0.5).abs() < 1e-6 && (mean - 0.1 / 1.1).abs() < 1e-6);
    }

    #[test]
    fn each_head_loses_for_itself() {
        // One head has all but a hundredth of its attention on read pages; the other has three quarters on unread pages.
        let pages = pages(&[0.1; 4]);
        let heads = Heads::of_shares(&[&[0.5, 0.49, 0.01, 0.0], &[0.25, 0.0, 0.5, 0.25]]);
        let lost = estimate(&pages, &[0.7, 0.3, NAN, NAN], &heads, &[]);
        close(lost.mean, 0.38);
        close(lost.worst, 0.75);
        // An unsealed page had half of the attention read, so the shares of the others count half as much.
        let mut tail = pages.clone();
        tail[1].digest = None;
        let heads = Heads::of_shares(&[&[0.5, 0.0, 0.5, 0.0]]);
        close(estimate(&tail, &[0.5, 0.5, NAN, NAN], &heads, &[]).mean, 0.5 / (0.5 + 1.0));
    }

    #[test]
    fn what_heads_read_in_truth_counts_if_it_is_told() {
        let pages = pages(&[0.1; 3]);
        let heads = Heads::of_shares(&[&[0.5, 0.25, 0.25], &[0.5, 0.0, 0.5]]);
        // The first head read 0.75, as its digests say. The other read 1.5, because of a tail that has no digests.
        let sums = [0.75f32.ln(), 1.5f32.ln()];
        let read = [(0.5 / 0.75 + 0.5 / 1.5) / 2.0, 0.25 / 0.75 / 2.0, NAN];
        let lost = estimate(&pages, &read, &heads, &sums);
        close(lost.mean, (0.25 / 1.0 + 0.5 / 2.0) / 2.0);
        // Digests that overestimate every page by the same factor are corrected by the pages that were read.
        let over: Vec<f32> = sums.iter().map(|sum| sum - 2f32.ln()).collect();
        close(estimate(&pages, &read, &heads, &over).mean, lost.mean);
        // Sums that are not finite, or too few of them, are ignored.
        let untold = estimate(&pages, &read, &heads, &[]);
        assert_eq!(estimate(&pages, &read, &heads, &[f32::NEG_INFINITY; 2]), untold);
        assert_eq!(estimate(&pages, &read, &heads, &sums[..1]), untold);
        assert!(estimate(&pages, &[NAN; 3], &heads, &sums).mean <= 1.0);
    }
}
