use super::*;

#[test]
fn what_was_read_ranks_first() {
    let mut predictor = Predictor::new(1, 16, Config::default());
    let pages: Vec<u32> = (0..16).rev().collect();
    for step in 0..100 {
        let seen = Seen { kind: Kind::Mass, step, rest: 0.1, top: &[(5, -0.5), (9, -1.2)] };
        predictor.observe(0, &pages, seen);
    }
    let mut scores = [0.0; 16];
    predictor.rank(0, 100, &pages, &mut scores);
    let mut order: Vec<usize> = (0..16).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    assert_eq!(order[..2], [5, 9]);
    assert!(predictor.stable(0));
    predictor.forget(pages[5]);
    predictor.rank(0, 100, &pages, &mut scores);
    assert!(scores[5] < scores[9]);
}

#[test]
fn nonsense_changes_nothing_that_matters() {
    let mut predictor = Predictor::new(1, 4, Config::default());
    let pages = [0, 9, 2];
    for kind in [Kind::Mass, Kind::Query, Kind::Ahead] {
        let top = [(0, f32::NAN), (7, -1.0), (1, f32::INFINITY), (2, f32::NEG_INFINITY)];
        predictor.observe(0, &pages, Seen { kind, step: u64::MAX, rest: f32::NAN, top: &top });
        predictor.observe(3, &pages, Seen { kind, step: 0, rest: 0.0, top: &[] });
        predictor.observe(0, &[], Seen { kind, step: 0, rest: 0.0, top: &top });
    }
    let mut scores = [f32::NAN; 3];
    predictor.rank(0, 0, &pages, &mut scores);
    assert!(scores.iter().all(|s| s.is_finite()), "{scores:?}");
}
