//! Disks as their users see them: the whole path from a letter to the box that comes back, over real files; and the rooms that
//! are pure, against plain models.

mod coded;
mod conform;
mod devices;
mod faults;
mod faulty;
mod fixture;
mod keys;
mod limits;
mod log;
mod plans;
mod refusals;
mod schedules;
mod service;
mod stormy;
