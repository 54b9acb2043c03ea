//! Joining and splitting of copies; no byte is lost or copied twice.

use super::{Copy, Plan};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn copy(from: u64, to: u64, bytes: usize) -> Copy {
    Copy { from, to, bytes, region: 0 }
}

fn planned(copies: &[Copy], crossover: usize, launch_bytes: u32) -> Plan {
    let mut plan = Plan::default();
    plan.make(copies, crossover, launch_bytes);
    plan
}

#[test]
fn neighbours_on_both_sides_become_one_in_any_order() {
    let plan = planned(&[copy(300, 1300, 50), copy(100, 1100, 100), copy(200, 1200, 100)], 1, 1 << 20);
    assert_eq!(plan.engines.len(), 1);
    assert_eq!((plan.engines[0].from, plan.engines[0].to, plan.engines[0].bytes), (100, 1100, 250));
}

#[test]
fn neighbours_on_one_side_stay_two() {
    assert_eq!(planned(&[copy(100, 1100, 100), copy(200, 1300, 100)], 1, 1 << 20).engines.len(), 2);
    assert_eq!(planned(&[copy(100, 1100, 100), copy(300, 1200, 100)], 1, 1 << 20).engines.len(), 2);
}

#[test]
fn neighbours_of_two_registrations_stay_two() {
    let copies = [1, 1, 2].map(|region| Copy { region, ..copy(100 * region, 1000 + 100 * region, 100) });
    let [first, mut second, mut third] = copies;
    (second.from, second.to, third.from, third.to) = (200, 1200, 300, 1300);
    let plan = planned(&[third, first, second], 1, 1 << 20);
    let pieces: Vec<_> = plan.engines.iter().map(|piece| (piece.from, piece.bytes)).collect();
    assert_eq!(pieces, [(100, 200), (300, 100)]);
}

#[test]
fn what_was_joined_counts_as_one_large_fragment() {
    let plan = planned(&[copy(0, 5000, 60), copy(60, 5060, 60), copy(900, 9000, 60)], 100, 1 << 20);
    assert_eq!((plan.engines.len(), plan.fragments.len()), (1, 1));
    assert_eq!(plan.engines[0].bytes, 120);
}

#[test]
fn the_kernel_takes_what_is_below_the_crossover_and_engines_the_rest() {
    let plan = planned(&[copy(0, 5000, 99), copy(200, 6000, 100)], 100, 1 << 20);
    assert_eq!((plan.fragments[0].bytes, plan.engines[0].bytes), (99, 100));
    assert!(planned(&[copy(0, 1, 0)], 0, 64).engines.is_empty(), "nothing is no fragment");
}

proptest! {
    /// Every byte is copied once, from its source, however copies are joined, split and cut; launches are bounded and cover the
    /// list.
    #[test]
    fn every_byte_is_copied_once(
        sizes in prop::collection::vec((0_usize..300, 0_u64..3, 0_u64..3), 0..60),
        crossover in 0_usize..400,
        launch_bytes in 1_u32..500,
        swap in any::<u64>(),
    ) {
        let (mut from, mut to) = (0, 1 << 20);
        let mut copies = Vec::new();
        for (bytes, gap_from, gap_to) in sizes {
            from += gap_from;
            to += gap_to;
            copies.push(copy(from, to, bytes));
            from += bytes as u64;
            to += bytes as u64;
        }
        if copies.len() > 1 {
            let at = swap as usize % copies.len();
            copies.rotate_left(at);
        }
        let bytes_of = |from: u64, to: u64, bytes: u64| (0..bytes).map(move |n| (to + n, from + n));
        let wanted: BTreeMap<u64, u64> = copies.iter().flat_map(|c| bytes_of(c.from, c.to, c.bytes as u64)).collect();

        let plan = planned(&copies, crossover, launch_bytes);
        let by_engines = plan.engines.iter().flat_map(|p| bytes_of(p.from, p.to, p.bytes as u64));
        let by_kernel = plan.fragments.iter().flat_map(|f| bytes_of(f.from, f.to, u64::from(f.bytes)));
        let done: Vec<(u64, u64)> = by_engines.chain(by_kernel).collect();
        prop_assert_eq!(done.len(), wanted.len(), "no byte twice");
        prop_assert_eq!(done.into_iter().collect::<BTreeMap<_, _>>(), wanted);

        prop_assert!(plan.engines.iter().all(|p| p.bytes >= crossover));
        let mut next = 0;
        for launch in &plan.launches {
            prop_assert_eq!(launch.first, next);
            next += launch.count;
            let of_it = &plan.fragments[launch.first as usize..next as usize];
            prop_assert!(of_it.iter().map(|f| f.bytes).sum::<u32>() <= launch_bytes);
            prop_assert_eq!(of_it.iter().map(|f| f.bytes).max(), Some(launch.bytes_max));
        }
        prop_assert_eq!(next as usize, plan.fragments.len());
    }
}
