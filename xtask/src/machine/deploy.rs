//! What has to be true after the commands of the page on operation, in a machine with a real systemd: engines of the group find what
//! they stored after every way in which the daemon is restarted, and others are refused.

use super::CHECKOUT;
use super::terminal::Terminal;
use crate::run::{Error, cargo, root, run, target};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Limit of one step. The watchdog takes 30 s, and the allocation of the host tier some more.
const LIMIT: Duration = Duration::from_secs(180);
/// Command in the machine that prints what the daemon logged last.
pub const LOG: &str = "journalctl --unit kvtided --no-pager | tail -30";
/// Name of the engine below the target folder.
const ENGINE: &str = "durable";
/// Libraries that a static libkvtide needs.
const LIBRARIES: [&str; 5] = ["-lgcc_s", "-lutil", "-lpthread", "-lm", "-ldl"];

/// Build the engine that runs in the machine.
pub fn build() -> Result<(), Error> {
    // One by one: a dependency of the tool would add symbols to the library.
    for package in ["kvtide-capi", "kvtide"] {
        run(cargo().args(["build", "--release", "--locked", "-p", package]))?;
    }
    compile(root(), &target().join("release"), &target().join(ENGINE))
}

/// Compile the engine with the header in a checkout and the libkvtide.a in a folder.
pub fn compile(checkout: &Path, library: &Path, to: &Path) -> Result<(), Error> {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-I"]).arg(checkout.join("ffi/include"));
    cc.arg(root().join("xtask/src/machine/durable.c")).arg(library.join("libkvtide.a")).args(LIBRARIES);
    run(cc.arg("-o").arg(to))
}

/// Return the engine's path in the machine.
pub fn engine() -> String {
    format!("{CHECKOUT}/target/{ENGINE}")
}

/// Check the machine after the commands.
pub fn check(terminal: &mut Terminal) -> Result<Value, Error> {
    let mut machine = Checks::new(terminal, LOG);
    let program = engine();
    let engine = |user: &str, does: &str| format!("runuser -u {user} -- {program} /run/kvtide/kvtide.sock {does}");
    let found = ("found 64 of 64, 64 equal", 0);
    machine.expect("the unit is active", "systemctl is-active kvtided", ("active", 0))?;
    machine.expect("an engine of the group stores", &engine("infer", "store"), ("stored 64", 0))?;
    machine.expect("it finds what it stored", &engine("infer", "find"), found)?;
    machine.expect("a new user", "useradd --system outsider", ("", 0))?;
    machine.expect("a user outside of the group is refused", &engine("outsider", "find"), ("Permission denied", 1))?;
    machine.expect("it joins the group", "usermod -a -G kvtide outsider", ("", 0))?;
    machine.expect("a user of no domain is refused", &engine("outsider", "find"), ("uid", 1))?;
    machine.expect("restart", "systemctl restart kvtided", ("", 0))?;
    machine.expect("found after a restart", &engine("infer", "find"), found)?;
    machine.restarted("kill -9", "systemctl kill --signal=KILL --kill-whom=main kvtided")?;
    machine.expect("found after kill -9", &engine("infer", "find"), found)?;
    machine.restarted("watchdog", "systemctl kill --signal=STOP --kill-whom=main kvtided")?;
    machine.expect("found after the watchdog's restart", &engine("infer", "find"), found)?;
    // Other checks find out what the sandbox forbids; these show that it is there.
    let sandbox = "cat /proc/$(systemctl show --property=MainPID --value kvtided)/status | tr -d '\\t' | \
        grep -cE '^(NoNewPrivs:1|Seccomp:2|CapBnd:0000000000000000|CapEff:0000000000000000)$'";
    machine.expect("the daemon is in its sandbox", sandbox, ("4", 0))?;
    let denied = "! systemd-run --quiet --pipe --wait --property=IPAddressDeny=any timeout 5 kvtide status --http 127.0.0.1:9417 \
        && systemd-run --quiet --pipe --wait --property=IPAddressDeny=any --property=IPAddressAllow=localhost \
        kvtide status --http 127.0.0.1:9417 && ! systemd-run --quiet --pipe --wait --property=DevicePolicy=strict head -c1 /dev/zero";
    machine.expect("systemd enforces addresses and devices here", denied, ("serving", 0))?;
    let lower = "sed -i 's/^uids/sessions_max = 7\\nuids/' /etc/kvtide/kvtided.toml && systemctl reload kvtided &&";
    machine.logged(
        "a changed file is in effect after a reload",
        lower,
        "sessions_max changed from 256 to 7: in effect now",
    )?;
    let typo = "sed -i '1i [log_requests_of_a_typo]' /etc/kvtide/kvtided.toml && systemctl reload kvtided &&";
    machine.logged("a wrong file at a reload changes nothing", typo, "unknown key `log_requests_of_a_typo`")?;
    machine.expect("found after it", &engine("infer", "find"), found)?;
    Ok(json!({"passed": machine.passed}))
}

/// Commands in a machine, and which of them did what they should.
pub struct Checks<'a> {
    terminal: &'a mut Terminal,
    /// Command that prints what the daemon logged last.
    log: &'static str,
    pub passed: Vec<&'static str>,
}

impl Checks<'_> {
    pub fn new<'a>(terminal: &'a mut Terminal, log: &'static str) -> Checks<'a> {
        Checks { terminal, log, passed: Vec::new() }
    }

    /// Run a command that must succeed, and return its output.
    pub fn output(&mut self, command: &str) -> Result<String, Error> {
        let ran = self.terminal.run(command, LIMIT)?;
        match ran.status {
            0 => Ok(ran.output.trim().to_owned()),
            status => Err(Error::Check(format!("`{command}` ended with status {status}:\n{}", ran.output))),
        }
    }

    /// Run a command. Its output must contain a text, and its status be this one.
    pub fn expect(&mut self, what: &'static str, command: &str, (part, status): (&str, i32)) -> Result<(), Error> {
        eprintln!("quickstart: {what}: {command}");
        let ran = self.terminal.run(command, LIMIT)?;
        if ran.status != status || !ran.output.contains(part) {
            let log = self.terminal.run(self.log, LIMIT)?.output;
            return Err(Error::Check(format!(
                "{what}: `{command}` ended with status {}, expected {status} and {part:?}:\n{}\n{log}",
                ran.status, ran.output
            )));
        }
        self.passed.push(what);
        Ok(())
    }

    /// Run a command after which the daemon logs a line, and check that the unit is active.
    fn logged(&mut self, what: &'static str, command: &str, line: &str) -> Result<(), Error> {
        let look = format!("journalctl --unit kvtided --boot --no-pager | grep -qF '{line}'");
        let wait = format!(
            "{command} for i in $(seq 100); do {look} && break; sleep 0.1; done; {look} && systemctl is-active kvtided"
        );
        self.expect(what, &wait, ("active", 0))
    }

    /// Run a command after which systemd restarts the daemon, and wait until it serves again.
    fn restarted(&mut self, what: &'static str, command: &str) -> Result<(), Error> {
        let restarts = "systemctl show --property=NRestarts --value kvtided";
        let wait = format!(
            "before=$({restarts}); {command}; \
             for i in $(seq 900); do [ \"$({restarts})\" -gt \"$before\" ] && break; sleep 0.1; done; \
             [ \"$({restarts})\" -gt \"$before\" ] && kvtide status --wait 60 > /dev/null && systemctl is-active kvtided"
        );
        self.expect(what, &wait, ("active", 0))
    }
}
