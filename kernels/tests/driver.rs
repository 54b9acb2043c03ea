//! A driver that is missing, too old, incomplete, without devices, or that loses one: an error that names the requirement, never a
//! panic; other devices are not affected.

mod common;

use common::sim::Sim;
use common::{BOUND, child, device, done, end, get, passed, pinned, put};
use kvtide_kernels::{
    Arena, Buffer, Copier, Device, Driver, Error, Event, Pinned, Priority, Stream, Trial, WaitWord, Which, copy, module,
};
use std::{sync::Arc, time::Instant};

const MIB: u64 = 1 << 20;

/// Skips tests of the stand-in's faults on a GPU, where they prove nothing.
macro_rules! stand_in_only {
    () => {
        if !kvtide_cuda_sim::standing_in() {
            return;
        }
        kvtide_cuda_sim::install();
    };
}

/// Runs the test in a process of its own, with these variables.
macro_rules! in_child {
    ($test:expr, $variables:expr) => {
        if let Some(output) = child($test, $variables) {
            return passed(&output);
        }
    };
}

#[test]
fn no_driver() {
    in_child!("no_driver", &[("KVTIDE_LIBCUDA", "/nowhere/libcuda.so.1")]);
    let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(Driver::probe)).collect();
    for thread in threads {
        let error = thread.join().expect("no panic").expect_err("no driver");
        let text = error.to_string();
        assert!(matches!(error, Error::NoDriver { .. }), "{text}");
        assert!(
            text.contains("/nowhere/libcuda.so.1")
                && text.contains("CUDA 12.0 or newer")
                && text.contains("KVTIDE_LIBCUDA"),
            "{text}"
        );
    }
}

#[test]
fn memory_that_cannot_be_locked_costs_the_measurement_and_not_the_copier() {
    stand_in_only!();
    // In a process of its own: a device is measured once.
    in_child!("memory_that_cannot_be_locked_costs_the_measurement_and_not_the_copier", &[]);
    let device = device();
    device.works().expect("tried");
    let _word = WaitWord::new(&device).expect("a word, so that its page is registered");
    // CUDA_ERROR_OPERATING_SYSTEM, for the three sizes of the measurement; the first registration is that of the copier's lists.
    // Each counts from the one before.
    [2, 1, 1].into_iter().for_each(|nth| Sim::new().fail("cuMemHostRegister_v2", nth, 304));
    let mut copier = Copier::new(&device, copy::Options::default()).expect("a copier");
    let crossover = copier.crossover();
    assert!(crossover.measured.is_empty(), "{crossover}");
    assert!(crossover.cut_short.as_deref().is_some_and(|why| why.contains("cuMemHostRegister")), "{crossover}");
    Sim::new().mend();
    copies_arrive(&device, &mut copier);
}

#[test]
fn a_library_that_is_no_driver() {
    in_child!("a_library_that_is_no_driver", &[("KVTIDE_LIBCUDA", "libm.so.6")]);
    let error = Driver::probe().expect_err("no driver");
    assert!(
        matches!(&error, Error::Symbols { missing, .. } if missing.len() > 40 && missing.contains(&"cuInit")),
        "{error}"
    );
}

#[test]
fn a_driver_that_is_too_old() {
    stand_in_only!();
    in_child!("a_driver_that_is_too_old", &[("KVTIDE_SIM_VERSION", "11080")]);
    let text = Driver::probe().expect_err("too old").to_string();
    assert!(text.contains("CUDA 11.8") && text.contains("CUDA 12.0"), "{text}");
}

#[test]
fn a_driver_that_is_too_old_for_the_kernels() {
    stand_in_only!();
    in_child!("a_driver_that_is_too_old_for_the_kernels", &[("KVTIDE_SIM_VERSION", "12020")]);
    let device = device();
    let works = device.works().expect("tried");
    assert!(works.vmm.works() && works.host_registration.works() && works.stream_waits.works(), "{works:?}");
    for trial in [&works.kernels, &works.in_place] {
        let Trial::Fails { why } = trial else { panic!("{trial:?}") };
        assert!(why.contains("CUDA 12.2") && why.contains("CUDA 12.4"), "{why}");
    }
    assert!(device.driver().report().to_string().contains("need CUDA 12.4 or newer"));
    // Copies continue without the kernel and report that; explicit use of the kernel is refused.
    let mut copier = Copier::new(&device, copy::Options::default()).expect("a copier");
    assert!(copier.kernel_missing().is_some_and(|why| why.contains("CUDA 12.4")));
    copies_arrive(&device, &mut copier);
    let asked = copy::Options { path: copy::Path::Kernel, ..copy::Options::default() };
    assert!(matches!(Copier::new(&device, asked), Err(Error::Unsupported { .. })));
}

