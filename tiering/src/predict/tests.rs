//! Tests of the predictor: learning, cost, and tolerance of bad input.

use super::*;
use proptest::prelude::*;

fn order(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
}

/// Evaluate every position.
const OFTEN: [u32; 1024] = {
    let mut all = [0; 1024];
    let mut at = 0;
    while at < 1024 {
        all[at] = at as u32;
        at += 1;
    }
    all
};

fn all(blocks: &[u32]) -> Pages<'_> {
    Pages { blocks, often: &OFTEN[..blocks.len()], turn: &[] }
}

fn ranked(predictor: &Predictor, step: u64, blocks: &[u32]) -> Vec<f32> {
    let mut scores = vec![f32::NAN; blocks.len()];
    predictor.rank(0, step, &all(blocks), &mut scores);
    scores
}

#[test]
fn what_was_read_ranks_first() {
    let mut predictor = Predictor::new(1, 16, 1024);
    let mut fresh = Fresh::default();
    let pages: Vec<u32> = (0..16).rev().collect();
    for step in 0..150 {
        let seen = Seen { kind: ScoreKind::Mass, step, rest: 0.1, top: &[(5, -0.5), (9, -1.2)] };
        predictor.observe(0, &all(&pages), seen, &mut fresh);
    }
    let scores = ranked(&predictor, 150, &pages);
    assert_eq!(order(&scores)[..2], [5, 9]);
    assert!(predictor.stable(0));
    predictor.forget(0, pages[5]);
    assert!(ranked(&predictor, 150, &pages)[5] < scores[9], "it did not forget the page");
}

#[test]
fn predicted_shares_add_up() {
    let mut predictor = Predictor::new(1, 500, 1024);
    let mut fresh = Fresh::default();
    let pages: Vec<u32> = (0..500).collect();
    for step in 0..20 {
        predictor.observe(
            0,
            &all(&pages),
            Seen { kind: ScoreKind::Mass, step, rest: 0.5, top: &[(7, -1.0), (8, -2.0)] },
            &mut fresh,
        );
        let sum: f32 = ranked(&predictor, step + 1, &pages).iter().map(|score| score.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-3, "{sum}");
    }
}

/// The attention of the plane jumps: only the look-ahead predicts the target.
#[test]
fn it_learns_whom_to_trust() {
    let mut predictor = Predictor::new(1, 64, 1024);
    let mut fresh = Fresh::default();
    let pages: Vec<u32> = (0..64).collect();
    let (mut caught, mut trials) = (0, 0);
    for step in 0..400u64 {
        let target = (step * 37 % 61 + 2) as u32;
        let decoy = (step * 23 % 59 + 3) as u32;
        let ahead = [(target, -1.0), (decoy, -2.0), (4, -2.5)];
        predictor.observe(0, &all(&pages), Seen { kind: ScoreKind::Ahead, step, rest: 0.3, top: &ahead }, &mut fresh);
        if step >= 200 {
            trials += 1;
            caught += u32::from(order(&ranked(&predictor, step, &pages))[0] == target as usize);
        }
        // Stable pages keep a larger share than history alone would give to the target.
        let seen = [(target, -0.9), (4, -2.0), (5, -2.2)];
        predictor.observe(0, &all(&pages), Seen { kind: ScoreKind::Mass, step, rest: 0.2, top: &seen }, &mut fresh);
    }
    assert!(caught * 10 >= trials * 9, "{caught} of {trials} jumps");
    // Without a look-ahead the fit for that case ranks the stable pages first.
    let blind = order(&ranked(&predictor, 400, &pages));
    assert!(blind[..3].contains(&4) && blind[..3].contains(&5), "{:?}", &blind[..5]);
}

/// There are no observations of a page that is not read: its digest provides the estimate.
#[test]
fn digests_speak_for_pages_that_are_not_read() {
    let mut predictor = Predictor::new(1, 32, 1024);
    let mut fresh = Fresh::default();
    let pages: Vec<u32> = (0..32).collect();
    for step in 0..100 {
        let query = [(3, -1.0), (20, -0.8), (6, -4.0)];
        predictor.observe(0, &all(&pages), Seen { kind: ScoreKind::Query, step, rest: 0.1, top: &query }, &mut fresh);
        // Page 20 is absent: the observed shares add up to 1 without it.
        predictor.observe(
            0,
            &all(&pages),
            Seen { kind: ScoreKind::Mass, step, rest: 0.0, top: &[(3, -0.1), (6, -2.4)] },
            &mut fresh,
        );
    }
    let scores = ranked(&predictor, 100, &pages);
    assert_eq!(order(&scores)[..2], [20, 3], "{scores:?}");
    let (share, wanted) = (scores[3].exp(), (-1.0f32).exp());
    assert!((share - wanted).abs() < 0.1, "{share} for {wanted}: it was read together with another page");
}

/// A page evaluated only in turn gets about the same prediction as if it were evaluated at every step.
#[test]
fn turns_are_enough_for_what_hardly_changes() {
    let blocks: Vec<u32> = (0..64).collect();
    let mut predictors = [0, 1].map(|_| (Predictor::new(1, 64, 64), Fresh::default()));
    let often: Vec<u32> = (0..8).collect();
    let mut scores = [vec![0.0; 64], vec![0.0; 64]];
    for step in 0..400u64 {
        let turn: Vec<u32> = (8..64).filter(|at| u64::from(at % TURNS) == step % u64::from(TURNS)).collect();
        let some = Pages { blocks: &blocks, often: &often, turn: &turn };
        for ((predictor, fresh), pages) in predictors.iter_mut().zip([all(&blocks), some]) {
            // At first the digests assign almost no share to other pages, later a tenth.
            let rest = if step < 200 { 0.01 } else { 0.1 };
            predictor.observe(
                0,
                &pages,
                Seen { kind: ScoreKind::Query, step, rest, top: &[(1, -0.5), (3, -1.2)] },
                fresh,
            );
            predictor.observe(
                0,
                &pages,
                Seen { kind: ScoreKind::Mass, step, rest: 0.0, top: &[(1, -0.3), (3, -1.0)] },
                fresh,
            );
        }
        predictors[0].0.rank(0, step + 1, &all(&blocks), &mut scores[0]);
        predictors[1].0.rank(0, step + 1, &some, &mut scores[1]);
        if step % 100 > 90 {
            for (place, at) in often.iter().chain(&turn).enumerate() {
                let (want, is) = (scores[0][*at as usize], scores[1][place]);
                assert!((want - is).abs() < 0.3, "step {step}, page {at}: {is} for {want}");
            }
        }
    }
}

