//! Graphs of one stream's operations, in its order, as a capture collects them. Events recorded in a capture mean nothing outside.

use super::{Handles, Owned, check, driver, put, queue};
use crate::{capture, code, context, stream::Op};
use std::{ffi::c_ulonglong, sync::Arc};

/// Operations in order, and the device of the context in which they were captured.
struct Graph {
    device: usize,
    ops: Vec<Op>,
}

impl Owned for Graph {
    const KIND: &'static str = "graph";

    fn device(&self) -> usize {
        self.device
    }
}

struct Executable(Arc<Graph>);

impl Owned for Executable {
    const KIND: &'static str = "executable graph";

    fn device(&self) -> usize {
        self.0.device
    }
}

static GRAPHS: Handles<Graph> = Handles::new();
static EXECUTABLES: Handles<Executable> = Handles::new();

/// Keep a captured graph and return its handle.
pub(super) fn add(ops: Vec<Op>) -> Result<usize, code::Code> {
    Ok(GRAPHS.add(Arc::new(Graph { device: context::current()?, ops })))
}

driver! {
    fn cuGraphInstantiateWithFlags(to: *mut usize, graph: usize, flags: c_ulonglong) {
        check(if flags == 0 { code::SUCCESS } else { code::NOT_SUPPORTED })?;
        put(to, EXECUTABLES.add(Arc::new(Executable(GRAPHS.get(graph)?))))?;
    }

    fn cuGraphLaunch(executable: usize, on: usize) {
        let (graph, stream) = (EXECUTABLES.get(executable)?, queue::stream(on)?);
        // A graph within a graph is not built here.
        check(if capture::takes(stream.handle())? { code::NOT_SUPPORTED } else { code::SUCCESS })?;
        stream.enqueue(graph.0.ops.iter().cloned());
    }

    fn cuGraphExecDestroy(executable: usize) {
        EXECUTABLES.remove(executable)?;
    }

    fn cuGraphDestroy(graph: usize) {
        GRAPHS.remove(graph)?;
    }
}
