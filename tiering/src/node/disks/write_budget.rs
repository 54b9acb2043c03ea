//! Write budget of each space, so that no disk exceeds its `bytes_per_day`.
//!
//! The bytes per day of a disk are divided among all spaces by the regions that they hold there, plus one each. A single space gets
//! all. A new space gets a share before it has a region. Together the spaces never exceed the budget of the disk.

use super::Disks;

impl Disks {
    /// Return the bytes that each space may write per day (0: unlimited), given the limit of each disk (`None`: unlimited).
    pub fn rates(&self, bytes_per_day: &[Option<u64>]) -> impl Iterator<Item = (u32, u64)> {
        let serves = |disk: usize| !self.disks[disk].status.failed && self.disks[disk].status.regions > 0;
        let serving: Vec<usize> = (0..self.disks.len()).filter(|&disk| serves(disk)).collect();
        let bounds: Vec<_> = serving.iter().map(|&disk| bytes_per_day.get(disk).copied().flatten()).collect();
        let held =
            |on: usize, slabs: &[Option<(u32, u32)>]| slabs.iter().flatten().filter(|at| at.0 as usize == on).count();
        let by_disk = |slabs: &[Option<(u32, u32)>]| serving.iter().map(|&on| held(on, slabs) as u32).collect();
        let spaces: Vec<Vec<u32>> = self.spaces.iter().map(|space| by_disk(&space.slabs)).collect();
        let shares = divide(&bounds, &spaces);
        self.spaces.iter().enumerate().map(move |(at, space)| {
            // A limit that rounds to 0 must stay a limit: 0 would mean unlimited.
            (space.id, shares.as_ref().map_or(0, |shares| shares[at].max(1)))
        })
    }
}

/// Return the bytes that each space may write per day, or `None` if any disk is unlimited. `disks`: limit in bytes per day of each
/// disk in service. `held`: regions of each space, by disk.
fn divide(disks: &[Option<u64>], held: &[Vec<u32>]) -> Option<Vec<u64>> {
    let bounds: Vec<u64> = disks.iter().copied().collect::<Option<_>>()?;
    let weight = |space: &Vec<u32>, disk: usize| u128::from(space.get(disk).copied().unwrap_or(0)) + 1;
    let all: Vec<u128> = (0..bounds.len()).map(|disk| held.iter().map(|space| weight(space, disk)).sum()).collect();
    let share = |space: &Vec<u32>| -> u64 {
        let of = |disk: usize| u128::from(bounds[disk]) * weight(space, disk) / all[disk];
        (0..bounds.len()).map(|disk| u64::try_from(of(disk)).unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
    };
    Some(held.iter().map(share).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{DiskConfig, DisksConfig};
    use proptest::prelude::*;

    #[test]
    fn bytes_follow_regions() {
        let disks = [Some(1000), Some(300)];
        assert_eq!(divide(&disks, &[vec![0, 0]]), Some(vec![1300]), "a single space has all");
        assert_eq!(divide(&disks, &[vec![7, 3], vec![1, 0]]), Some(vec![800 + 240, 200 + 60]));
        assert_eq!(divide(&disks, &[vec![8, 0], vec![0, 0]]), Some(vec![900 + 150, 100 + 150]), "a new space has some");
        assert_eq!(divide(&[Some(1000), None], &[vec![1, 1]]), None, "one disk is unlimited");
        assert_eq!(divide(&[], &[vec![]]), Some(vec![0]));
    }

    #[test]
    fn a_disk_that_failed_pays_for_nothing() {
        let disk = |regions| DiskConfig { regions, weight: 1 };
        let disks = vec![disk(4), disk(4), disk(0)];
        let mut node = Disks::new(DisksConfig { region_bytes: 1 << 20, disks, quotas_bytes: vec![1 << 30] });
        let rates = |node: &Disks, bounds: &[Option<u64>]| node.rates(bounds).collect::<Vec<_>>();
        let bounds = [Some(1200), Some(600), None];
        assert_eq!(rates(&node, &bounds), [], "there is no space");
        node.join(7, 0, 4096).unwrap();
        assert_eq!(rates(&node, &bounds), [(7, 1800)]);
        node.join(9, 0, 4096).unwrap();
        node.grant(9, Some(0)).unwrap();
        assert_eq!(rates(&node, &bounds), [(7, 400 + 300), (9, 800 + 300)]);
        assert_eq!(rates(&node, &[Some(1200), None, None]), [(7, 0), (9, 0)], "a disk in service is unlimited");
        node.fail(1);
        assert_eq!(rates(&node, &bounds), [(7, 400), (9, 800)]);
        assert_eq!(rates(&node, &[Some(1), None, None]), [(7, 1), (9, 1)]);
        node.leave(9);
        assert_eq!(rates(&node, &bounds), [(7, 1200)]);
    }

    proptest! {
        /// Together the spaces never have more than the disks. They have less by under one byte per disk and space. A space that
        /// holds more never gets less.
        #[test]
        fn together_they_have_what_the_disks_have(
            disks in prop::collection::vec(0u64..1 << 50, 1..5),
            held in prop::collection::vec(prop::collection::vec(0u32..1 << 20, 5), 1..8),
        ) {
            let bounds: Vec<_> = disks.iter().copied().map(Some).collect();
            let shares = divide(&bounds, &held).unwrap();
            let (all, together) = (disks.iter().sum::<u64>(), shares.iter().sum::<u64>());
            prop_assert!(together <= all && together + (disks.len() * held.len()) as u64 > all);
            for (a, share_a) in held.iter().zip(&shares) {
                for (b, share_b) in held.iter().zip(&shares) {
                    if a.iter().zip(b).take(disks.len()).all(|(a, b)| a <= b) {
                        prop_assert!(share_a <= share_b);
                    }
                }
            }
        }
    }
}
