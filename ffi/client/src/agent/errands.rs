//! What the copy thread does in an engine thread's stead, until it is done: looked after between two rounds of the pump.

use super::session::Session;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// What became of an errand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Something moved.
    pub progress: bool,
    /// It is to be looked after again.
    pub left: bool,
}

/// Something that ends some day: at the latest when the session does.
pub(crate) trait Errand: Send + Sync {
    /// Goes on with it as far as that is possible without waiting.
    fn go_on(&self, session: &Session) -> Turn;
}

/// The errands of a session.
#[derive(Default)]
pub(crate) struct Errands {
    list: Mutex<Vec<Arc<dyn Errand>>>,
    /// How many there are, for those who only look.
    count: AtomicUsize,
}

impl Errands {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Errand>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Adds one, unless it is there, and wakes the copy thread. If the session has ended, its copy thread may have too: then it
    /// is done here.
    pub fn add(&self, session: &Session, errand: Arc<dyn Errand>) {
        {
            let mut list = self.lock();
            if !list.iter().any(|known| Arc::ptr_eq(known, &errand)) {
                list.push(Arc::clone(&errand));
            }
            self.count.store(list.len(), Ordering::Release);
        }
        if session.alive() {
            session.copier.wake();
        } else {
            self.run(session);
        }
    }

    /// Looks after all of them once.
    pub fn run(&self, session: &Session) -> Turn {
        if self.is_empty() {
            return Turn::default();
        }
        let errands = self.lock().clone();
        let mut all = Turn::default();
        for errand in errands {
            let turn = errand.go_on(session);
            all.progress |= turn.progress;
            all.left |= turn.left;
            if !turn.left {
                self.remove(session, &errand);
            }
        }
        all
    }

    /// Takes one off that is done; looked at once more, since it may have been given more to do meanwhile.
    fn remove(&self, session: &Session, errand: &Arc<dyn Errand>) {
        let mut list = self.lock();
        list.retain(|known| !Arc::ptr_eq(known, errand));
        if errand.go_on(session).left {
            list.push(Arc::clone(errand));
        }
        self.count.store(list.len(), Ordering::Release);
    }
}
