//! Execution of the core's actions: jobs and answers to engines, transfers to disks, requests to the node.

use super::nvme::Wanted;
use super::serve::Space;
use crate::host::NodeLetter;
use crate::session::{Answer, End};
use kvtide_tiering::api::Action;

impl Space {
    /// Execute the core's actions. If this finds a session broken, the session is queued to end.
    pub fn deliver(&mut self) {
        let Space {
            now_us,
            request_times,
            actions,
            seats,
            page_bytes,
            ending,
            slabs,
            nvme,
            canary,
            node,
            regions_asked,
            registry,
            number,
            ..
        } = self;
        for action in actions.actions() {
            match *action {
                Action::Job { session, id, job } => {
                    let Some(live) = seats.session(session) else { continue };
                    let bytes_of = |plane: u16| page_bytes.get(usize::from(plane)).copied().unwrap_or(0);
                    if let Err(end) = live.post(id, &job, canary.ask(&job), *now_us, bytes_of) {
                        ending.push((session, end));
                    }
                }
                Action::Complete { session, channel, tag, status, value, list } => {
                    let Some(live) = seats.session(session) else { continue };
                    let words = actions.list(list);
                    match live.answer(&Answer { channel, tag, status, value, words }, *now_us, request_times) {
                        Ok(true) => {}
                        Ok(false) => {
                            tracing::error!("space {number}: request {tag} of session {session} completed twice")
                        }
                        Err(violation) => ending.push((session, End::Violation(violation))),
                    }
                }
                Action::NeedSlab { class } => node.send(NodeLetter::Need { space: *number, class }),
                Action::ReturnSlab { slab } => {
                    let (memfd, notice) = slabs.remove(slab);
                    canary.returned(slab);
                    node.send(NodeLetter::Return { space: *number, slab, memfd });
                    for (session, live) in seats.sessions() {
                        if let Err(end) = live.notify(notice.clone()) {
                            ending.push((session, end));
                        }
                    }
                }
                Action::NeedDisk { disk } => {
                    let wanted = (disk != u16::MAX).then_some(u32::from(disk));
                    *regions_asked += 1;
                    node.send(NodeLetter::NeedDisk { space: *number, wanted });
                }
                Action::ReturnDisk { slab } => {
                    nvme.remove(slab);
                    node.send(NodeLetter::ReturnDisk { space: *number, slab });
                }
                Action::Io { id, kind, class, at, list } => {
                    nvme.begin((id, kind, class), at, actions.list(list), slabs, canary);
                }
                Action::Record { id, at, shard, urgent, list } => {
                    nvme.note(id, urgent, Wanted::Record(at, shard, actions.list(list)));
                }
                Action::Erase { id, at, urgent } => nvme.note(id, urgent, Wanted::Erase(at)),
                Action::Flush { id } => nvme.flush_disks(id),
                Action::Urge { id, class } => nvme.urge(id, class),
                Action::EndSession { session, late_bytes, bytes_max } => {
                    ending.push((session, End::Late { bytes: late_bytes, bytes_max }));
                }
                Action::SessionGone { session } => {
                    if let Some(guest) = seats.vacate(session) {
                        registry.remove(guest.number);
                        tracing::debug!("session {}: removed", guest.number);
                    }
                }
            }
        }
        nvme.flush();
        actions.clear();
    }
}