#[test]
fn no_device() {
    stand_in_only!();
    in_child!("no_device", &[("KVTIDE_SIM_DEVICES", "0")]);
    let text = Driver::probe().expect_err("no device").to_string();
    assert!(text.contains("CUDA_ERROR_NO_DEVICE (100)") && text.contains("CUDA_VISIBLE_DEVICES"), "{text}");
}

#[test]
fn a_driver_that_does_not_start_the_first_time() {
    stand_in_only!();
    in_child!("a_driver_that_does_not_start_the_first_time", &[("KVTIDE_SIM_FAULT", "cuInit:1=802")]);
    let text = Driver::probe().expect_err("not ready").to_string();
    assert!(text.contains("CUDA_ERROR_SYSTEM_NOT_READY (802)") && text.contains("fabric manager"), "{text}");
    Driver::probe().expect("a failure is not kept");
}

#[test]
fn a_driver_that_lacks_what_is_needed() {
    stand_in_only!();
    let name = "a_driver_that_lacks_what_is_needed";
    if std::env::var_os("KVTIDE_TEST_CHILD").is_none() {
        let library = kvtide_cuda_sim::without(&["cuEventQuery", "cuLaunchKernel"]);
        let output = child(name, &[("KVTIDE_LIBCUDA", library.to_str().expect("text"))]);
        std::fs::remove_file(&library).expect("made by this test");
        return passed(&output.expect("the parent"));
    }
    let error = Driver::probe().expect_err("incomplete");
    assert!(
        matches!(&error, Error::Symbols { missing, .. } if missing == &["cuEventQuery", "cuLaunchKernel"]),
        "{error}"
    );
}

#[test]
fn a_driver_that_lacks_what_can_be_done_without() {
    stand_in_only!();
    let name = "a_driver_that_lacks_what_can_be_done_without";
    if std::env::var_os("KVTIDE_TEST_CHILD").is_none() {
        let library = kvtide_cuda_sim::without(&["cuMemcpyBatchAsync", "cuMemMap", "cuStreamWaitValue64_v2"]);
        let output = child(name, &[("KVTIDE_LIBCUDA", library.to_str().expect("text"))]);
        std::fs::remove_file(&library).expect("made by this test");
        return passed(&output.expect("the parent"));
    }
    let device = device();
    let works = device.works().expect("tried");
    let failing: Vec<&str> = works.all().iter().filter(|(_, trial)| !trial.works()).map(|(name, _)| *name).collect();
    assert_eq!(
        failing,
        ["vmm", "batched_copies", "session_copies", "stream_waits", "copies_beside_waits"],
        "{works:?}"
    );
    let text = Arena::reserve(&device, 64 * MIB, 64 * MIB).expect_err("no VMM").to_string();
    assert!(text.contains("cuMemMap"), "{text}");
    let text = WaitWord::new(&device).expect_err("no waits").to_string();
    assert!(text.contains("cuStreamWaitValue64_v2"), "{text}");
    let mut copier = Copier::new(&device, copy::Options::default()).expect("a copier");
    assert!(!copier.is_batched());
    copies_arrive(&device, &mut copier);
}

#[test]
fn what_is_there_and_does_not_work_is_reported_as_such() {
    stand_in_only!();
    let name = "what_is_there_and_does_not_work_is_reported_as_such";
    let faults = "cuMemcpyBatchAsync:*=801,cuMemHostGetDevicePointer_v2:2=1,cuStreamWriteValue64_v2:*=801";
    in_child!(name, &[("KVTIDE_SIM_FAULT", faults)]);
    let device = device();
    let works = device.works().expect("tried");
    let failing: Vec<&str> = works.all().iter().filter(|(_, trial)| !trial.works()).map(|(name, _)| *name).collect();
    assert_eq!(failing, ["host_registration", "batched_copies", "session_copies", "stream_writes"], "{works:?}");
    let Trial::Fails { why } = &works.batched_copies else { panic!("{works:?}") };
    assert!(why.contains("cuMemcpyBatchAsync") && why.contains("CUDA_ERROR_NOT_SUPPORTED (801)"), "{why}");
}

