//! Resize a size class of tier 0.

use super::{Answered, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work};
use crate::client::options::deadline;

/// The class had memory for `before` frames. If `frames` is larger, the additional memory is already there.
#[derive(Debug)]
pub struct Resize {
    class: usize,
    before: u32,
    frames: u32,
}

const RESIZING: &str = "the class is being resized: wait for the end of that call";

impl Resize {
    /// Request another number of frames of a class. If it grows, its memory is allocated before the request.
    pub fn begin(session: &Session, class: usize, frames: u32) -> Result<Started, Refusal> {
        let range = |why: String| Refusal::because(Status::Range, why);
        let none = || range(format!("tier 0 has {} size classes", session.shared.geometry().classes()));
        let most = session.tier0.class(class).ok_or_else(none)?.frames_max;
        if frames > most {
            return Err(range(format!("{frames} frames; the session attached with {most}")));
        }
        if !session.resizing.begin(class) {
            return Err(Refusal::because(Status::State, RESIZING));
        }
        let before = session.tier0.frames(class);
        if frames > before
            && let Err(error) = session.tier0.resize(class, frames)
        {
            session.resizing.end(class);
            return Err(Refusal::because(error.status(), error.to_string()));
        }
        Ok(Started::Send(Work::Resize(Resize { class, before, frames })))
    }

    /// End the resize with `frames` frames. The daemon must use none of the frames above: their memory is freed.
    fn end(&self, session: &Session, frames: u32) -> Result<u32, Status> {
        // Lanes on streams may still read frames that are about to go.
        let shrinks = frames < session.tier0.frames(self.class);
        let settled = if shrinks { session.copy_loop().settle(deadline(session.timeout)) } else { Ok(()) };
        let resize = || session.tier0.resize(self.class, frames).map_err(|error| error.status());
        let result = settled.and_then(|()| resize());
        session.resizing.end(self.class);
        result
    }
}

impl Operation for Resize {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Tier0Resize { class: self.class as u8, frames: self.frames } // at most CLASSES_MAX classes
    }

    fn why(&self, _: &Session, status: Status) -> Option<String> {
        match status {
            Status::Range => {
                Some(format!("{} frames are fewer than a block has pages in the class, or than 2", self.frames))
            }
            Status::State => Some(RESIZING.into()),
            _ => None,
        }
    }

    fn answered(&mut self, _: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        let checked = reply.check(reply.value == u64::from(self.frames));
        let resized = self.end(session, if checked.is_ok() { self.frames } else { self.before });
        checked.and(resized).map(|frames| Some(Outcome::Frames(frames)))
    }

    fn take_back(&self, _: &mut Sequences, session: &Session) {
        let _ = self.end(session, self.before); // restores the old size; whether that succeeds changes nothing here
    }
}
