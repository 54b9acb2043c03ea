//! Accounting of host memory, granted in slabs. It decides the size and id of a slab; the daemon allocates the memory. A slab
//! belongs to one space and one size class.

use super::SLABS_MAX;
use serde::{Deserialize, Serialize};

/// Host memory of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Bytes of host memory over all spaces.
    pub capacity_bytes: u64,
    /// Maximum bytes of a slab. A slab holds as many whole frames as fit, and at least one.
    pub slab_bytes: u64,
    /// Maximum bytes per domain.
    pub quotas_bytes: Vec<u64>,
}

/// A granted slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Id, unique among the space's grants; the lowest free one.
    pub slab: u32,
    /// Number of frames.
    pub frames: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
    /// Total bytes: frames × stride.
    pub bytes: u64,
}

/// A size class of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameClass {
    /// Bytes from one frame to the next.
    pub stride: u32,
    /// Number of frames that a block needs.
    pub planes: u32,
}

impl FrameClass {
    /// Return the bytes of a block.
    fn block_bytes(self) -> u64 {
        u64::from(self.stride) * u64::from(self.planes)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Space {
    id: u32,
    domain: usize,
    classes: Vec<FrameClass>,
    /// Class and bytes by slab id; 0 bytes: not granted.
    slabs: Vec<(u8, u64)>,
    /// Position in the order in which spaces lost their last session; `None` while the space has sessions.
    left: Option<u64>,
}

impl Space {
    /// Return how many classes other than `class` have no slab, and how many bytes of a block they hold.
    fn waiting(&self, class: u8) -> (u64, u64) {
        let has = |class: u8| self.slabs.iter().any(|slab| slab.0 == class && slab.1 > 0);
        let others = (0u8..).zip(&self.classes).filter(|&(c, _)| c != class && !has(c));
        others.fold((0, 0), |(count, bytes), (_, shape)| (count + 1, bytes + shape.block_bytes()))
    }

    /// Return the bytes of all slabs.
    fn bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.1).sum()
    }

    /// Return the bytes of the slabs of a class.
    fn held(&self, class: u8) -> u64 {
        self.slabs.iter().filter(|slab| slab.0 == class).map(|slab| slab.1).sum()
    }
}

/// Host memory of all spaces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    cfg: NodeConfig,
    granted: u64,
    by_domain: Vec<u64>,
    spaces: Vec<Space>,
    /// Number of changes between having and not having sessions, over all spaces.
    left: u64,
}

impl Node {
    /// Create a node without grants.
    #[must_use]
    pub fn new(cfg: NodeConfig) -> Node {
        Node { granted: 0, by_domain: vec![0; cfg.quotas_bytes.len()], spaces: Vec::new(), left: 0, cfg }
    }

    /// Set the quotas. Domains beyond the existing ones are new. A domain above its quota gets no grants until it holds less.
    pub fn set_quotas(&mut self, quotas_bytes: Vec<u64>) {
        self.by_domain.resize(quotas_bytes.len().max(self.by_domain.len()), 0);
        self.cfg.quotas_bytes = quotas_bytes;
        self.cfg.quotas_bytes.resize(self.by_domain.len(), 0);
    }

    /// Add a space with these size classes. Return false if the id is in use, the domain does not exist, or a class has blocks of 0
    /// bytes.
    #[must_use]
    pub fn join(&mut self, space: u32, domain: usize, classes: &[FrameClass]) -> bool {
        if domain >= self.by_domain.len() || self.at(space).is_some() || classes.iter().any(|c| c.block_bytes() == 0) {
            return false;
        }
        self.spaces.push(Space { id: space, domain, classes: classes.to_vec(), slabs: Vec::new(), left: None });
        true
    }

    /// Remove a space and free all its grants. Return the ids of its slabs.
    pub fn leave(&mut self, space: u32) -> Vec<u32> {
        let Some(at) = self.at(space) else { return Vec::new() };
        let space = self.spaces.swap_remove(at);
        let bytes = space.bytes();
        self.granted -= bytes;
        self.by_domain[space.domain] -= bytes;
        (0u32..).zip(&space.slabs).filter(|(_, slab)| slab.1 > 0).map(|(slab, _)| slab).collect()
    }

