//! What a lane tells whoever carries its table to where its reads really happen.

/// A lane's shadow on a device (rule 11). Called by the lane's owner within `begin`, `boundary`, `refresh`, `end`; must not wait.
pub trait Tracks: Send {
    /// The lane's table shows this entry for a page from now on (see `kvtide_wire::table`).
    fn entry(&mut self, page: u32, entry: u32);

    /// All that the lane has enqueued so far may read what its table showed. The mover is told next that it does not any more.
    fn mark(&mut self);

    /// What the lane enqueues from now on must come after every other lane's last mark.
    fn follow(&mut self);
}
