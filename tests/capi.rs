//! The C ABI, used from C. Every program under `tests/c` is compiled with warnings denied against the shared and the static
//! library, and run against its own daemon: directly, under valgrind, and with the sanitizers of the C compiler.
//!
//! If its tool is missing, a test prints `skipped: NAME (TOOL not found)`; with `KVTIDE_NO_SKIP=1` it fails instead.

use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_relay::config::Config;
use kvtide_relay::relay::Relay;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Programs and the number of daemons each needs: none, one, or two, one of which is killed.
const PROGRAMS: [(&str, u32); 15] = [
    ("handles", 0),
    ("life", 1),
    ("errors", 1),
    ("async", 1),
    (FORKS, 1),
    ("threads", 1),
    ("example", 1),
    ("token", 1),
    ("contracts", 1),
    ("blocks", 1),
    ("cache", 1),
    ("blocks_async", 1),
    (RELAYED, 1),
    ("death", 2),
    (ON_DEVICE, 1),
];
/// Needs a CUDA driver: the one that `KVTIDE_LIBCUDA` names, which may be the stand-in (`cargo xtask gpu-sim`).
const ON_DEVICE: &str = "decode";
/// Asks a relay, which this test starts.
const RELAYED: &str = "relay";
/// Its child process holds memory of the parent's other threads, but not those threads. Valgrind reports that memory as lost, so
/// leaks are not counted. Invalid accesses count in both processes.
const FORKS: &str = "forked";
/// System libraries that the static library needs: `rustc --print native-static-libs`.
const STATIC_LIBS: [&str; 7] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];
/// Time limit of one program. Valgrind on a loaded machine needs most of it, the other runs need seconds.
const RUN_MAX: Duration = Duration::from_secs(400);
/// Time limit of one compilation.
const COMPILE_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Copy)]
enum Link {
    Shared,
    Static,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Return the path of a library that cargo built with this test; it is in the test's folder.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let path = test.parent().expect("it is in a folder").join(name);
    assert!(path.is_file(), "{} is missing: kvtide-capi builds it as cdylib and staticlib", path.display());
    path
}

/// Return a folder for the files that this test compiles.
fn folder(test: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("capi").join(test);
    fs::create_dir_all(&path).expect("a folder below the target folder");
    path
}

/// Return whether a tool is installed; print which test is skipped if not.
fn have(tool: &str, test: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return true;
    }
    assert!(std::env::var_os("KVTIDE_NO_SKIP").is_none_or(|v| v != "1"), "{test} needs {tool}, which was not found");
    println!("skipped: {test} ({tool} not found)");
    false
}

/// Wait for a child up to a time limit, then kill it.
fn wait(mut child: Child, bound: Duration, what: &str) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + bound;
    let pidfd =
        rustix::process::pidfd_open(rustix::process::Pid::from_child(&child), rustix::process::PidfdFlags::empty())
            .expect("a child that was not waited for has a pidfd");
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec::try_from(left).expect("minutes fit");
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) => {
                child.kill().expect("a child can be killed");
                child.wait().expect("a killed child ends");
                return Err(format!("still running after {bound:?}, so it was killed"));
            }
            Ok(_) => return Ok(child.wait().expect("it has ended")),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("{what}: poll on its pidfd: {error}"),
        }
    }
}

/// Run a command with a time limit.
///
/// # Errors
/// The command failed; the error contains its output.
fn run(command: &mut Command, bound: Duration, log: &Path) -> Result<(), String> {
    let what = format!("{command:?}");
    let output = File::create(log).expect("a log in the test's folder");
    let errors = output.try_clone().expect("a second descriptor");
    let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
    let child = child.unwrap_or_else(|error| panic!("{what}: {error}"));
    let how = match wait(child, bound, &what) {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => format!("ended with {status}"),
        Err(how) => how,
    };
    Err(format!("{what}\n{how}:\n{}", String::from_utf8_lossy(&fs::read(log).unwrap_or_default())))
}

fn must(outcome: Result<(), String>) {
    outcome.unwrap_or_else(|why| panic!("{why}"));
}

/// Compile one program and return its path.
fn compile(folder: &Path, program: &str, link: Link, flags: &[&str]) -> PathBuf {
    let out = folder.join(program);
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"]).args(flags);
    gcc.arg("-I").arg(root().join("ffi/include"));
    gcc.arg(root().join("tests/c").join(program).with_extension("c")).arg("-o").arg(&out);
    match link {
        Link::Shared => {
            let path = library("libkvtide.so");
            let dir = path.parent().expect("a library is in a folder");
            gcc.arg(&path).arg(format!("-Wl,-rpath,{}", dir.display())).args(["-lm", "-ldl"]);
        }
        Link::Static => {
            gcc.arg(library("libkvtide.a")).args(STATIC_LIBS);
        }
    }
    must(run(&mut gcc, COMPILE_MAX, &folder.join(format!("{program}.compile.log"))));
    out
}

