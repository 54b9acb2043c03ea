//! Last step of an attach, in the core thread: a session entry, admission by the core, Welcome, slabs.

use super::messages::AttachRequest;
use super::serve::Space;
use super::session_entries::AttachedPeer;
use crate::attach::{Refusal, refuse};
use crate::config::Human;
use crate::host::NodeMessage;
use crate::session::{End, Outcome, Session};
use kvtide_tiering::api::{Event, SessionId};
use kvtide_wire::hello::Welcome;
use kvtide_wire::status::Status;

impl Space {
    /// Attach a session, or refuse it.
    pub fn attach(&mut self, now_us: u64, request: AttachRequest) {
        self.attaches += 1;
        let (session_id, welcome) = match self.admit(now_us, &request) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                refuse(&self.registry, &request.socket, request.peer, &refusal);
                self.registry.remove(request.number);
                // The last engine may have left while the control thread still counted on this one.
                return self.tell_left();
            }
        };
        let AttachRequest { number, socket, peer, pidfd, side, fds, limits, frames, numa_node, relay, .. } = request;
        if !relay && !request.identity.is_empty() {
            self.identity = request.identity.into();
        }
        let welcomed = socket.send(&welcome.encode(), &fds.as_fds());
        let mut session = Session::new(socket, side, limits.shape.jobs);
        let told = self.slabs.notices().try_for_each(|notice| session.notify(notice.clone()));
        let (exited, session) = (false, Some(session));
        let peer_entry = AttachedPeer { number, credentials: peer, pidfd, numa_node, exited, session };
        self.session_entries.take(session_id, peer_entry);
        self.new_sessions.push(session_id);
        if !relay {
            self.node.send(NodeMessage::InUse { space: self.number, sessions: true });
        }
        self.registry.count_outcome(Outcome::Attached);
        // This is address space in the engine; only the entries of blocks in use take memory.
        let entries = u64::from(limits.blocks_max) * self.page_bytes.len() as u64;
        let tables = match frames.iter().any(|count| *count > 0) {
            true => format!(", page tables of at most {} per lane", Human(4 * entries)),
            false => String::new(),
        };
        tracing::info!(
            "session {number} (pid {}, uid {}{}) attached to space {}{tables}",
            peer.pid,
            peer.uid,
            if relay { ", a relay" } else { "" },
            self.number
        );
        if let Err(error) = welcomed {
            self.ending.push((session_id, End::System(format!("cannot send the welcome message: {error}"))));
        } else if let Err(end) = told {
            self.ending.push((session_id, end));
        }
        // A relay may have come after the last engine.
        self.tell_left();
    }

    fn admit(&mut self, now_us: u64, request: &AttachRequest) -> Result<(SessionId, Welcome), Refusal> {
        if self.drain_until_us.is_some() {
            return Err(Refusal { status: Status::Daemon, text: "the daemon is shutting down".into() });
        }
        let mut welcome = Welcome::accept(request.number, request.protocol, request.limits)
            .map_err(|error| Refusal { status: Status::Internal, text: error.to_string() })?;
        let (free, why) = match request.relay {
            true => (
                self.session_entries.free_for_relay(request.shard),
                "two relays of this shard are attached, or have not exited",
            ),
            false => {
                (self.session_entries.free(), "all session entries of the space are in use (limits.space_sessions_max)")
            }
        };
        let session_id = free.ok_or_else(|| Refusal { status: Status::Limit, text: why.into() })?;
        let lanes = request.limits.shape.lanes;
        let event = Event::Attach { session: session_id, shard: request.shard, lanes, frames: &request.frames };
        let result = self.core.handle(now_us, event, &mut self.actions);
        self.deliver();
        result.map_err(|error| Refusal { status: Status::Invalid, text: error.to_string() })?;
        if self.core.occupancy().published == 0 {
            welcome.other_identity.clone_from(&self.other_identity);
        }
        welcome.relay_socket = request.relay_socket.to_string_lossy().into_owned();
        Ok((session_id, welcome))
    }
}
