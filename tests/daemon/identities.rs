//! An engine whose fingerprint has no blocks gets the identity of the last engine of its name that has some.

use crate::nvme::{Dir, nvme_options};
use crate::{BOUND, daemon, until, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Channel, Client, Options, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use rustix::process::Signal;
use std::path::Path;

const BLOCKS: u32 = 4;

/// An attached engine with memory for [`BLOCKS`] blocks.
struct Engine {
    client: Client,
    channel: Channel,
}

impl Engine {
    /// Attach with the first byte of a fingerprint, which the identity names.
    fn attach(socket: &Path, name: &str, model: u8) -> Engine {
        let space = SpaceSpec::new(name, [model; 32], 16, vec![Plane::full(4096)]);
        let identity = format!("model {model}");
        let client = Client::attach(Options { identity, ..Options::new(socket.into(), space, vec![0]) }).unwrap();
        client.allocate_blocks(BLOCKS).unwrap();
        let channel = client.channel(0).unwrap();
        Engine { client, channel }
    }

    fn other(&self) -> Option<&str> {
        self.client.other_identity()
    }

    fn store(&mut self, level: Level) {
        let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).collect();
        let own: Vec<u32> = (0..BLOCKS).collect();
        let copied = self.channel.store((0, 0), &hashes, &own, level, BOUND).unwrap();
        assert_eq!((copied.status, copied.level), (Status::Ok, level));
    }
}

#[test]
fn only_an_engine_without_blocks_gets_the_identity_of_one_with_blocks() {
    let mut daemon = daemon("");
    let socket = &daemon.socket().to_owned();
    let mut spaces_are = |count| {
        until_status(&mut daemon, "the spaces without blocks have ended", |status| {
            status["spaces"].as_array().unwrap().len() == count
        });
    };
    let mut first = Engine::attach(socket, "model", 1);
    assert_eq!(first.other(), None, "no engine attached before");
    assert_eq!(Engine::attach(socket, "model", 2).other(), None, "the first engine has no blocks");
    first.store(Level::Published);
    spaces_are(1);
    let mut second = Engine::attach(socket, "model", 2);
    assert_eq!(second.other(), Some("model 1"));
    assert_eq!(Engine::attach(socket, "another", 3).other(), None, "no engine of this name has blocks");
    spaces_are(2);
    assert_eq!(Engine::attach(socket, "model", 1).other(), None, "it has blocks of its own");
    second.store(Level::Published);
    assert_eq!(Engine::attach(socket, "model", 2).other(), None, "it has blocks of its own by now");
    assert_eq!(Engine::attach(socket, "model", 3).other(), Some("model 2"), "the last one with blocks");
}

#[test]
fn identities_and_blocks_survive_the_daemon_together() {
    let dir = Dir::new();
    let options = || nvme_options(&dir, 8 << 20, "", "");
    let mut daemon = PrivateDaemon::start(&options()).unwrap();
    Engine::attach(daemon.socket(), "model", 1).store(Level::Durable);
    daemon.stop().unwrap();
    let mut daemon = PrivateDaemon::start(&options()).unwrap();
    let second = Engine::attach(daemon.socket(), "model", 2);
    assert_eq!(second.other(), Some("model 1"), "{}", daemon.log());
    assert_eq!(Engine::attach(daemon.socket(), "model", 1).other(), None, "its blocks were recovered");
    drop(second);
    // A killed daemon has written the identities too, as soon as the engine had attached or a little later.
    let identities = dir.path().join("disk/identities.json");
    let written = || std::fs::read_to_string(&identities).is_ok_and(|text| text.contains("model 2"));
    until(|| daemon.log(), written);
    daemon.signal(Signal::KILL).unwrap();
    daemon.wait(BOUND).unwrap();
    let daemon = PrivateDaemon::start(&options()).unwrap();
    assert_eq!(Engine::attach(daemon.socket(), "model", 3).other(), Some("model 1"), "{}", daemon.log());
}