    /// Grant a slab of a size class, at most `slab_bytes` large. The grant leaves a share of the free memory to the space's classes
    /// that have no slab yet: without a frame in every class, host memory holds no block. `None`: no memory is left for the space
    /// now.
    pub fn grant(&mut self, space: u32, class: u8) -> Option<Grant> {
        let at = self.at(space)?;
        let s = &self.spaces[at];
        let shape = *s.classes.get(usize::from(class))?;
        let stride = shape.stride;
        let left = (self.cfg.capacity_bytes - self.granted)
            .min(self.cfg.quotas_bytes[s.domain].saturating_sub(self.by_domain[s.domain]));
        let (waiting, theirs) = s.waiting(class);
        let whole = u128::from(shape.block_bytes() + theirs);
        // Share of the free memory and of the memory that the class already holds, so repeated requests leave the other classes
        // their shares. A waiting class reserves at most one slab, because it may never ask.
        let held = s.held(class);
        let part = u128::from(left + held) * u128::from(shape.block_bytes()) / whole;
        let spare = left.saturating_sub(waiting.saturating_mul(self.cfg.slab_bytes));
        let part = (part as u64).saturating_sub(held).max(spare);
        if part == 0 {
            return None;
        }
        // A frame larger than a slab gets a slab of its own.
        let bytes = self.cfg.slab_bytes.min(part).max(u64::from(stride)).min(left);
        let frames = u32::try_from(bytes / u64::from(stride)).unwrap_or(u32::MAX);
        let slab = s.slabs.iter().position(|slab| slab.1 == 0).unwrap_or(s.slabs.len());
        if frames == 0 || slab >= SLABS_MAX {
            return None;
        }
        let bytes = u64::from(frames) * u64::from(stride);
        self.granted += bytes;
        let s = &mut self.spaces[at];
        self.by_domain[s.domain] += bytes;
        if slab == s.slabs.len() {
            s.slabs.push((class, bytes));
        } else {
            s.slabs[slab] = (class, bytes);
        }
        Some(Grant { slab: slab as u32, frames, stride, bytes })
    }

    /// Return the other spaces that can help a space that got no slab of a class: those that hold slabs. If the
    /// space's domain is at its quota, only spaces of that domain.
    pub fn helpers(&self, space: u32, class: u8) -> impl Iterator<Item = u32> {
        let at = self.at(space).map(|at| &self.spaces[at]);
        let at_quota = at.is_some_and(|s| {
            let stride = s.classes.get(usize::from(class)).map_or(0, |class| u64::from(class.stride));
            self.cfg.quotas_bytes[s.domain].saturating_sub(self.by_domain[s.domain]) < stride
        });
        let domain = at.map(|s| s.domain);
        let helps = move |s: &&Space| s.id != space && (!at_quota || Some(s.domain) == domain);
        let holds = |s: &&Space| s.slabs.iter().any(|slab| slab.1 > 0);
        self.spaces.iter().filter(helps).filter(holds).map(|s| s.id)
    }

    /// Record that the first session of a space attached, or that its last one ended.
    pub fn set_in_use(&mut self, space: u32, sessions: bool) {
        let Some(at) = self.at(space) else { return };
        self.left += 1;
        self.spaces[at].left = (!sessions).then_some(self.left);
    }

    /// Return the space that must give cached memory to a space without a free slab of a class. First come spaces without sessions,
    /// the one without sessions for the longest time before the others. Then comes the space that holds most, if it still holds as
    /// much as the asking space after giving a slab, or if the asking space holds nothing. Two busy spaces therefore reach equal
    /// shares and stop.
    pub fn giver(&self, space: u32, class: u8, has_nothing: impl Fn(u32) -> bool) -> Option<u32> {
        let asker = self.at(space).map_or(0, |at| self.spaces[at].bytes());
        let may = |s: &&Space| self.helpers(space, class).any(|helper| helper == s.id) && !has_nothing(s.id);
        let left = self.spaces.iter().filter(may).filter_map(|s| Some((s.left?, s.id))).min();
        let in_use = || self.spaces.iter().filter(may).filter(|s| s.left.is_none()).max_by_key(|s| s.bytes());
        let more = |s: &&Space| asker == 0 || s.bytes() > asker + self.cfg.slab_bytes;
        left.map(|(_, id)| id).or_else(|| in_use().filter(more).map(|s| s.id))
    }

    /// Take a slab back. Return false if the space does not hold it.
    pub fn take_back(&mut self, space: u32, slab: u32) -> bool {
        let Some(at) = self.at(space) else { return false };
        let s = &mut self.spaces[at];
        let Some((_, bytes)) = s.slabs.get_mut(slab as usize).map(std::mem::take).filter(|slab| slab.1 > 0) else {
            return false;
        };
        self.granted -= bytes;
        self.by_domain[s.domain] -= bytes;
        true
    }

