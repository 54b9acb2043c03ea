//! The slabs that a space holds, and the messages that describe them to engines.

use super::messages::Granted;
use crate::session::Notice;
use kvtide_nvme::Memory;
use kvtide_wire::error::Error as WireError;
use kvtide_wire::hello::SlabGone;
use kvtide_wire::os::memfd::Memfd;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Slabs by id.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    /// Indexed by id, for transfers.
    held: Vec<Option<Held>>,
    /// Number of slabs returned so far.
    returned: u64,
    /// The same before the node's request that is not answered yet.
    returned_before: Option<u64>,
}

#[derive(Debug)]
struct Held {
    notice: Notice,
    bytes: u64,
    numa_node: Option<u16>,
    memory: Option<Arc<Memory>>,
}

impl Slabs {
    /// Add a slab; return the message for all sessions.
    pub fn add(&mut self, granted: Granted) -> Result<Notice, WireError> {
        let Granted { slab, memfd, memory } = granted;
        let numa_node = memfd.node();
        let notice = Notice { message: slab.encode()?.into(), memfd: Some(Arc::new(memfd)) };
        let id = slab.slab as usize;
        if self.held.len() <= id {
            self.held.resize_with(id + 1, || None);
        }
        self.held[id] = Some(Held { notice: notice.clone(), bytes: slab.bytes, numa_node, memory });
        Ok(notice)
    }

    /// Remove a slab; return its memory and the message for all sessions.
    pub fn remove(&mut self, slab: u32) -> (Option<Arc<Memfd>>, Notice) {
        let held = self.held.get_mut(slab as usize).and_then(Option::take);
        self.returned += 1;
        (held.and_then(|held| held.notice.memfd), Notice { message: SlabGone { slab }.encode().into(), memfd: None })
    }

    /// Begin to return slabs because the node requests some.
    pub fn begin_reclaim(&mut self) {
        self.returned_before = Some(self.returned);
    }

    /// End the node's request, if there is one. Return whether slabs were returned since.
    pub fn end_reclaim(&mut self) -> Option<bool> {
        self.returned_before.take().map(|before| self.returned > before)
    }

    /// Remove all slabs, when the space ends.
    pub fn take_all(&mut self) -> impl Iterator<Item = (u32, Option<Arc<Memfd>>)> {
        let held = std::mem::take(&mut self.held);
        held.into_iter().zip(0..).filter_map(|(held, slab)| Some((slab, held?.notice.memfd)))
    }

    /// Return the messages for a new session, in order of ids.
    pub fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.held.iter().flatten().map(|held| &held.notice)
    }

    /// Return the daemon's map of a slab, for transfers.
    pub fn memory(&self, slab: u32) -> Option<&Arc<Memory>> {
        self.held.get(slab as usize)?.as_ref()?.memory.as_ref()
    }

    /// Return the NUMA node for the next slab. `sessions`: the node of each session that named one.
    pub fn next_node(&self, sessions: impl Iterator<Item = u16>) -> Option<u16> {
        next_node(sessions, self.held.iter().flatten().filter_map(|held| held.numa_node))
    }

    /// Return the number of slabs.
    pub fn len(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Return the bytes of all slabs.
    pub fn bytes(&self) -> u64 {
        self.held.iter().flatten().map(|held| held.bytes).sum()
    }
}

/// Return the node with the fewest slabs for each of its sessions; of equal ones the lowest. Pages of all sessions share the slabs,
/// so each node gets its part of them.
fn next_node(sessions: impl Iterator<Item = u16>, slabs: impl Iterator<Item = u16>) -> Option<u16> {
    let mut nodes: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    sessions.for_each(|node| nodes.entry(node).or_default().0 += 1);
    slabs.for_each(|node| _ = nodes.get_mut(&node).map(|(_, slabs)| *slabs += 1));
    // The part of a session, in units of 2^-32 slabs.
    let part = |(sessions, slabs): (u64, u64)| (slabs << 32) / sessions.max(1);
    nodes.into_iter().max_by_key(|&(node, counts)| (Reverse(part(counts)), Reverse(node))).map(|(node, _)| node)
}

#[cfg(test)]
mod tests {
    use super::next_node;

    #[test]
    fn slabs_are_divided_among_nodes_as_sessions_are() {
        let next = |sessions: &[u16], slabs: &[u16]| next_node(sessions.iter().copied(), slabs.iter().copied());
        assert_eq!((next(&[], &[]), next(&[], &[1])), (None, None), "no session named a node");
        assert_eq!((next(&[1], &[]), next(&[1, 1], &[1; 9])), (Some(1), Some(1)));
        // Slabs of nodes without sessions, such as those of an engine that has left, do not count.
        assert_eq!(next(&[2, 5], &[7, 7, 2]), Some(5));
        let (sessions, mut slabs) = ([0, 1, 1, 1], vec![]);
        for _ in 0..8 {
            slabs.push(next(&sessions, &slabs).unwrap());
        }
        assert_eq!(slabs, [0, 1, 1, 1, 0, 1, 1, 1]);
    }
}
