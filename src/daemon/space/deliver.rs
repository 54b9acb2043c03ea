//! Execution of the core's actions: jobs and answers to engines, transfers to disks, requests to the node.

use super::nvme::Wanted;
use super::serve::Space;
use crate::answer::Answer;
use crate::host::NodeMessage;
use crate::session::End;
use kvtide_tiering::api::Action;

impl Space {
    /// Execute the core's actions. If this finds a session broken, the session is queued to end.
    pub fn deliver(&mut self) {
        let Space {
            now_us,
            request_times,
            actions,
            session_entries,
            page_bytes,
            ending,
            slabs,
            nvme,
            sample,
            node,
            regions_asked,
            registry,
            number,
            tracer,
            core,
            ..
        } = self;
        for action in actions.actions() {
            match *action {
                Action::Job { session, id, job } => {
                    let Some(live) = session_entries.session(session) else { continue };
                    let bytes_of = |plane: u16| page_bytes.get(usize::from(plane)).copied().unwrap_or(0);
                    if let Err(end) = live.post(id, &job, sample.ask(&job), *now_us, bytes_of) {
                        ending.push((session, end));
                    }
                }
                Action::Complete { session, channel, tag, status, value, list } => {
                    let Some(live) = session_entries.session(session) else { continue };
                    let words = actions.list(list);
                    let answer = Answer { channel, tag, status, value, words };
                    match live.answer(&answer, *now_us, request_times) {
                        Ok(Some(answered)) => {
                            if let (Some(tracer), Some(span)) = (tracer.as_mut(), answered.span) {
                                if let Some((trace, lookup)) = span.lookup(&answer, *now_us) {
                                    tracer.remember(trace, lookup);
                                }
                                let missing = span.missing(&answer).and_then(|hash| core.absence(hash));
                                tracer.finish(&span, Some(&answer), missing.map(|absence| absence.cause));
                            }
                        }
                        Ok(None) => {
                            tracing::error!("space {number}: request {tag} of session {session} completed twice")
                        }
                        Err(violation) => ending.push((session, End::Violation(violation))),
                    }
                }
                Action::NeedSlab { class } => {
                    let numa_node = slabs.next_node(session_entries.numa_nodes());
                    node.send(NodeMessage::Need { space: *number, class, numa_node });
                }
                Action::ReturnSlab { slab } => {
                    let (memfd, notice) = slabs.remove(slab);
                    sample.returned(slab);
                    node.send(NodeMessage::Return { space: *number, slab, memfd });
                    for (session, live) in session_entries.sessions() {
                        if let Err(end) = live.notify(notice.clone()) {
                            ending.push((session, end));
                        }
                    }
                }
                Action::NeedDisk { disk } => {
                    let wanted = (disk != u16::MAX).then_some(u32::from(disk));
                    *regions_asked += 1;
                    node.send(NodeMessage::NeedDisk { space: *number, wanted });
                }
                Action::ReturnDisk { slab } => {
                    nvme.remove(slab);
                    node.send(NodeMessage::ReturnDisk { space: *number, slab });
                }
                Action::Io { id, kind, class, at, list } => {
                    nvme.begin((id, kind, class), at, actions.list(list), slabs, sample);
                }
                Action::Record { id, at, shard, urgent, list } => {
                    nvme.submit_log_request(id, urgent, Wanted::Record(at, shard, actions.list(list)));
                }
                Action::Erase { id, at, urgent } => nvme.submit_log_request(id, urgent, Wanted::Erase(at)),
                Action::Flush { id } => nvme.flush_disks(id),
                Action::Urge { id, class } => nvme.urge(id, class),
                Action::EndSession { session, late_bytes, bytes_max } => {
                    ending.push((session, End::Late { bytes: late_bytes, bytes_max }));
                }
                Action::SessionGone { session } => {
                    if let Some(peer) = session_entries.vacate(session) {
                        registry.remove(peer.number);
                        tracing::debug!("session {}: removed", peer.number);
                    }
                }
            }
        }
        nvme.flush();
        actions.clear();
    }
}
