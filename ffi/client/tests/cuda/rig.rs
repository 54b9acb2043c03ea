//! An engine on a device: one stream for each lane, and a word that can hold it.

use super::fake::{Fake, LONG, PAGE, PLANES, TOKENS, byte, options};
use kvtide_client::{
    Channel, Client, CudaDevice, DeviceChoice, Lane, Options, Pass, StepSeq,
    cuda::{Buffer, Device, Driver, Event, Pinned, Priority, Stream, WaitWord, Which},
};
use kvtide_cuda_sim::driver_function;
use kvtide_wire::status::Status;
use std::{
    ffi::{CString, c_char},
    sync::Arc,
    time::Instant,
};

/// Open the device that all tests use.
pub fn device() -> Arc<Device> {
    kvtide_cuda_sim::install();
    Device::open(&Driver::probe().expect("a driver"), Which::Ordinal(0)).expect("a device")
}

/// Return the options of a session on the device.
pub fn on_device(fake: &Fake) -> Options {
    kvtide_cuda_sim::install();
    let device = DeviceChoice::Cuda { device: CudaDevice::Ordinal(0), chunk_bytes: 0 };
    Options { device, ..options(fake.socket.clone()) }
}

/// Start a daemon, attach to it with tier 0 on the device, and bind a lane.
pub fn attached() -> (Fake, Client, Channel, Bound) {
    attached_with(|_| ())
}

/// The same with changed options.
pub fn attached_with(change: impl FnOnce(&mut Options)) -> (Fake, Client, Channel, Bound) {
    let fake = Fake::start();
    let mut options = on_device(&fake);
    change(&mut options);
    let client = Client::attach(options).expect("attach");
    let channel = client.channel(0).expect("channel");
    let bound = Bound::new(&client, 0);
    (fake, client, channel, bound)
}

/// A lane on its own stream.
pub struct Bound {
    pub lane: Lane,
    pub stream: Stream,
    pub device: Arc<Device>,
    client: Client,
}

impl Bound {
    pub fn new(client: &Client, index: u16) -> Bound {
        let device = device();
        let stream = Stream::new(&device, Priority::Normal).expect("a stream");
        let mut lane = client.lane(index).expect("lane");
        // SAFETY: the stream is dropped after the lane.
        unsafe { lane.bind(stream.raw()) }.expect("bound");
        Bound { lane, stream, device, client: client.clone() }
    }

    /// Write a page of a sequence in the open step, on the stream. Keep the returned bytes until the stream is done.
    pub fn write(&self, seq: u32, index: u32, plane: u16, value: u8) -> Pinned {
        let block = self.client.seq_blocks(seq).expect("blocks")[index as usize];
        let frame = self.lane.pte(block, plane).expect("in the lane's table");
        let page = Pinned::new(&self.device, PAGE).expect("pinned");
        // SAFETY: the page is as long as said and ours alone; the frame is the sequence's unsealed page while the step is open.
        unsafe {
            page.as_ptr().write_bytes(value, PAGE);
            self.stream.copy(self.address(frame), page.address(), PAGE).expect("enqueued");
        }
        page
    }

    /// Read a page of a sequence in the open step, on the stream. The result is valid once the stream is done.
    pub fn read(&self, seq: u32, index: u32, plane: u16) -> Pinned {
        let block = self.client.seq_blocks(seq).expect("blocks")[index as usize];
        let frame = self.lane.pte(block, plane).expect("in the lane's table");
        self.read_frame(frame)
    }

    pub fn read_frame(&self, frame: u32) -> Pinned {
        let page = Pinned::new(&self.device, PAGE).expect("pinned");
        // SAFETY: both are as long as said, and stay until the stream is done.
        unsafe { self.stream.copy(page.address(), self.address(frame), PAGE) }.expect("enqueued");
        page
    }

    fn address(&self, frame: u32) -> u64 {
        self.client.frame_ptr(frame).expect("a frame").addr() as u64
    }

