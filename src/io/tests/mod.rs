//! Disks as their users see them: the whole path from a letter to the box that comes back, over real files.

mod conform;
mod fixture;