    /// Return the total capacity in bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.cfg.capacity_bytes
    }

    /// Return the granted bytes.
    #[must_use]
    pub fn granted_bytes(&self) -> u64 {
        self.granted
    }

    /// Return the number of granted slabs.
    #[must_use]
    pub fn slabs(&self) -> usize {
        self.spaces.iter().map(|s| s.slabs.iter().filter(|slab| slab.1 > 0).count()).sum()
    }

    fn at(&self, space: u32) -> Option<usize> {
        self.spaces.iter().position(|s| s.id == space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn class(stride: u32) -> FrameClass {
        FrameClass { stride, planes: 1 }
    }

    proptest! {
        #[test]
        fn never_grants_more_than_it_has(ops in prop::collection::vec((0u8..4, 0u32..4, 0u32..6), 1..200)) {
            let mut node = Node::new(NodeConfig { capacity_bytes: 10_000, slab_bytes: 1_000, quotas_bytes: vec![6_000, 7_000] });
            let mut model: BTreeMap<(u32, u32), u64> = BTreeMap::new();
            for (op, space, n) in ops {
                match op {
                    0 => { let _ = node.join(space, space as usize % 2, &[64, 640, 2048].map(class)); }
                    1 => if n == 0 {
                        let gone = node.leave(space);
                        for slab in &gone { prop_assert!(model.remove(&(space, *slab)).is_some()); }
                        prop_assert!(model.keys().all(|k| k.0 != space));
                    },
                    2 => if let Some(g) = node.grant(space, (n % 3) as u8) {
                        prop_assert_eq!(g.bytes, u64::from(g.frames) * u64::from(g.stride));
                        prop_assert!(g.bytes <= 1_000 || g.frames == 1);
                        prop_assert!(model.insert((space, g.slab), g.bytes).is_none());
                    },
                    _ => prop_assert_eq!(node.take_back(space, n), model.remove(&(space, n)).is_some()),
                }
                prop_assert_eq!(node.granted_bytes(), model.values().sum::<u64>());
                prop_assert_eq!(node.slabs(), model.len());
                prop_assert!(node.granted_bytes() <= node.capacity_bytes());
                for (domain, quota) in [(0, 6_000), (1, 7_000)] {
                    let held: u64 = model.iter().filter(|(k, _)| k.0 % 2 == domain).map(|(_, b)| b).sum();
                    prop_assert!(held <= quota);
                }
            }
        }
    }

    #[test]
    fn a_frame_larger_than_a_slab_is_a_slab() {
        let mut node = Node::new(NodeConfig { capacity_bytes: 10_000, slab_bytes: 1_000, quotas_bytes: vec![10_000] });
        assert!(node.join(7, 0, &[class(4096)]));
        assert_eq!(node.grant(7, 0), Some(Grant { slab: 0, frames: 1, stride: 4096, bytes: 4096 }));
        assert_eq!(node.grant(7, 1), None, "no such class");
        assert_eq!(node.grant(8, 0), None, "no such space");
    }

    #[test]
    fn who_can_help_holds_something_and_is_of_the_domain_that_is_full() {
        let quotas_bytes = vec![3_000, 10_000];
        let mut node = Node::new(NodeConfig { capacity_bytes: 5_000, slab_bytes: 1_000, quotas_bytes });
        for (space, domain) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
            assert!(node.join(space, domain, &[class(1_000)]));
        }
        let fill = |node: &mut Node, space: u32| while node.grant(space, 0).is_some() {};
        let helpers = |node: &Node, space| node.helpers(space, 0).collect::<Vec<_>>();
        assert!(node.grant(1, 0).is_some());
        fill(&mut node, 2);
        assert_eq!(helpers(&node, 1), [2], "its domain is at its quota; the node is not full");
        fill(&mut node, 3);
        assert_eq!((helpers(&node, 4), helpers(&node, 1)), (vec![1, 2, 3], vec![2]), "the node is full");
    }

    /// A class that asks repeatedly leaves a class without a slab its share; of a large memory, no more than one slab.
    #[test]
    fn what_is_kept_for_a_class_that_has_not_asked_is_bounded_both_ways() {
        for (quota, kept) in [(64_000, 32_000..33_000), (1 << 20, 99_000..101_000)] {
            let mut node =
                Node::new(NodeConfig { capacity_bytes: 1 << 20, slab_bytes: 100_000, quotas_bytes: vec![quota] });
            assert!(node.join(1, 0, &[class(1000), class(1000)].map(|class| FrameClass { planes: 4, ..class })));
            let grants: Vec<u64> = std::iter::from_fn(|| node.grant(1, 0)).map(|grant| grant.bytes).collect();
            let left = quota - grants.iter().sum::<u64>();
            assert!(kept.contains(&left) && grants.len() < 20, "{left} of {quota} in {} slabs", grants.len());
            assert!(node.grant(1, 1).is_some());
        }
    }

    /// Whichever class asks first, a host memory of less than one slab per class holds as many blocks as fit.
    #[test]
    fn no_class_takes_what_another_needs_as_well() {
        for first in [0u8, 1] {
            let mut node =
                Node::new(NodeConfig { capacity_bytes: 1 << 20, slab_bytes: 1 << 20, quotas_bytes: vec![90_000] });
            assert!(node.join(1, 0, &[FrameClass { stride: 4096, planes: 2 }, FrameClass { stride: 1024, planes: 1 }]));
            let frames = [first, 1 - first].map(|class| node.grant(1, class).map_or(0, |grant| grant.frames));
            let blocks = if first == 0 { [frames[0] / 2, frames[1]] } else { [frames[1] / 2, frames[0]] };
            assert_eq!(blocks.iter().min(), Some(&(90_000 / 9216)), "{blocks:?}, class {first} first");
        }
    }
}
