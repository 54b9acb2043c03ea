//! Choice of the disk for a block's slot. A prefix chain stays on one disk, so a lost disk loses whole chains and leaves the others
//! complete. New chains go to the disk with the largest free share, so that disks fill evenly. The node grants disks by weight
//! (size and speed), so shares of the granted slots follow the weights.

use super::Disk;
use super::slots::Standing;

/// Source of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A free slot of this disk.
    On(u16),
    /// A free slot of this disk, although the chain is on another one.
    Overflow(u16),
    /// Ask the node for more, on this disk if there is one.
    Ask(Option<u16>),
    /// No slot is free, and the node has none.
    Nowhere,
}

impl Disk {
    /// Choose the disk for a block. `preferred`: the disk of its prefix chain, if it has one. `bytes_max`: the space's NVMe limit.
    /// `urgent`: a request waits for the memory of the block, so it must not wait for the node while another disk has a slot.
    pub fn choose(&self, preferred: Option<u16>, bytes_max: u64, urgent: bool) -> Choice {
        choose(preferred, self.standings(), self.may_grow(bytes_max), urgent)
    }
}

/// `askable`: the node may be asked for more now.
fn choose(
    preferred: Option<u16>,
    disks: impl Iterator<Item = Standing> + Clone,
    askable: bool,
    urgent: bool,
) -> Choice {
    // A preferred disk that is not listed is gone: its chain continues elsewhere.
    let home = preferred.and_then(|preferred| disks.clone().find(|d| d.disk == preferred));
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
        (Some(disk), Some(_)) => Choice::Overflow(disk),
        (None, home) if askable => Choice::Ask(home.filter(|h| !h.full).map(|h| h.disk)),
        (None, _) => Choice::Nowhere,
    }
}

/// Return the disk with the largest free share, the first of equals; `None` if none has a free slot.
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
        fn a_chain_stays_and_a_new_one_goes_where_most_is_free(
            disks in standings(),
            preferred in prop::option::of(0u16..15), askable in any::<bool>(), urgent in any::<bool>(),
        ) {
            let of = |disk: u16| disks.iter().find(|d| d.disk == disk);
            let home = preferred.and_then(of);
            let any_free = disks.iter().any(|d| d.free > 0);
            let choice = choose(preferred, disks.iter().copied(), askable, urgent);
            match choice {
                Choice::On(disk) | Choice::Overflow(disk) => {
                    let d = of(disk).unwrap();
                    prop_assert!(d.free > 0, "the disk has no free slot");
                    if Some(disk) != preferred {
                        for o in &disks {
                            prop_assert!(u64::from(d.free) * u64::from(o.granted) >= u64::from(o.free) * u64::from(d.granted));
                        }
                    }
                    prop_assert_eq!(matches!(choice, Choice::Overflow(_)), home.is_some_and(|h| h.disk != disk));
                }
                Choice::Ask(disk) => {
                    prop_assert!(askable && home.is_none_or(|h| h.free == 0));
                    prop_assert!(disk.is_none_or(|d| of(d).is_some_and(|d| !d.full && Some(d.disk) == preferred)));
                    prop_assert!(!urgent || !any_free, "an urgent request waits for the node");
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
