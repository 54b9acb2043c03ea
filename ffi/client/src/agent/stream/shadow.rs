//! The receiver of a lane's table changes on its stream (rule 11).

use super::{LaneStream, Side};
use crate::agent::protocol::Tracks;
use kvtide_kernels::Error;
use std::sync::Arc;

/// The copy of a lane's table on its stream.
pub(crate) struct Shadow(pub Arc<LaneStream>);

impl Tracks for Shadow {
    fn entry(&mut self, page: u32, entry: u32) {
        if !self.0.is_ours() {
            return;
        }
        let mut side = self.0.side();
        if side.stale {
            return; // the table is rewritten at the next begin
        }
        match room(&mut side) {
            Ok(()) => side.ring.push(page, entry),
            Err(error) => side.fail(&error),
        }
    }

    fn mark(&mut self) {
        if !self.0.is_ours() {
            return; // a forked child is closing a step that it inherited
        }
        let deferred = self.0.side().deferred;
        let marks = &self.0.marks[self.0.lane];
        let marked = match deferred {
            Some(point) => {
                marks.set(point);
                Ok(())
            }
            None => marks.mark(),
        };
        if let Err(error) = marked {
            self.0.side().fail(&error);
        }
    }

    fn follow(&mut self) {
        if !self.0.is_ours() {
            return;
        }
        let mut side = self.0.side();
        if side.deferred.is_some() {
            side.follows = true; // the stream already waits for this boundary, so the boundary must wait
            return;
        }
        let Some(stream) = side.stream.clone() else { return };
        let mut others = self.0.marks.iter().enumerate().filter(|(lane, _)| *lane != self.0.lane);
        if let Err(error) = others.try_for_each(|(_, marks)| marks.follow(&mut 0, |mark| stream.wait_event(mark))) {
            side.fail(&error);
        }
    }
}

/// Ensure a slot for one more update. A boundary that the stream waits for cannot launch its pushed updates. Then only older
/// launches, which no longer wait for anything, can free a slot.
fn room(side: &mut Side) -> Result<(), Error> {
    if side.ring.has_room()? {
        return Ok(());
    }
    match (side.deferred, side.stream.clone()) {
        (None, Some(stream)) => side.ring.make_room(&stream),
        _ => Err(Error::Busy {
            what: "updates of one boundary that a stream waits for",
            limit: super::SLOTS_MIN as usize,
        }),
    }
}
