//! Case `image`: the daemon in a container of the image, engines of the Python package in containers of their own. It needs root, podman
//! and runc. Limits of memory and memlock are left out, because not every host can set them.

use super::{failed, folder, image, only, scratch};
use crate::machine;
use crate::machine::deploy::Checks;
use crate::machine::terminal::Terminal;
use crate::run::{Error, root, run};
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

/// Variables and functions of the shell. Each container has its own IPC, process and network namespace, no capability, and a root that it
/// cannot write to; the directory of the socket, the disk and the configuration are mounted. An engine may write to none of them.
const SHELL: &str = r#"
podman() {
    command podman --log-level error --root "$PLACE/storage" --runroot "$PLACE/run" --storage-driver vfs \
        --cgroup-manager cgroupfs --runtime runc "$@"
}
# Limits that also a host without CAP_SYS_RESOURCE can set.
sandbox="--read-only --network=none --ipc=private --pid=private --cap-drop=ALL --security-opt=no-new-privileges \
    --ulimit nofile=$(ulimit -Hn):$(ulimit -Hn) --ulimit nproc=4096:4096"
daemon() {
    podman run --detach --name kvtided $sandbox --security-opt "seccomp=$SECCOMP" \
        --health-cmd '["kvtide", "status"]' --health-interval=disable \
        --volume socket:/run/kvtide --volume "$PLACE/disk:/var/lib/kvtide" \
        --volume "$PLACE/etc:/etc/kvtide:ro" "$IMAGE" > "$PLACE/id" &&
        podman exec kvtided kvtide status --wait 60
}
engine() {
    podman run --rm $sandbox --user 1000:1000 --group-add 900 --env PYTHONPATH=/opt --env "KVTIDE_TOKEN_FILE=/srv/$1" \
        --volume socket:/mnt:ro --volume "$PLACE/python:/opt:ro" --volume "$PLACE/engine:/srv:ro" \
        --rootfs "$DEBIAN" python3 /srv/engine.py /mnt/kvtide.sock "$2"
}
of_daemon() { tr -d '\t' < "/proc/$(podman inspect --format '{{.State.Pid}}' kvtided)/status" | grep -E "$1"; }
remove() { podman stop --time 30 kvtided && podman rm kvtided; }
log() { podman logs kvtided 2>&1 | tail -30; }
"#;

/// Run the case.
pub fn check() -> Result<Value, Error> {
    let archive = only(&folder(), image::ENDING)?;
    let place = scratch("containers")?;
    let config = root().join("configs/packages/kvtided.toml");
    let text = fs::read_to_string(&config).map_err(failed("read", &config))?;
    let more = "\n[tiers.host]\ncapacity = \"64MiB\"\n\n[[tiers.nvme.disks]]\n\
        dir = \"/var/lib/kvtide/nvme0\"\ncapacity = \"1GiB\"\nreserve_free = 0\n";
    for name in ["etc", "engine", "python"] {
        fs::create_dir(place.join(name)).map_err(failed("create", &place.join(name)))?;
    }
    for (name, content) in [
        ("etc/kvtided.toml", text + more),
        ("etc/engines.token", "0123456789abcdef".repeat(4)),
        ("engine/engines.token", "0123456789abcdef".repeat(4)),
        ("engine/other.token", "fedcba9876543210".repeat(4)),
        ("engine/engine.py", include_str!("engine.py").to_owned()),
    ] {
        fs::write(place.join(name), content).map_err(failed("write", &place.join(name)))?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--target"]).arg(place.join("python"));
    run(pip.arg(only(&folder(), ".whl")?))?;
    let mut bash = Command::new("bash");
    bash.args(["--noprofile", "--norc"]).env("PLACE", &place).env("DEBIAN", machine::debian()?);
    bash.env("SECCOMP", root().join("configs/kubernetes/prepare/seccomp.json"));
    bash.env("IMAGE", format!("localhost/kvtide:{}", env!("CARGO_PKG_VERSION")));
    let mut terminal = Terminal::start(bash)?;
    let mut checks = Checks::new(&mut terminal, "log");
    checks.output(SHELL)?;
    let checked = steps(&mut checks, &archive.display().to_string());
    // Nothing stays, whatever failed.
    checks
        .output("podman rm --all --force --time 0 > \"$PLACE/id\"; podman rmi --all --force > \"$PLACE/id\"; true")?;
    let passed = checks.passed;
    drop(terminal);
    fs::remove_dir_all(&place).map_err(failed("remove", &place))?;
    let bytes = checked?;
    Ok(json!({"passed": passed, "bytes": bytes}))
}

/// Check, and return the bytes of the image's root.
fn steps(checks: &mut Checks<'_>, archive: &str) -> Result<u64, Error> {
    let found = ("found 64 of 64, 64 equal", 0);
    // Who the directories of the host belong to. That of the socket is a volume, which has the owner that the image gives it.
    let owned = "install -d -o 900 -g 900 -m 0700 \"$PLACE/disk\" && \
        chgrp 900 \"$PLACE/etc/engines.token\" && chmod 0640 \"$PLACE/etc/engines.token\" && mkdir \"$PLACE/storage\"";
    checks.expect("directories", owned, ("", 0))?;
    checks.expect("load the image", &format!("podman pull oci-archive:{archive}"), ("", 0))?;
    let bytes = checks.output("podman image inspect --format '{{.Size}}' \"$IMAGE\"")?;
    checks.expect("the daemon starts", "daemon", ("serving", 0))?;
    let sandbox = "of_daemon '^(Uid:900|NoNewPrivs:1|Seccomp:2|CapBnd:0000000000000000)' | wc -l";
    checks.expect("neither root nor capabilities", sandbox, ("4", 0))?;
    checks.expect(
        "its system calls include io_uring",
        "podman exec kvtided kvtide status --json",
        ("io_uring+direct", 0),
    )?;
    let other = "ipc=$(engine engines.token store) && echo \"$ipc\" && [ \"${ipc##* }\" != \
        \"$(readlink /proc/$(podman inspect --format '{{.State.Pid}}' kvtided)/ns/ipc)\" ]";
    checks.expect("an engine in another IPC namespace stores", other, ("stored 64", 0))?;
    checks.expect("it finds what it stored", "engine engines.token find", found)?;
    checks.expect("another token is refused", "engine other.token find", ("NotPermitted", 1))?;
    checks.expect("healthy", "podman healthcheck run kvtided", ("", 0))?;
    let stopped =
        "podman kill --signal STOP kvtided && ! podman healthcheck run kvtided && podman kill --signal CONT kvtided";
    checks.expect("a stopped daemon is unhealthy", stopped, ("", 0))?;
    checks.expect("the container is removed", "remove && ! podman inspect kvtided", ("", 0))?;
    checks.expect("a new one", "daemon", ("serving", 0))?;
    checks.expect("found by an engine after it", "engine engines.token find", found)?;
    checks.expect(
        "ends cleanly",
        "podman stop --time 30 kvtided && podman inspect --format 'status {{.State.ExitCode}}' kvtided",
        ("status 0", 0),
    )?;
    let relay = "podman run --rm $sandbox --entrypoint kvtide-relay \"$IMAGE\" --version";
    checks.expect("the relay is in it", relay, ("kvtide-relay", 0))?;
    checks.expect(
        "neither shell nor package manager",
        "podman run --rm $sandbox --entrypoint sh \"$IMAGE\"",
        ("not found", 127),
    )?;
    bytes.trim().parse().map_err(|_| Error::Check(format!("podman shows no size of the image: {bytes}")))
}
