//! Background tasks that the copy thread does for engine threads. It runs them between two rounds of the copy loop.

use super::session::Session;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// Result of one run of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Something changed.
    pub progress: bool,
    /// The task is not finished and must run again.
    pub left: bool,
}

/// A task that ends, at the latest with the session.
pub(crate) trait BackgroundTask: Send + Sync {
    /// Continue as far as possible without waiting.
    fn go_on(&self, session: &Session) -> Turn;
}

/// The background tasks of a session.
#[derive(Default)]
pub(crate) struct BackgroundTasks {
    list: Mutex<Vec<Arc<dyn BackgroundTask>>>,
    /// Number of tasks, readable without the lock.
    count: AtomicUsize,
}

impl BackgroundTasks {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn BackgroundTask>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Report whether the list of tasks is empty.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Add a task unless it is already listed, and wake the copy thread. If the session has ended, its copy thread may have
    /// ended too; the task then runs here.
    pub fn add(&self, session: &Session, task: Arc<dyn BackgroundTask>) {
        {
            let mut list = self.lock();
            if !list.iter().any(|known| Arc::ptr_eq(known, &task)) {
                list.push(Arc::clone(&task));
            }
            self.count.store(list.len(), Ordering::Release);
        }
        if session.alive() {
            session.copier.wake();
        } else {
            self.run(session);
        }
    }

    /// Run every task once.
    pub fn run(&self, session: &Session) -> Turn {
        if self.is_empty() {
            return Turn::default();
        }
        let tasks = self.lock().clone();
        let mut all = Turn::default();
        for task in tasks {
            let turn = task.go_on(session);
            all.progress |= turn.progress;
            all.left |= turn.left;
            if !turn.left {
                self.remove(session, &task);
            }
        }
        all
    }

    /// Remove a finished task. It runs once more, because more work may have been added meanwhile.
    fn remove(&self, session: &Session, task: &Arc<dyn BackgroundTask>) {
        let mut list = self.lock();
        list.retain(|known| !Arc::ptr_eq(known, task));
        if task.go_on(session).left {
            list.push(Arc::clone(task));
        }
        self.count.store(list.len(), Ordering::Release);
    }
}