/// Without digests, a page that lost its rank is read again, so that its share is observed.
#[test]
fn nothing_starves() {
    let mut predictor = Predictor::new(1, 16, 1024);
    let mut fresh = Fresh::default();
    let pages: Vec<u32> = (0..16).collect();
    let mut read_at = [0u64; 16];
    for step in 1..3000 {
        let best = order(&ranked(&predictor, step, &pages));
        let mut top: Vec<(u32, f32)> =
            best[..4].iter().map(|&at| (at as u32, if at < 3 { -1.2 } else { -6.0 })).collect();
        top.sort_unstable_by_key(|t| t.0);
        best[..4].iter().for_each(|&at| read_at[at] = step);
        predictor.observe(0, &all(&pages), Seen { kind: ScoreKind::Mass, step, rest: 0.0, top: &top }, &mut fresh);
    }
    assert!(read_at.iter().all(|at| *at > 1500), "pages were last read at {read_at:?}");
    assert!(read_at[..3].iter().all(|at| *at > 2900), "pages were last read at {read_at:?}");
}

#[test]
fn nonsense_changes_nothing_that_matters() {
    let mut predictor = Predictor::new(1, 4, 1024);
    let mut fresh = Fresh::default();
    let pages = [0, 9, 2];
    for step in [u64::MAX, 0, 1] {
        for kind in [ScoreKind::Mass, ScoreKind::Query, ScoreKind::Ahead, ScoreKind::Mass] {
            let top = [(0, f32::NAN), (7, -1.0), (1, f32::INFINITY), (2, f32::NEG_INFINITY), (2, 80.0)];
            predictor.observe(0, &all(&pages), Seen { kind, step, rest: f32::NAN, top: &top }, &mut fresh);
            predictor.observe(0, &all(&pages), Seen { kind, step, rest: f32::INFINITY, top: &[] }, &mut fresh);
            predictor.observe(3, &all(&pages), Seen { kind, step: 0, rest: 0.0, top: &[] }, &mut fresh);
            predictor.observe(0, &all(&[]), Seen { kind, step: 0, rest: 0.0, top: &top }, &mut fresh);
        }
    }
    assert!(ranked(&predictor, 0, &pages).iter().all(|s| s.is_finite()));
    predictor.rank(0, 0, &all(&[]), &mut []);
    predictor.rank(9, 0, &all(&pages), &mut [0.0; 3]);
    predictor.forget(0, 1000);
    assert!(!predictor.stable(9));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For any input of an engine, every score is a number, and the same events give the same bits.
    #[test]
    fn any_entries_are_survived(
        entries in proptest::collection::vec(
            (0u8..3, 0u64..4, any::<f32>(), proptest::collection::vec((0u32..40, any::<f32>()), 0..12)), 1..40)
    ) {
        let pages: Vec<u32> = (0..30).map(|i| i * 7 % 33).collect();
        let run = || {
            let mut predictor = Predictor::new(1, 32, 1024);
            let mut fresh = Fresh::default();
            for (kind, step, rest, top) in &entries {
                let kind = [ScoreKind::Mass, ScoreKind::Query, ScoreKind::Ahead][usize::from(*kind)];
                predictor.observe(0, &all(&pages), Seen { kind, step: *step, rest: *rest, top }, &mut fresh);
            }
            ranked(&predictor, 2, &pages)
        };
        let scores = run();
        prop_assert!(scores.iter().all(|score| score.is_finite()), "{scores:?}");
        prop_assert_eq!(scores, run());
    }
}

/// A step of two sequences reports the estimates of both before the attention of either: they must not be mixed.
#[test]
fn sequences_of_one_step_do_not_take_each_others_queries() {
    let rank_of_the_second = |apart: bool| {
        let mut predictor = Predictor::new(1, 32, 1024);
        let blocks: [Vec<u32>; 2] = [(0..16).collect(), (16..32).collect()];
        let mut fresh = [Fresh::default(); 2];
        for step in 0..60 {
            let query = |rest| Seen { kind: ScoreKind::Query, step, rest, top: &[(2, -0.5), (3, -1.2)] };
            let mass = Seen { kind: ScoreKind::Mass, step, rest: 0.0, top: &[(3, -0.1)] };
            for (i, rest) in [(0, 0.01), (1, 0.02)] {
                predictor.observe(0, &all(&blocks[i]), query(rest), &mut fresh[i]);
                if apart {
                    predictor.observe(0, &all(&blocks[i]), mass, &mut fresh[i]);
                }
            }
            if !apart {
                (0..2).for_each(|i| predictor.observe(0, &all(&blocks[i]), mass, &mut fresh[i]));
            }
        }
        order(&ranked(&predictor, 60, &blocks[1]))[..2].to_vec()
    };
    assert_eq!(rank_of_the_second(true), [2, 3]);
    assert_eq!(rank_of_the_second(false), [2, 3]);
}