/// Return a file with a tenant's token.
fn token(folder: &Path) -> PathBuf {
    let path = folder.join("tenant.token");
    let mut options = fs::OpenOptions::new();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(&path).expect("a file in the folder");
    file.write_all(b"a-tenants-token-of-32-bytes-and-more\n").expect("a file in the folder");
    path
}

/// Return a daemon that accepts this user and every client with the token.
fn daemon(token: &Path, relay_socket: &Path) -> PrivateDaemon {
    let uid = rustix::process::geteuid().as_raw();
    let config = format!(
        "[[domains]]\nname = \"own\"\nuids = [{uid}]\nrelay_uids = [{uid}]\nrelay_socket = {relay_socket:?}\n\
         [[domains]]\nname = \"tenant\"\ntokens = [{token:?}]\n"
    );
    let options = Options {
        config: Some(config),
        binary: Some(PathBuf::from(env!("CARGO_BIN_EXE_kvtide"))),
        host_bytes: Some(64 << 20),
        slab_bytes: Some(1 << 20),
        scan_frames: Some(4),
        ..Options::default()
    };
    PrivateDaemon::start(&options).unwrap_or_else(|error| panic!("no daemon: {error}"))
}

/// Start a relay of the daemon, with a directory as its store.
fn relay(folder: &Path, daemon: &PrivateDaemon, socket: &Path) -> Relay {
    let (store, key) = (folder.join("store"), folder.join("key"));
    fs::create_dir_all(&store).expect("a folder in the folder");
    fs::write(&key, "0123456789abcdef".repeat(4)).expect("a file in the folder");
    fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("a file of this user");
    let (uid, path) = (rustix::process::geteuid().as_raw(), Path::new("relay.toml"));
    let text = format!(
        "[daemon]\nsocket = {:?}\n[[domains]]\nname = \"own\"\nshared_key_file = {key:?}\n[store]\nurl = \"file://{}\"\n\
         [domains.adapters]\nsocket = {socket:?}\nuids = [{uid}]\n[http]\nlisten = \"127.0.0.1:0\"\n",
        daemon.socket(),
        store.display()
    );
    Config::parse(path, &text)
        .and_then(|config| Relay::start(config, path))
        .unwrap_or_else(|error| panic!("no relay: {error}"))
}

/// Compile and run all programs, each against its own daemons, under `wrapper` if it is not empty.
fn run_all(test: &str, link: Link, flags: &[&str], wrapper: &[&str]) {
    let folder = folder(test);
    let token = token(&folder);
    let mut failures = Vec::new();
    for (program, daemons) in PROGRAMS {
        let binary = compile(&folder, program, link, flags);
        if program == ON_DEVICE && std::env::var_os("KVTIDE_LIBCUDA").is_none() {
            println!("{test}: {program} not run: KVTIDE_LIBCUDA names no driver");
            continue;
        }
        if program == ON_DEVICE && !wrapper.is_empty() {
            println!("{test}: {program} not run: valgrind cannot follow the stand-in, which changes stacks");
            continue;
        }
        let relay_socket = folder.join("relay.sock");
        let daemons: Vec<PrivateDaemon> = (0..daemons).map(|_| daemon(&token, &relay_socket)).collect();
        let _relay = (program == RELAYED).then(|| relay(&folder, &daemons[0], &relay_socket));
        let mut command = match wrapper {
            [] => Command::new(&binary),
            [tool, arguments @ ..] => {
                let mut command = Command::new(tool);
                command.args(arguments);
                if program == FORKS {
                    command.arg("--leak-check=no");
                }
                command.arg(&binary);
                command
            }
        };
        if let [first, rest @ ..] = daemons.as_slice() {
            command.arg(first.socket()).arg(first.pid().to_string());
            command.args(rest.iter().map(PrivateDaemon::socket));
        }
        command.env("KVTIDE_TEST_TOKEN", &token);
        let log = folder.join(format!("{program}.log"));
        if let Err(why) = run(&mut command, RUN_MAX, &log) {
            let logs: Vec<String> =
                daemons.iter().map(|d| format!("its daemon {} says:\n{}", d.pid(), d.log())).collect();
            failures.push(format!("{why}\n{}", logs.join("\n")));
            continue;
        }
        println!("{test}: {program} ok");
    }
    assert!(
        failures.is_empty(),
        "{test}: {} of {} programs:\n{}",
        failures.len(),
        PROGRAMS.len(),
        failures.join("\n\n")
    );
}

#[test]
fn capi_cpp() {
    if !have("g++", "capi_cpp") {
        return;
    }
    let folder = folder("cpp");
    let out = folder.join("header");
    let path = library("libkvtide.so");
    let mut gpp = Command::new("g++");
    gpp.args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    gpp.arg("-I").arg(root().join("ffi/include")).arg(root().join("tests/c/header.cpp")).arg("-o").arg(&out);
    gpp.arg(&path).arg(format!("-Wl,-rpath,{}", path.parent().expect("in a folder").display()));
    must(run(&mut gpp, COMPILE_MAX, &folder.join("header.compile.log")));
    must(run(&mut Command::new(out), RUN_MAX, &folder.join("header.log")));
}

