//! Creates the memory of a session, as its options specify, at attach.

#[cfg(feature = "cuda")]
pub(super) use with::{memory, numa_node, open, tier0};
#[cfg(not(feature = "cuda"))]
pub(super) use without::{memory, numa_node, open, tier0};

#[cfg(feature = "cuda")]
mod with {
    use crate::{
        Options, Result,
        agent::{
            protocol::{Geometry, Shared},
            stream::{LaneStream, Shadow, Sketches},
        },
        client::lane,
        memory::{
            CpuMemory, Tier0, TierMemory,
            cuda::{self, CudaMemory, Gate, Marks},
        },
    };
    use kvtide_kernels::Device;
    use std::sync::Arc;

    /// Capacity for table updates in flight to a lane's device copy, in multiples of the log's size.
    const LAPS: u32 = 4;

    /// Open the device that the options name.
    pub(in crate::client) fn open(options: &Options) -> Result<Option<Arc<Device>>> {
        cuda::open(&options.device)
    }

    /// Return the NUMA node of the device.
    pub(in crate::client) fn numa_node(device: &Option<Arc<Device>>) -> Option<u16> {
        device.as_ref()?.info().numa_node
    }

    /// Create tier 0.
    pub(in crate::client) fn tier0(
        device: &Option<Arc<Device>>,
        geometry: &Geometry,
        options: &Options,
        initial: &[u32],
    ) -> Result<Tier0> {
        match device {
            Some(device) => Tier0::on(device, geometry, &options.device, initial),
            None => Tier0::host(geometry, initial),
        }
    }

    /// The lanes' device sides, if tier 0 is on a device.
    pub(in crate::client) struct Streams(Vec<Arc<LaneStream>>, Option<Box<Sketches>>);

    impl Streams {
        /// Attach its device side to a lane.
        pub fn lane(&mut self, index: usize, mut state: lane::State) -> lane::State {
            if let Some(stream) = self.0.get(index) {
                let sketches = self.1.take(); // a session with sketches has one lane
                state.on(stream, Box::new(Shadow(Arc::clone(stream))), sketches);
            }
            state
        }
    }

    /// Create the memory around a tier 0, and the lanes' device sides.
    pub(in crate::client) fn memory(
        shared: &Shared,
        tier0: &Arc<Tier0>,
        options: &Options,
    ) -> Result<(Box<dyn TierMemory>, Streams)> {
        let geometry = shared.geometry();
        let Some(device) = tier0.device() else {
            return Ok((Box::new(CpuMemory::new(geometry, Arc::clone(tier0))), Streams(Vec::new(), None)));
        };
        let sketches = options.digests.as_ref();
        let planes = geometry.plane_count();
        let sketches = sketches.map(|digests| Sketches::new(device, geometry.bounds(), planes, digests));
        let sketches = sketches.transpose().map_err(|e| cuda::error("make room for sketches on the device", e))?;
        let failed = |e| cuda::error("make the lanes' tables on the device", e);
        let bounds = geometry.bounds();
        let marks = (0..bounds.lanes).map(|_| Marks::new(device)).collect::<kvtide_kernels::Result<Arc<[Marks]>>>();
        let marks = marks.map_err(failed)?;
        let gate = Arc::new(Gate::default());
        let sizes = (geometry.pages().max(1), planes, bounds.log_entries.saturating_mul(LAPS));
        let lane = |lane| LaneStream::new(device, lane, (&marks, &gate), sizes, options.timeout).map(Arc::new);
        let lanes = (0..usize::from(bounds.lanes)).map(lane).collect::<kvtide_kernels::Result<Vec<_>>>();
        let lanes = lanes.map_err(failed)?;
        let memory = CudaMemory::new(geometry, Arc::clone(tier0), marks, gate)?;
        Ok((Box::new(memory), Streams(lanes, sketches.map(Box::new))))
    }
}

#[cfg(not(feature = "cuda"))]
mod without {
    use crate::{
        DeviceChoice, Error, Options, Result,
        agent::protocol::{Geometry, Shared},
        client::lane,
        memory::{CpuMemory, Tier0, TierMemory},
    };
    use std::sync::Arc;

    /// Placeholder for a device.
    pub(in crate::client) struct NoDevice;

    /// Reject options that name a device: this build supports none.
    pub(in crate::client) fn open(options: &Options) -> Result<NoDevice> {
        match options.device {
            DeviceChoice::Cpu => Ok(NoDevice),
            _ => Err(Error::Options {
                option: "device",
                why: "this build of kvtide does not support CUDA (feature `cuda`)".into(),
            }),
        }
    }

    /// There is no device.
    pub(in crate::client) fn numa_node(_: &NoDevice) -> Option<u16> {
        None
    }

    /// Create tier 0.
    pub(in crate::client) fn tier0(_: &NoDevice, geometry: &Geometry, _: &Options, initial: &[u32]) -> Result<Tier0> {
        Tier0::host(geometry, initial)
    }

    /// Lanes have no device side in this build.
    pub(in crate::client) struct Streams;

    impl Streams {
        /// Return the lane unchanged.
        pub fn lane(&mut self, _: usize, state: lane::State) -> lane::State {
            state
        }
    }

    /// Create the memory around a tier 0.
    pub(in crate::client) fn memory(
        shared: &Shared,
        tier0: &Arc<Tier0>,
        _: &Options,
    ) -> Result<(Box<dyn TierMemory>, Streams)> {
        Ok((Box::new(CpuMemory::new(shared.geometry(), Arc::clone(tier0))), Streams))
    }
}
