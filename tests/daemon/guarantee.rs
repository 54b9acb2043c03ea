//! Sessions with a guarantee of blocks.

use crate::clients::{PAGE_BYTES, PAGE_TOKENS, write};
use crate::{BOUND, daemon, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Client, Options, Result, SpaceSpec};
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use std::path::Path;

fn attach(socket: &Path, guaranteed_blocks: u32) -> Result<Client> {
    let space = SpaceSpec::new("guarantee", [6; 32], PAGE_TOKENS as u32, PAGE_BYTES.map(Plane::full).to_vec());
    Client::attach(Options { guaranteed_blocks, ..Options::new(socket.into(), space, vec![64, 32]) })
}

/// Return the number of blocks that the daemon says it can guarantee.
fn refused(socket: &Path, blocks: u32) -> u32 {
    let error = attach(socket, blocks).err().expect("more than there is");
    assert_eq!(error.status(), Status::NoSpace, "{error}");
    let text = format!("{error}: {}", std::error::Error::source(&error).expect("a cause"));
    assert!(text.contains(&format!("guarantee of {blocks} blocks")), "{text}");
    let possible = text.split("the daemon can guarantee ").nth(1).and_then(|rest| rest.split(':').next());
    possible.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Reserve blocks one at a time until that fails; return their number.
fn take(client: &Client) -> u32 {
    let mut channel = client.channel(0).unwrap();
    let seq = channel.create_seq().unwrap();
    let mut blocks = 0;
    while channel.reserve(seq, PAGE_TOKENS * u64::from(blocks + 1), BOUND).is_ok() {
        blocks += 1;
    }
    blocks
}

/// Wait until the daemon reports this number of guaranteed blocks.
fn until_guaranteed(daemon: &mut PrivateDaemon, blocks: u32) {
    let what = format!("{blocks} blocks are guaranteed");
    until_status(daemon, &what, |status| status["spaces"][0]["occupancy"]["blocks_guaranteed"] == blocks);
}

#[test]
fn an_engine_attaches_with_a_guarantee_or_is_refused() {
    let mut daemon = daemon("");
    let socket = &daemon.socket().to_owned();
    let possible = refused(socket, 1 << 30);
    let first = attach(socket, possible).unwrap();
    until_guaranteed(&mut daemon, possible);
    // The second has its tier 0, and no host memory.
    let room = refused(socket, possible);
    assert!(room < possible / 4, "{room} of {possible}");
    let second = attach(socket, 0).unwrap();
    assert!(take(&second) <= room);
    let (mut channel, mut lane) = (first.channel(0).unwrap(), first.lane(0).unwrap());
    // In pieces of what fits into tier 0, sealed one after another.
    for _ in 0..possible / 20 {
        write(&mut channel, &mut lane, 20);
    }
    let _space = attach(socket, 0).unwrap(); // it would end with its last session
    drop((channel, lane, first, second));
    until_guaranteed(&mut daemon, 0);
    drop(attach(socket, possible).expect("it ended with its session"));
}

#[test]
fn a_new_daemon_hears_of_the_guarantee() {
    let first = daemon("");
    let socket = first.socket().to_owned();
    let client = attach(&socket, 100).unwrap();
    drop(first);
    let mut second = daemon(&format!("[daemon]\nsocket = \"{}\"\n", socket.display()));
    let client = client.reattach(&socket).unwrap();
    until_guaranteed(&mut second, 100);
    drop(client);
}