/// The shared library exports the C API and nothing else, so no symbol of kvtide can collide with an engine's.
#[test]
fn capi_exports() {
    if !have("nm", "capi_exports") {
        return;
    }
    let library = library("libkvtide.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().expect("nm runs");
    assert!(listed.status.success(), "nm {}: {}", library.display(), listed.status);
    let read = |name| fs::read_to_string(root().join("ffi/include").join(name)).expect("the header is there");
    let headers = ["kvtide.h", "kvtide_paged.h", "kvtide_cuda.h"].map(read).concat();
    let names: Vec<String> = String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        // A build of the whole workspace adds the C functions of the crate crc-fast, which a dependency of the relay turns on. The
        // gate checks that the library that is shipped has none.
        .filter(|name| !name.starts_with("crc_fast_"))
        .collect();
    for name in &names {
        assert!(
            headers.contains(&format!(" {name}(")) || headers.contains(&format!("*{name}(")),
            "libkvtide.so exports {name}, which no header declares"
        );
    }
    assert!(names.len() > 30, "only {} symbols: {names:?}", names.len());
}

#[test]
fn capi_shared() {
    if have("gcc", "capi_shared") {
        run_all("capi_shared", Link::Shared, &[], &[]);
    }
}

#[test]
fn capi_static() {
    if have("gcc", "capi_static") {
        run_all("capi_static", Link::Static, &[], &[]);
    }
}

#[test]
fn capi_valgrind() {
    if have("gcc", "capi_valgrind") && have("valgrind", "capi_valgrind") {
        let valgrind = [
            "valgrind",
            "--quiet",
            "--error-exitcode=99",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect",
            "--fair-sched=try", // a copy thread that spins must not starve the engine's
        ];
        run_all("capi_valgrind", Link::Shared, &[], &valgrind);
    }
}

#[test]
fn capi_sanitized() {
    if have("gcc", "capi_sanitized") && have_sanitizers() {
        let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
        run_all("capi_sanitized", Link::Static, &flags, &[]);
    }
}

/// Return whether the sanitizers' libraries are installed; a compiler may come without them.
fn have_sanitizers() -> bool {
    let folder = folder("sanitizers");
    let (source, out) = (folder.join("empty.c"), folder.join("empty"));
    fs::write(&source, "int main(void) { return 0; }\n").expect("a file in the test's folder");
    let mut gcc = Command::new("gcc");
    gcc.arg("-fsanitize=address,undefined").arg(&source).arg("-o").arg(&out).stderr(Stdio::null());
    if gcc.status().is_ok_and(|status| status.success()) {
        return true;
    }
    assert!(
        std::env::var_os("KVTIDE_NO_SKIP").is_none_or(|v| v != "1"),
        "capi_sanitized needs AddressSanitizer, which was not found"
    );
    println!("skipped: capi_sanitized (AddressSanitizer not found)");
    false
}

/// The block API is small: a whole engine needs one header and few lines.
#[test]
fn capi_block_engine_is_short() {
    let program = fs::read_to_string(root().join("tests/c/cache.c")).expect("the program is there");
    assert!(PROGRAMS.iter().any(|(name, _)| *name == "cache"), "the program is run");
    let lines = program.lines().count();
    assert!(lines < 150, "tests/c/cache.c has {lines} lines");
    let headers: Vec<&str> = program.lines().filter(|line| line.starts_with("#include \"")).collect();
    assert_eq!(headers, ["#include \"kvtide.h\""]);
    for call in ["lookup", "lease", "load", "settle", "end_lease", "store"] {
        assert!(program.contains(&format!("kvt_channel_{call}(")), "tests/c/cache.c does not call kvt_channel_{call}");
    }
}

/// The documentation of the C ABI shows the tested programs and every status code.
#[test]
fn capi_page() {
    let page = fs::read_to_string(root().join("docs/c-abi.md")).expect("docs/c-abi.md is there");
    for name in ["tests/c/example.c", "tests/c/cache.c"] {
        let program = fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(&format!("```c\n{program}```")), "docs/c-abi.md does not show {name} as it is");
    }
    let header = fs::read_to_string(root().join("ffi/include/kvtide.h")).expect("the header is there");
    let codes =
        header.split("enum kvt_status").nth(1).and_then(|rest| rest.split("};").next()).expect("the enumeration");
    let mut seen = 0;
    for (name, code) in codes.lines().filter_map(|line| line.trim().strip_suffix(',')?.split_once(" = ")) {
        assert!(page.contains(&format!("| {code} | `{name}` |")), "docs/c-abi.md lacks {name} ({code})");
        seen += 1;
    }
    assert_eq!(seen, kvtide_wire::status::Status::ALL.len());
}
