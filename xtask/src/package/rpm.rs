//! The .rpm, and case `rpm`: it is installed in a machine with a real systemd. The machine is Debian, whose rpm knows no installed
//! package, so that dependencies are not resolved.

use super::check::GLIBC;
use super::{folder, only, remove, scratch, share, tool};
use crate::machine::deploy::{self, Checks};
use crate::machine::terminal::Terminal;
use crate::machine::{Machine, inside};
use crate::run::{Error, run};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What makes it. Its list of files is in Cargo.toml.
const TOOL: [&str; 2] = ["cargo-generate-rpm", "0.21.1"];

/// Make the .rpm from what is built.
pub fn make() -> Result<PathBuf, Error> {
    share()?;
    remove(".rpm")?;
    run(tool(TOOL)?.args(["--profile", "dist", "--output"]).arg(folder()))?;
    only(&folder(), ".rpm")
}

/// Run the case.
pub fn check() -> Result<Value, Error> {
    deploy::build()?;
    let package = only(&folder(), ".rpm")?;
    let place = scratch("rpm")?;
    run(tool(TOOL)?.args(["--profile", "dist", "--set-metadata", "release = \"2\"", "--output"]).arg(&place))?;
    let next = only(&place, ".rpm")?;
    let machine = Machine::boot()?;
    let mut bash = machine.command("bash");
    bash.args(["--noprofile", "--norc"]);
    let mut terminal = Terminal::start(bash)?;
    let mut checks = Checks::new(&mut terminal, deploy::LOG);
    let engine = |does: &str| {
        let program = deploy::engine();
        format!(
            "runuser -u infer -- env KVTIDE_TOKEN_FILE=/etc/kvtide/engines.token {program} /run/kvtide/kvtide.sock {does}"
        )
    };
    let rpm = |words: &str| format!("rpm --nodeps --force-debian {words}");
    let found = ("found 64 of 64, 64 equal", 0);
    checks.expect("install", &rpm(&format!("--install {}", inside(&package))), ("", 0))?;
    checks.expect("it runs at once", "systemctl is-active kvtided", ("active", 0))?;
    checks.expect("it is enabled", "systemctl is-enabled kvtided", ("enabled", 0))?;
    checks.expect("the relay does not run", "systemctl is-active kvtide-relay", ("inactive", 3))?;
    checks.expect("the tool finds it", "kvtide status", ("serving", 0))?;
    checks.expect("files have their modes and owners", "rpm --verify --nodeps kvtide && echo right", ("right", 0))?;
    let owners = "stat --format '%U:%G %a %n' /etc/kvtide /etc/kvtide/engines.token /usr/bin/kvtided | tr '\\n' ' '";
    let wanted = "root:kvtide 750 /etc/kvtide root:kvtide 640 /etc/kvtide/engines.token root:root 755 /usr/bin/kvtided";
    checks.expect("who may read the configuration", owners, (wanted, 0))?;
    let flags = "rpm --query --queryformat '[%{FILENAMES} %{FILEFLAGS:fflags}\\n]' kvtide";
    checks.expect("an upgrade does not replace the configuration", flags, ("/etc/kvtide/kvtided.toml cn", 0))?;
    let needs = "rpm --query --requires kvtide | grep -oE 'GLIBC_2\\.[0-9]+' | sort -uV | tail -1";
    checks.expect("its dependencies", needs, (&format!("GLIBC_2.{GLIBC}"), 0))?;
    checks.expect("the user of an engine", "useradd --system --groups kvtide infer", ("", 0))?;
    let disk = "printf '[tiers.host]\\ncapacity = \"256MiB\"\\n[[tiers.nvme.disks]]\\n\
        dir = \"/var/lib/kvtide/nvme0\"\\ncapacity = \"1GiB\"\\nreserve_free = 0\\n' >> \
        /etc/kvtide/kvtided.toml && systemctl restart kvtided";
    checks.expect("a disk", disk, ("", 0))?;
    checks.expect("an engine of the group stores", &engine("store"), ("stored 64", 0))?;
    let token = checks.output("sha256sum /etc/kvtide/engines.token")?;
    let pid = "systemctl show --property=MainPID --value kvtided";
    let before = checks.output(pid)?;
    checks.expect("upgrade", &rpm(&format!("--upgrade {}", inside(&next))), ("", 0))?;
    let restarted = format!("rpm --query kvtide && systemctl is-active kvtided && [ $({pid}) != {before} ]");
    checks.expect("the new release runs", &restarted, ("-2.", 0))?;
    checks.expect("the changed configuration stays", "grep nvme0 /etc/kvtide/kvtided.toml", ("nvme0", 0))?;
    checks.expect("the token stays", "sha256sum /etc/kvtide/engines.token", (&token, 0))?;
    checks.expect("found after the upgrade", &engine("find"), found)?;
    let removed = "! systemctl is-active kvtided && ! test -e /usr/bin/kvtided && ! systemctl cat kvtided && \
        test -d /var/lib/kvtide/nvme0 && test -e /etc/kvtide/engines.token && test -e /etc/kvtide/kvtided.toml.rpmsave";
    checks.expect("remove", &format!("{} && {removed}", rpm("--erase kvtide")), ("", 0))?;
    Ok(json!({"passed": checks.passed}))
}
