//! Native module of the Python package `kvtide`: sessions, channels and lanes as Python objects, their memory as DLPack.
//!
//! Only `python/kvtide` uses it. Waits run without the GIL. One thread at a time may use a handle; a second one gets an error, not
//! a data race. Every tensor keeps its memory alive.

mod attention;
mod blocks;
mod channel;
mod cuda;
mod dlpack;
mod error;
mod lane;
mod options;
mod relay;
mod session;

use pyo3::prelude::*;

/// Native module of kvtide: use the package `kvtide` instead.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<session::Session>()?;
    module.add_class::<session::Layout>()?;
    module.add_class::<session::PlaneLayout>()?;
    module.add_class::<channel::Channel>()?;
    module.add_class::<channel::Pin>()?;
    module.add_class::<blocks::LookupResult>()?;
    module.add_class::<blocks::Lease>()?;
    module.add_class::<blocks::CopyResult>()?;
    module.add_class::<blocks::Completion>()?;
    module.add_class::<relay::Relay>()?;
    module.add_class::<relay::Answer>()?;
    module.add_class::<lane::Lane>()?;
    module.add_class::<lane::Pass>()?;
    module.add_class::<attention::PagedAttention>()?;
    module.add_class::<dlpack::Memory>()?;
    module.add_class::<cuda::Kernels>()?;
    module.add_class::<cuda::Attention>()?;
    module.add_class::<cuda::Batch>()?;
    module.add_function(wrap_pyfunction!(cuda::attention_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::gpu_numa_node, module)?)?;
    module.add_function(wrap_pyfunction!(session::attach, module)?)?;
    module.add_function(wrap_pyfunction!(blocks::local_hash, module)?)?;
    module.add_function(wrap_pyfunction!(attention::attend, module)?)?;
    module.add_function(wrap_pyfunction!(attention::use_openmp, module)?)?;
    module.add("STATUSES", error::statuses())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
