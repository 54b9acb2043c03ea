//! Interface through which a lane reports its table changes to a device.

/// The device copy of a lane's table (rule 11). Called by the lane's owner within `begin`, `boundary`, `refresh` and `end`.
/// Must not block.
pub trait Tracks: Send {
    /// Record that the lane's table shows this entry for a page from now on (see `kvtide_wire::table`).
    fn entry(&mut self, page: u32, entry: u32);

    /// Mark everything that the lane has enqueued so far: it may read the pages that its table showed. Afterwards the lane
    /// tells the mover that it no longer needs them.
    fn mark(&mut self);

    /// Order everything that the lane enqueues from now on after every other lane's last mark.
    fn follow(&mut self);
}