#[test]
fn a_full_device_is_no_device_that_cannot() {
    stand_in_only!();
    in_child!("a_full_device_is_no_device_that_cannot", &[("KVTIDE_SIM_MEMORY", "209715200")]);
    let device = device();
    let hog = Buffer::new(&device, 199 << 20).expect("all but the memory of the first trials");
    let error = device.works().expect_err("nothing can be tried");
    assert!(
        matches!(error, Error::OutOfMemory { wanted: 1.., free: 1..=1_048_576, total: 209_715_200, .. }),
        "{error}"
    );
    drop(hog);
    assert!(device.works().expect("tried").vmm.works(), "what failed for want of memory is tried again");

    let arena = Arena::reserve(&device, 1024 * MIB, 64 * MIB).expect("addresses");
    assert_eq!(arena.grow_to(64 * MIB).expect("memory"), 64 * MIB);
    let error = arena.grow_to(1024 * MIB).expect_err("more than there is");
    assert!(error.is_out_of_memory() && error.to_string().contains(&(64 * MIB).to_string()), "{error}");
    assert_eq!(
        (arena.committed(), device.memory().expect("asked")),
        (64 * MIB, (136 * MIB, 200 * MIB)),
        "all or nothing"
    );
    put(&device, arena.base() + 64 * MIB - 16, &[5; 16]);
    assert_eq!(arena.grow_to(192 * MIB).expect("as much as there is"), 192 * MIB);
}

#[test]
fn growth_that_fails_half_way_leaves_the_arena_as_it_was() {
    stand_in_only!();
    for (call, nth) in [("cuMemCreate", 3), ("cuMemMap", 2), ("cuMemSetAccess", 3)] {
        if let Some(output) = child(
            "growth_that_fails_half_way_leaves_the_arena_as_it_was",
            &[("KVTIDE_TEST_CALL", call), ("KVTIDE_TEST_NTH", &nth.to_string())],
        ) {
            passed(&output);
            continue;
        }
        let sim = Sim::new();
        let device = device();
        let arena = Arena::reserve(&device, 512 * MIB, 64 * MIB).expect("addresses");
        arena.grow_to(64 * MIB).expect("memory");
        let free = device.memory().expect("asked").0;
        let (call, nth) = (std::env::var("KVTIDE_TEST_CALL"), std::env::var("KVTIDE_TEST_NTH"));
        let (call, nth) = (call.expect("set"), nth.expect("set").parse().expect("a number"));
        sim.fail(&call, nth, 2);
        assert!(arena.grow_to(512 * MIB).expect_err("made to fail").is_out_of_memory());
        assert_eq!((arena.committed(), device.memory().expect("asked").0), (64 * MIB, free), "{call}");
        sim.mend();
        assert_eq!(arena.grow_to(512 * MIB).expect("memory"), 512 * MIB);
        put(&device, arena.base() + 512 * MIB - 64, &[1; 64]);
        return;
    }
}

#[test]
fn devices_are_found_by_number_and_identity() {
    stand_in_only!();
    in_child!("devices_are_found_by_number_and_identity", &[("KVTIDE_SIM_DEVICES", "2")]);
    let driver = Driver::probe().expect("a driver");
    assert_eq!(driver.devices().len(), 2);
    let uuid = driver.devices()[1].uuid;
    let second = Device::open(&driver, uuid.to_string().parse().expect("an identity")).expect("a device");
    assert_eq!(second.info().ordinal, 1);
    assert_eq!(
        Device::open(&driver, "cuda:1".parse().expect("a number")).expect("a device").context(),
        second.context()
    );
    let text = Device::open(&driver, Which::Ordinal(2)).expect_err("there are two").to_string();
    assert!(text.contains("cuda:2") && text.contains(&uuid.to_string()), "{text}");
    assert!("gpu1".parse::<Which>().is_err());

    // Objects of two devices cannot be mixed.
    let first = Device::open(&driver, Which::Ordinal(0)).expect("a device");
    let (stream, event) =
        (Stream::new(&first, Priority::Normal).expect("a stream"), Event::new(&second).expect("an event"));
    assert!(matches!(stream.record(&event), Err(Error::Invalid { .. })));
    assert!(matches!(stream.wait_event(&event), Err(Error::Invalid { .. })));
    // SAFETY: `stream` outlives it.
    assert!(matches!(unsafe { Stream::borrow(&second, stream.raw()) }, Err(Error::Invalid { .. })));
    let there = Buffer::new(&first, 4096).expect("memory");
    assert!(matches!(Arena::given(&second, there.address(), 4096), Err(Error::Invalid { .. })));

    let json: serde_json::Value = serde_json::from_str(&driver.report().to_json()).expect("JSON");
    assert_eq!(json["devices"][1]["uuid"], uuid.to_string());
    assert_eq!(json["devices"][0]["works"]["in_place"]["works"], true, "{json}");
}

