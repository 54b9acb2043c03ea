//! Graphs of one stream's operations, in its order, as a capture collects them. Events recorded in a capture mean nothing outside.

use super::{Handles, check, driver, put, queue};
use crate::{capture, code, stream::Op};
use std::{ffi::c_ulonglong, sync::Arc};

static GRAPHS: Handles<Vec<Op>> = Handles::new();
static EXECUTABLES: Handles<Vec<Op>> = Handles::new();

/// Keep a captured graph and return its handle.
pub(super) fn add(ops: Vec<Op>) -> usize {
    GRAPHS.add(Arc::new(ops))
}

driver! {
    fn cuGraphInstantiateWithFlags(to: *mut usize, graph: usize, flags: c_ulonglong) {
        check(if flags == 0 { code::SUCCESS } else { code::NOT_SUPPORTED })?;
        let ops = GRAPHS.get(graph)?;
        put(to, EXECUTABLES.add(Arc::new(ops.to_vec())))?;
    }

    fn cuGraphLaunch(executable: usize, on: usize) {
        let (ops, stream) = (EXECUTABLES.get(executable)?, queue::stream(on)?);
        // A graph within a graph is not built here.
        check(if capture::takes(stream.handle())? { code::NOT_SUPPORTED } else { code::SUCCESS })?;
        stream.enqueue_all(ops.iter().cloned());
    }

    fn cuGraphExecDestroy(executable: usize) {
        EXECUTABLES.remove(executable)?;
    }

    fn cuGraphDestroy(graph: usize) {
        GRAPHS.remove(graph)?;
    }
}