    /// Return the words at a device address, as they are when the stream reaches this point.
    pub fn words(&self, at: u64, count: usize) -> Vec<u32> {
        let words = Pinned::new(&self.device, count * 4).expect("pinned");
        // SAFETY: both are as long as said, and stay until the stream is done.
        unsafe { self.stream.copy(words.address(), at, count * 4) }.expect("enqueued");
        self.done();
        // SAFETY: as long as said; the copy has ended.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u32>(), count) }.to_vec()
    }

    /// Wait for the stream.
    pub fn done(&self) {
        let event = Event::new(&self.device).expect("event");
        self.stream.record(&event).expect("recorded");
        assert!(event.wait_until(Instant::now() + LONG).expect("nothing failed"), "the stream is done in time");
    }

    /// Hold the stream until the word is released.
    pub fn hold(&self) -> (WaitWord, u64) {
        let word = WaitWord::new(&self.device).expect("a word");
        let target = word.arm().expect("armed");
        self.stream.wait_word(&word, target).expect("enqueued");
        (word, target)
    }

    /// Check that the lane's table on the device equals the host's.
    pub fn same_table(&self) {
        let device = self.lane.device().expect("on a device");
        assert_eq!(self.words(device.table, device.entries as usize), self.lane.table());
        assert_eq!(self.words(device.status, 1), [0]);
    }

    /// Read a whole step on the stream and check every byte. Return how many boundaries handed out a part.
    pub fn read_all(&mut self, seq: u32, blocks: u32) -> usize {
        let mut parts = 0;
        self.lane.begin(&[StepSeq { seq, tokens: u64::from(blocks) * TOKENS }]).expect("begin");
        for plane in 0..PLANES {
            let mut pages = Vec::new();
            loop {
                let pass = self.lane.boundary(plane).expect("boundary");
                let indices: Vec<u32> = match pass {
                    Pass::All => (0..blocks).collect(),
                    Pass::Part { .. } => self.lane.ready().iter().map(|ready| ready.index).collect(),
                };
                parts += usize::from(pass != Pass::All);
                pages.extend(indices.into_iter().map(|index| (index, self.read(seq, index, plane))));
                if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                    break;
                }
            }
            assert_eq!(pages.len(), blocks as usize, "plane {plane} is complete");
            self.done();
            for (index, page) in &pages {
                assert!(is(page, byte(seq, *index, plane)), "sequence {seq}, block {index}, plane {plane}");
            }
        }
        self.lane.end().expect("end");
        parts
    }
}

/// Report whether a page that was read holds only this byte.
pub fn is(page: &Pinned, value: u8) -> bool {
    bytes(page).iter().all(|b| *b == value)
}

pub fn bytes(page: &Pinned) -> Vec<u8> {
    // SAFETY: as long as `bytes()` says; the copy into it has ended.
    unsafe { std::slice::from_raw_parts(page.as_ptr(), page.bytes()) }.to_vec()
}

/// Create a sequence of committed blocks, written by the lane's stream.
pub fn filled(channel: &mut Channel, bound: &mut Bound, blocks: u32) -> u32 {
    let seq = channel.create_seq().expect("create");
    let tokens = u64::from(blocks) * TOKENS;
    channel.reserve(seq, tokens, LONG).expect("reserve");
    bound.lane.begin(&[StepSeq { seq, tokens }]).expect("begin");
    let places = (0..blocks).flat_map(|index| (0..PLANES).map(move |plane| (index, plane)));
    let pages: Vec<Pinned> =
        places.map(|(index, plane)| bound.write(seq, index, plane, byte(seq, index, plane))).collect();
    bound.lane.end().expect("end");
    channel.commit(seq, tokens).expect("commit");
    bound.done();
    drop(pages);
    seq
}

/// Blocks of the sequence of a [`Scene`].
pub const BLOCKS: u32 = 3;

/// A session with a sequence that its steps read.
pub struct Scene {
    pub fake: Fake,
    pub client: Client,
    pub bound: Bound,
    pub seq: u32,
}