#[test]
fn a_lost_device_is_told_and_the_other_one_goes_on() {
    stand_in_only!();
    in_child!("a_lost_device_is_told_and_the_other_one_goes_on", &[("KVTIDE_SIM_DEVICES", "2")]);
    let sim = Sim::new();
    let driver = Driver::probe().expect("a driver");
    let [lost, other] = [0, 1].map(|n| Device::open(&driver, Which::Ordinal(n)).expect("a device"));
    let mut copier = Copier::new(&lost, copy::Options::default()).expect("a copier");
    let (stream, event) =
        (Stream::new(&lost, Priority::Normal).expect("a stream"), Event::new(&lost).expect("an event"));
    let arena = Arena::reserve(&lost, 64 * MIB, 64 * MIB).expect("addresses");
    arena.grow_to(1).expect("memory");
    let (host, word) = (pinned(&lost, &[3; 4096]), WaitWord::new(&lost).expect("a word"));
    stream.wait_word(&word, word.arm().expect("armed")).expect("waits");
    stream.record(&event).expect("recorded");
    copier.order_after(&event).expect("ordered");
    let copy = copy::Copy { from: host.address(), to: arena.base(), bytes: 4096, region: 0 };
    // SAFETY: both stay until the batch has ended.
    let ticket = unsafe { copier.submit(copy::Way::Up, &[copy]) }.expect("submitted");

    sim.lose(0, 719);
    let error = copier.poll(ticket).expect_err("lost");
    assert!(error.is_lost() && error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");
    assert!(lost.is_lost() && !other.is_lost());
    assert!(event.query().expect_err("lost").is_lost());
    assert!(stream.is_idle().expect_err("lost").is_lost());
    assert!(Buffer::new(&lost, 4096).expect_err("lost").is_lost());
    assert!(lost.memory().expect_err("lost").is_lost());
    // SAFETY: refused, or never executed.
    let again = unsafe { copier.submit(copy::Way::Up, &[copy]) };
    assert!(again.and_then(|ticket| copier.poll(ticket)).expect_err("lost").is_lost());
    // Everything on it can be dropped without waiting.
    drop((word, copier, stream, event, arena, host, lost));

    let bytes = common::Rng(1).bytes(4096);
    let there = common::buffer(&other, &bytes);
    assert_eq!(get(&other, there.address(), 4096), bytes);
    copies_arrive(&other, &mut Copier::new(&other, copy::Options::default()).expect("a copier"));
}

#[test]
fn a_batch_that_fails_half_way_is_told_when_what_was_started_has_ended() {
    stand_in_only!();
    let name = "a_batch_that_fails_half_way_is_told_when_what_was_started_has_ended";
    in_child!(name, &[]);
    let sim = Sim::new();
    let device = device();
    for (path, call, nth) in [
        (copy::Path::OneByOne, "cuMemcpyAsync", 3),
        (copy::Path::Engines, "cuMemcpyBatchAsync", 1),
        (copy::Path::Kernel, "cuLaunchKernel", 2),
        (copy::Path::OneByOne, "cuEventRecord", 1),
        (copy::Path::Kernel, "cuEventRecord", 1),
    ] {
        let options = copy::Options { path, launch_bytes: 4096, ..copy::Options::default() };
        let mut copier = Copier::new(&device, options).expect("a copier");
        let (host, there) = (pinned(&device, &[7; 1 << 16]), common::buffer(&device, &[0; 1 << 16]));
        let (stream, gate, word) = gate(&device);
        copier.order_after(&gate).expect("ordered");
        let copies: Vec<copy::Copy> = (0..8_u64)
            .map(|n| copy::Copy {
                from: host.address() + n * 8192,
                to: there.address() + n * 8192,
                bytes: 3000,
                region: 0,
            })
            .collect();
        sim.fail(call, nth, 1);
        // SAFETY: both stay until the batch has ended.
        let ticket = unsafe { copier.submit(copy::Way::Up, &copies) }.expect("reported when polled");
        sim.mend();
        // Only if nothing was started can it have ended.
        let started = !(path == copy::Path::Engines);
        if started {
            assert!(!copier.poll(ticket).expect("not yet"), "{path:?} {call}");
        }
        word.release_all();
        let deadline = Instant::now() + BOUND;
        let error = loop {
            match copier.poll(ticket) {
                Ok(false) => assert!(Instant::now() < deadline, "the batch does not end"),
                Ok(true) => panic!("{path:?} {call}: taken for a success"),
                Err(e) => break e,
            }
        };
        assert!(matches!(&error, Error::Call { code: 1, .. }), "{path:?} {call}: {error}");
        assert!(copier.settle(Instant::now() + BOUND).expect("asked"));
        assert_eq!((copier.in_flight(), copier.stats().failed), (0, 1));
        copies_arrive(&device, &mut copier);
        done(&stream);
    }
}

#[test]
fn ptx_that_the_driver_refuses() {
    static NONSENSE: module::Source = module::Source { name: "nonsense", ptx: "this is no PTX" };
    static EMPTY: module::Source = module::Source { name: "empty", ptx: "" };
    let device = device();
    for source in [&NONSENSE, &EMPTY] {
        let error = device.module(source).expect_err("refused");
        assert!(matches!(&error, Error::Kernels { module, .. } if *module == source.name), "{error}");
    }
    copies_arrive(&device, &mut Copier::new(&device, copy::Options::default()).expect("the device goes on"));
}

#[test]
fn a_forked_child_is_told_and_harms_nothing() {
    in_child!("a_forked_child_is_told_and_harms_nothing", &[]);
    let device = device();
    let bytes = common::Rng(2).bytes(4096);
    let there = common::buffer(&device, &bytes);
    let (stream, event, held) = (
        Stream::new(&device, Priority::Normal).expect("a stream"),
        Event::new(&device).expect("an event"),
        Pinned::new(&device, 4096).expect("memory"),
    );
    let copier = Copier::new(&device, copy::Options::default()).expect("a copier");
    // SAFETY: the child calls only this crate and exits without running exit handlers.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let told = matches!(Driver::probe(), Err(Error::Forked { .. }))
            && matches!(Device::open(device.driver(), Which::Ordinal(0)), Err(Error::Forked { .. }))
            && matches!(stream.record(&event), Err(Error::Forked { .. }))
            && matches!(Buffer::new(&device, 4096), Err(Error::Forked { .. }));
        drop((there, stream, event, held, copier, device));
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(if told { 0 } else { 1 }) };
    }
    assert!(pid > 0, "fork");
    let mut status = 0;
    // SAFETY: writes one int.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child got an error and dropped everything");
    assert_eq!(get(&device, there.address(), 4096), bytes);
    stream.record(&event).expect("recorded");
    done(&stream);
    drop((held, copier));
}

