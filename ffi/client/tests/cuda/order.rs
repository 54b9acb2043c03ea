//! A lane that runs far ahead of its stream. Reads that are only enqueued when the lane gives up a frame still see the frame's
//! old bytes.

use super::{
    fake::{Fake, LONG, PLANES, TOKENS, byte, job},
    rig::{Bound, attached, filled, is, on_device},
};
use kvtide_client::{Client, StepSeq, cuda::Event};
use kvtide_wire::{entry::JobKind, status::Status};
use std::time::{Duration, Instant};

/// Time in which work that fails to wait for a held stream can do damage. On a machine too slow to show it, a bug may stay
/// undetected, but a correct run never fails.
const HARM: Duration = Duration::from_millis(400);

/// Report whether the condition holds for the whole time.
fn stays(so: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + HARM;
    while Instant::now() < deadline {
        if !so() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

#[test]
fn a_frame_is_overwritten_only_after_the_stream_has_read_it() {
    let (mut fake, client, mut channel, mut bound) = attached();
    let kept = filled(&mut channel, &mut bound, 1);
    let read = filled(&mut channel, &mut bound, 1);
    channel.nop(LONG).expect("the daemon answers");
    let (kept, block) = (client.seq_blocks(kept).expect("blocks")[0], client.seq_blocks(read).expect("blocks")[0]);
    assert_eq!(fake.evict(kept, 0), Status::Ok, "its bytes are in host memory now");

    bound.lane.begin(&[StepSeq { seq: read, tokens: TOKENS }]).expect("begin");
    bound.lane.boundary(0).expect("resident");
    let frame = bound.lane.pte(block, 0).expect("resident");
    let (word, target) = bound.hold();
    let page = bound.read(read, 0, 0);
    bound.lane.end().expect("end");
    // The lane is quiescent on the host, and its stream has not started. A page that is loaded into the frame must wait.
    let load = fake.load_over(kept, 0, frame, (block, 0));
    assert!(stays(|| load.try_recv().is_err()), "the copy waits for the stream");
    word.release(target);
    bound.done();
    assert!(is(&page, byte(read, 0, 0)), "the stream read the page that the lane saw");
    assert_eq!(load.recv_timeout(LONG).expect("the job ends"), Status::Ok);
    fake.die();
}

#[test]
fn a_frame_without_bytes_is_written_only_after_other_streams_have_read_it() {
    let fake = Fake::start();
    let client = Client::attach(on_device(&fake)).expect("attach");
    let mut channel = client.channel(0).expect("channel");
    let mut reader = Bound::new(&client, 0);
    let mut writer = Bound::new(&client, 1);
    let old = filled(&mut channel, &mut reader, 1);
    channel.nop(LONG).expect("the daemon answers");
    let block = client.seq_blocks(old).expect("blocks")[0];
    reader.lane.begin(&[StepSeq { seq: old, tokens: TOKENS }]).expect("begin");
    reader.lane.boundary(0).expect("resident");
    let frame = reader.lane.pte(block, 1).expect("resident");
    let (word, target) = reader.hold();
    let page = reader.read(old, 0, 1);
    reader.lane.end().expect("end");
    // Evicted without a copy: the mover may reuse the frame at once, and the next page in it has no bytes to wait for.
    assert_eq!(fake.job(job(JobKind::Evict, block, 1, frame)), Status::Ok);
    let new = channel.create_seq().expect("create");
    channel.reserve(new, TOKENS, LONG).expect("reserve");
    let fresh = client.seq_blocks(new).expect("blocks")[0];
    writer.lane.begin(&[StepSeq { seq: new, tokens: TOKENS }]).expect("begin");
    let plane = (0..PLANES).find(|plane| writer.lane.pte(fresh, *plane) == Some(frame)).expect("in the freed frame");
    let written = writer.write(new, 0, plane, 0xee);
    writer.lane.end().expect("end");
    let event = Event::new(&writer.device).expect("event");
    writer.stream.record(&event).expect("recorded");
    assert!(stays(|| !event.query().expect("nothing failed")), "the writing stream waits for the reading one");
    word.release(target);
    reader.done();
    writer.done();
    assert!(is(&page, byte(old, 0, 1)), "the other lane's stream read the frame before it was written");
    let after = writer.read_frame(frame);
    writer.done();
    assert!(is(&after, 0xee));
    drop(written);
}

#[test]
fn copies_that_end_in_any_order_publish_what_is_whole() {
    let (fake, client, mut channel, mut bound) = attached();
    let seqs: Vec<u32> = (0..3).map(|_| filled(&mut channel, &mut bound, 3)).collect();
    channel.nop(LONG).expect("the daemon answers");
    for round in 0..6u32 {
        for (at, seq) in seqs.iter().enumerate() {
            for (index, block) in client.seq_blocks(*seq).expect("blocks").into_iter().enumerate() {
                if !(at as u32 + index as u32 + round).is_multiple_of(3) {
                    let plane = (round + index as u32) as u16 % PLANES;
                    assert_eq!(fake.evict(block, plane), Status::Ok);
                }
            }
        }
        for seq in &seqs {
            bound.read_all(*seq, 3);
        }
        bound.same_table();
    }
    assert_eq!(client.stats().sample_failed, 0);
}
