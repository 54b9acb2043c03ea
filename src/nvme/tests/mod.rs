//! Tests of disks through their interface, from a message to the answer, over real files; and tests of the pure modules against
//! models.

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