#[test]
fn a_thread_keeps_the_context_that_it_had() {
    let device = device();
    let current = || Sim::current_context();
    assert_eq!(current(), 0);
    let buffer = Buffer::new(&device, 4096).expect("memory");
    let stream = Stream::new(&device, Priority::Normal).expect("a stream");
    drop(buffer);
    assert_eq!(current(), 0, "every push was popped");
    done(&stream);
    assert_eq!(current(), 0);
}

#[test]
fn the_driver_is_one() {
    let device = device();
    let again = Driver::probe().expect("a driver");
    assert!(Arc::ptr_eq(&again, device.driver()));
    assert!(Arc::ptr_eq(&device, &common::device()), "a device is open once");
    assert!(again.version() >= kvtide_kernels::Version::NEEDED);
    assert!(!again.library().is_empty());
}

/// Return a stream that waits for a word, and the event behind it.
fn gate(device: &Arc<Device>) -> (Stream, Event, WaitWord) {
    let stream = Stream::new(device, Priority::Normal).expect("a stream");
    let (event, word) = (Event::new(device).expect("an event"), WaitWord::new(device).expect("a word"));
    stream.wait_word(&word, word.arm().expect("armed")).expect("waits");
    stream.record(&event).expect("recorded");
    (stream, event, word)
}

fn copies_arrive(device: &Arc<Device>, copier: &mut Copier) {
    let bytes = common::Rng(9).bytes(40_000);
    let (host, there) = (pinned(device, &bytes), common::buffer(device, &[0; 40_000]));
    let copies = [(0, 33), (8_192, 4_096), (16_384, 20_000)].map(|(at, bytes)| copy::Copy {
        from: host.address() + at,
        to: there.address() + at,
        bytes,
        region: 0,
    });
    // SAFETY: both stay until the batch has ended.
    let ticket = unsafe { copier.submit(copy::Way::Up, &copies) }.expect("submitted");
    end(copier, ticket).expect("copied");
    let got = get(device, there.address(), 40_000);
    for copy in copies {
        let at = (copy.to - there.address()) as usize;
        assert_eq!(got[at..at + copy.bytes], bytes[at..at + copy.bytes]);
    }
}
