//! On which disk a block's slot is taken: a prefix run stays on one disk, so that a disk that is lost takes whole runs with it and
//! leaves the others whole; new runs go where the largest share is free, so that disks fill alike. The node grants disks by weight
//! (size and speed), so shares of what is granted follow the weights.

use crate::pages::Standing;

/// Where a slot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// From that disk.
    On(u16),
    /// From that disk though the run stands on another one.
    Spill(u16),
    /// The node is asked for more, on that disk if there is one.
    Ask(Option<u16>),
    /// There is none, and the node has none.
    Nowhere,
}

/// Where a block takes its slot whose run stands on disk `run`, if it has begun. `askable`: the node may be asked for more now.
/// `urgent`: somebody waits for the memory that the block takes, so nobody waits for the node while another disk has a slot.
pub(crate) fn choose(
    run: Option<u16>,
    disks: impl Iterator<Item = Standing> + Clone,
    askable: bool,
    urgent: bool,
) -> Choice {
    // A disk that is not among them is gone: its run goes on elsewhere.
    let home = run.and_then(|run| disks.clone().find(|d| d.disk == run));
    if let Some(home) = home {
        if home.free > 0 {
            return Choice::On(home.disk);
        }
        if askable && !home.full && !urgent {
            return Choice::Ask(Some(home.disk));
        }
    }
    match (freest(disks), home) {
        (Some(disk), None) => Choice::On(disk),
        (Some(disk), Some(_)) => Choice::Spill(disk),
        (None, home) if askable => Choice::Ask(home.filter(|h| !h.full).map(|h| h.disk)),
        (None, _) => Choice::Nowhere,
    }
}

/// The disk with the largest share free, of several the first; none if none has a free slot.
fn freest(disks: impl Iterator<Item = Standing>) -> Option<u16> {
    let best = disks.filter(|d| d.free > 0).reduce(|best, d| {
        // Shares are compared by cross multiplication.
        let (a, b) = (u64::from(best.free) * u64::from(d.granted), u64::from(d.free) * u64::from(best.granted));
        if b > a { d } else { best }
    });
    best.map(|d| d.disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn standings() -> impl Strategy<Value = Vec<Standing>> {
        let one = (1u32..100, 0u32..100, any::<bool>());
        prop::collection::vec(one, 0..5).prop_map(|disks| {
            let standing = |(disk, (granted, free, full)): (usize, (u32, u32, bool))| Standing {
                disk: disk as u16 * 3,
                granted,
                free: free.min(granted),
                full,
            };
            disks.into_iter().enumerate().map(standing).collect()
        })
    }

    proptest! {
        #[test]
        fn a_run_stays_and_a_new_one_goes_where_most_is_free(
            disks in standings(), run in prop::option::of(0u16..15), askable in any::<bool>(), urgent in any::<bool>(),
        ) {
            let of = |disk: u16| disks.iter().find(|d| d.disk == disk);
            let home = run.and_then(of);
            let any_free = disks.iter().any(|d| d.free > 0);
            let choice = choose(run, disks.iter().copied(), askable, urgent);
            match choice {
                Choice::On(disk) | Choice::Spill(disk) => {
                    let d = of(disk).unwrap();
                    prop_assert!(d.free > 0, "a slot that is not there");
                    if Some(disk) != run {
                        for o in &disks {
                            prop_assert!(u64::from(d.free) * u64::from(o.granted) >= u64::from(o.free) * u64::from(d.granted));
                        }
                    }
                    prop_assert_eq!(matches!(choice, Choice::Spill(_)), home.is_some_and(|h| h.disk != disk));
                }
                Choice::Ask(disk) => {
                    prop_assert!(askable && home.is_none_or(|h| h.free == 0));
                    prop_assert!(disk.is_none_or(|d| of(d).is_some_and(|d| !d.full && Some(d.disk) == run)));
                    prop_assert!(!urgent || !any_free, "who waits for memory waits for the node");
                }
                Choice::Nowhere => prop_assert!(!askable && !any_free),
            }
            if let Some(home) = home {
                prop_assert_eq!(choice == Choice::On(home.disk), home.free > 0);
                let can_grow = home.free == 0 && askable && !home.full;
                prop_assert_eq!(choice == Choice::Ask(Some(home.disk)), can_grow && !(urgent && any_free));
            }
        }
    }
}