impl Scene {
    pub fn begin(&mut self) {
        self.bound.lane.begin(&[StepSeq { seq: self.seq, tokens: u64::from(BLOCKS) * TOKENS }]).expect("begin");
    }

    pub fn evict(&self, index: usize, plane: u16) {
        let block = self.client.seq_blocks(self.seq).expect("blocks")[index];
        assert_eq!(self.fake.evict(block, plane), Status::Ok);
    }

    pub fn status_word(&self) -> u32 {
        let device = self.bound.lane.device().expect("on a device");
        self.bound.words(device.status, 1)[0]
    }
}

/// Allocate a device buffer that the engine owns.
pub fn engine_memory(bytes: usize) -> Buffer {
    Buffer::new(&device(), bytes).expect("device memory")
}

/// Switches of the simulated driver.
pub struct Sim;

#[allow(unsafe_code)]
impl Sim {
    /// Make the nth call of a function from now on fail.
    pub fn fail(call: &str, nth: u64, code: u32) {
        let call = CString::new(call).expect("name");
        // SAFETY: the simulated driver's function has this type.
        unsafe {
            let fail: unsafe extern "C" fn(*const c_char, u64, u32) = driver_function("kvt_sim_fail");
            fail(call.as_ptr(), nth, code);
        }
    }

    /// Make the next call of a function wait until the device is idle.
    pub fn block(call: &str) {
        let call = CString::new(call).expect("name");
        // SAFETY: the simulated driver's function has this type.
        unsafe { driver_function::<unsafe extern "C" fn(*const c_char)>("kvt_sim_block")(call.as_ptr()) };
    }

    /// Cancel all requested failures.
    pub fn mend() {
        // SAFETY: the simulated driver's function has this type.
        unsafe { driver_function::<unsafe extern "C" fn()>("kvt_sim_mend")() };
    }

    /// Simulate the loss of the device.
    pub fn lose(code: u32) {
        // SAFETY: the simulated driver's function has this type.
        unsafe { driver_function::<unsafe extern "C" fn(u32, u32)>("kvt_sim_lose")(0, code) };
    }

    /// Return how often kernels have read a word that hosts or other blocks may write.
    pub fn word_loads() -> u64 {
        // SAFETY: the simulated driver's function has this type.
        unsafe { driver_function::<unsafe extern "C" fn() -> u64>("kvt_sim_word_loads")() }
    }

    /// Enqueue copies whose reads are not checked for their order: the test looks only at bytes that nothing writes.
    pub fn snapshots(enqueue: impl FnOnce()) {
        if !standing_in() {
            return enqueue();
        }
        // SAFETY: the simulated driver's function has this type.
        let set = unsafe { driver_function::<unsafe extern "C" fn(bool)>("kvt_sim_snapshots") };
        // SAFETY: as above.
        unsafe { set(true) };
        enqueue();
        // SAFETY: as above.
        unsafe { set(false) };
    }

    /// Return how often a function was called.
    pub fn calls(call: &str) -> u64 {
        let call = CString::new(call).expect("name");
        // SAFETY: the simulated driver's function has this type.
        unsafe { driver_function::<unsafe extern "C" fn(*const c_char) -> u64>("kvt_sim_calls")(call.as_ptr()) }
    }
}

/// Environment variable that names the test which a process from [`child`] runs.
const CHILD: &str = "KVTIDE_TEST_CHILD";

/// Report whether the driver is the simulated one. Tests that need its switches prove nothing on a GPU.
pub fn standing_in() -> bool {
    kvtide_cuda_sim::standing_in()
}

/// Run one test of this executable again in its own process, with these variables. Returns `None` in that process.
pub fn child(test: &str, variables: &[(&str, &str)]) -> Option<std::process::Output> {
    kvtide_cuda_sim::install();
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        return None;
    }
    let mut command = std::process::Command::new(std::env::current_exe().expect("an executable"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command.envs(variables.iter().copied());
    Some(command.output().expect("the child runs"))
}

/// Check that the child's test passed.
pub fn passed(output: &std::process::Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}
