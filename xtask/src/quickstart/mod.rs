//! Runs the commands of the documents as a new user would: literally, in their order, in one terminal.

mod document;

use crate::e2e;
use crate::machine::terminal::{Ran, Terminal};
use crate::machine::{Machine, deploy};
use crate::package;
use crate::run::{Error, root, run, target};
use document::{Command, Document, Mark};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::{Duration, Instant};

/// Limits of a command: one that installs or builds, and any other.
const INSTALL: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(1800);
/// What the documents' commands create outside of the checkout.
const CREATED: [&str; 10] = [
    "/tmp/kvtide",
    "/tmp/kvtide-a",
    "/tmp/kvtide-b",
    "/tmp/kvtide-two",
    "/var/tmp/kvtide",
    "/tmp/kvtided.log",
    "/tmp/relay-a.log",
    "/tmp/relay-b.log",
    "/tmp/valkey.log",
    "/tmp/vllm.log",
];

/// A document, or a few, and what has to be true after its commands.
struct Case {
    name: &'static str,
    documents: &'static [Document],
    /// The commands run in a machine of their own.
    machine: bool,
    check: fn(&[Done], &mut Terminal) -> Result<Value, Error>,
}

const CASES: [Case; 5] = [
    Case {
        name: "vllm",
        documents: &[Document { path: "docs/quickstart/vllm.md", section: None }],
        machine: false,
        check: a_hit_after_the_restart,
    },
    Case {
        name: "two-machines",
        documents: &[Document { path: "docs/quickstart/two-machines.md", section: None }],
        machine: false,
        check: a_hit_after_the_restart,
    },
    Case {
        name: "readme",
        documents: &[Document { path: "README.md", section: None }],
        machine: false,
        check: nothing_more,
    },
    Case {
        name: "deploy",
        documents: &[
            Document { path: "docs/operations.md", section: Some("Install") },
            Document { path: "docs/operations.md", section: Some("Run under systemd") },
        ],
        machine: true,
        check: |_, terminal| deploy::check(terminal),
    },
    Case {
        name: "sglang",
        documents: &[Document { path: "docs/quickstart/sglang.md", section: None }],
        machine: false,
        check: nothing_more,
    },
];

/// A command that was run.
struct Done {
    command: Command,
    ran: Ran,
    seconds: f64,
}

/// Options of the command.
struct Options<'a> {
    json: bool,
    /// Use this checkout's build and the environment of the end-to-end cases: leave out what installs.
    warm: bool,
    case: Option<&'a str>,
}

impl Options<'_> {
    fn parse<'a>(words: &[&'a str]) -> Result<Options<'a>, Error> {
        let mut options = Options { json: false, warm: false, case: None };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--json" => options.json = true,
                "--warm" => options.warm = true,
                "--case" => options.case = words.next().copied(),
                _ => {
                    return Err(Error::Usage(format!(
                        "e2e quickstart takes --json, --warm and --case NAME, not {word:?}"
                    )));
                }
            }
        }
        let names = CASES.map(|case| case.name);
        match options.case {
            Some(case) if !names.contains(&case) => {
                Err(Error::Usage(format!("no case {case:?}; there are {}", names.join(", "))))
            }
            _ => Ok(options),
        }
    }
}

/// Run the cases, print a line for each, and fail if one failed.
pub fn check(words: &[&str]) -> Result<(), Error> {
    let options = Options::parse(words)?;
    let (mut results, mut failed) = (Vec::new(), 0);
    let checkout = Checkout::make(&options)?;
    for case in CASES.iter().filter(|case| options.case.is_none_or(|name| name == case.name)) {
        let began = Instant::now();
        let mut done = Vec::new();
        let checked = walk(case, &options, &checkout, &mut done);
        failed += u32::from(checked.is_err());
        let skipped: Vec<Value> =
            skipped(case, &options)?.into_iter().map(|(text, why)| json!({"command": text, "why": why})).collect();
        let commands: Vec<Value> = done
            .iter()
            .map(|Done { command, ran, seconds }| {
                json!({"command": command.text, "status": ran.status, "seconds": (seconds * 10.0).round() / 10.0})
            })
            .collect();
        let mut line = json!({"name": case.name, "ok": checked.is_ok(), "commands": commands, "skipped": skipped,
            "seconds": began.elapsed().as_secs()});
        match checked {
            Ok(found) => line["found"] = found,
            Err(error) => line["why"] = error.to_string().into(),
        }
        if !options.json {
            println!("{line}");
        }
        results.push(line);
    }
    if options.json {
        println!("{}", json!({"cases": results}));
    }
    eprintln!("{} passed, {failed} failed", results.len() as u32 - failed);
    match failed {
        0 => Ok(()),
        _ => Err(Error::Check(format!("{failed} of {} documents failed", results.len()))),
    }
}

fn skipped(case: &Case, options: &Options<'_>) -> Result<Vec<(String, String)>, Error> {
    let mut all = Vec::new();
    for document in case.documents {
        all.extend(document.commands()?.into_iter().filter_map(|Command { text, mark, .. }| match mark {
            Mark::Skip(why) => Some((text, why)),
            Mark::Install if options.warm => Some((text, "--warm: it is installed already".to_owned())),
            Mark::Install | Mark::Run => None,
        }));
    }
    Ok(all)
}

/// Run the commands of a case and check what they did. `done` gets the commands that were run.
fn walk(case: &Case, options: &Options<'_>, checkout: &Checkout, done: &mut Vec<Done>) -> Result<Value, Error> {
    let path = checkout.path();
    // The shell is dropped first: it ends what the commands started.
    let (_machine, _place, mut terminal);
    if case.machine {
        in_target()?;
        package::only(&package::folder(), ".deb")?;
        deploy::build()?;
        let machine = Machine::boot()?;
        let mut bash = machine.command("bash");
        bash.args(["--noprofile", "--norc"]);
        (_machine, _place, terminal) = (Some(machine), None, Terminal::start(bash)?);
    } else {
        let place = Place::make(checkout, &path)?;
        let bash = place.bash()?;
        (_machine, _place, terminal) = (None, Some(place), Terminal::start(bash)?);
    }
    for document in case.documents {
        for command in document.commands()? {
            let limit = match command.mark {
                Mark::Skip(_) => continue,
                Mark::Install if options.warm => continue,
                Mark::Install => INSTALL,
                Mark::Run => LIMIT,
            };
            eprintln!("quickstart: {}:{}: {}", document.path, command.line, command.text);
            let began = Instant::now();
            let ran = terminal.run(&command.text, limit).map_err(|e| document.wrong(command.line, &e.to_string()))?;
            let (line, status) = (command.line, ran.status);
            let told =
                format!("`{}` ended with status {status}. It printed:\n{}\n{}", command.text, ran.output, logs());
            done.push(Done { command, ran, seconds: began.elapsed().as_secs_f64() });
            if status != 0 {
                return Err(document.wrong(line, &told));
            }
        }
    }
    (case.check)(done, &mut terminal).map_err(|error| Error::Check(format!("{error}\n{}", logs())))
}

/// Check that the build is where the documents say that it is.
fn in_target() -> Result<(), Error> {
    match target() == root().join("target") {
        true => Ok(()),
        false => Err(Error::Usage("this needs the build in target/: unset CARGO_TARGET_DIR".to_owned())),
    }
}

/// Return the ends of the logs that the commands wrote.
fn logs() -> String {
    let mut text = String::new();
    for path in CREATED.iter().filter(|path| path.ends_with(".log")) {
        if let Ok(log) = fs::read(path) {
            let log = String::from_utf8_lossy(&log[log.len().saturating_sub(6000)..]).into_owned();
            text.push_str(&format!("--- end of {path}\n{log}\n"));
        }
    }
    text
}

/// Where the commands run. What they leave behind is removed when it is dropped.
struct Place<'a> {
    checkout: &'a Path,
    /// A folder in front of `PATH`.
    programs: Option<PathBuf>,
    /// Caches of package managers; `None`: the user's own.
    caches: Option<PathBuf>,
}

/// The checkout in which commands run: this one, or a copy that has no build, removed at the end.
enum Checkout {
    Here,
    Copy(PathBuf),
}

impl Checkout {
    fn make(options: &Options<'_>) -> Result<Checkout, Error> {
        if options.warm {
            return Ok(Checkout::Here);
        }
        let copy = Checkout::Copy(target().join("quickstart"));
        copy.remove();
        let checkout = copy.path();
        fs::create_dir_all(&checkout).map_err(|e| Error::Start(format!("create {}", checkout.display()), e))?;
        let files = "git ls-files -z --cached --others --exclude-standard --deduplicate \
            | tar --create --null --ignore-failed-read --files-from - | tar --extract --directory \"$1\"";
        let mut bash = Process::new("bash");
        run(bash.args(["-o", "pipefail", "-c", files, "bash"]).arg(&checkout).current_dir(root()))?;
        Ok(copy)
    }

    fn path(&self) -> PathBuf {
        match self {
            Checkout::Here => root().to_owned(),
            Checkout::Copy(folder) => folder.join("checkout"),
        }
    }

    fn remove(&self) {
        if let Checkout::Copy(folder) = self {
            // It is not there before the first run.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Place<'_> {
    fn make<'a>(checkout: &'a Checkout, path: &'a Path) -> Result<Place<'a>, Error> {
        if let Some(there) = CREATED.iter().find(|path| Path::new(path).is_dir()) {
            return Err(Error::Check(format!(
                "{there} exists, and the commands of the documents use it: remove it first"
            )));
        }
        match checkout {
            Checkout::Here => {
                in_target()?;
                let environment = e2e::packaged()?;
                let programs = environment.program().parent().map(Path::to_path_buf);
                Ok(Place { checkout: path, programs, caches: None })
            }
            Checkout::Copy(folder) => Ok(Place { checkout: path, programs: None, caches: Some(folder.join("cache")) }),
        }
    }

    /// Return the shell of a new user: nothing of this process's own environment for cargo and Python is in it.
    fn bash(&self) -> Result<Process, Error> {
        let mut bash = Process::new("bash");
        bash.args(["--noprofile", "--norc"]).current_dir(self.checkout);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let of_cargo = name.starts_with("CARGO") && name != "CARGO_HOME" && name != "CARGO_INCREMENTAL";
            if of_cargo || name.starts_with("KVTIDE") || name.starts_with("PYTHON") || name == "VIRTUAL_ENV" {
                bash.env_remove(&*name);
            }
        }
        bash.env("PYTHONNOUSERSITE", "1");
        if let Some(caches) = &self.caches {
            bash.env("XDG_CACHE_HOME", caches);
        }
        if let Some(programs) = &self.programs {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = [programs.clone()].into_iter().chain(std::env::split_paths(&path));
            let all = std::env::join_paths(all).map_err(|e| Error::Check(format!("PATH: {e}")))?;
            bash.env("PATH", all);
        }
        Ok(bash)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        for path in CREATED.map(Path::new) {
            // Most are not there.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

fn nothing_more(_: &[Done], _: &mut Terminal) -> Result<Value, Error> {
    Ok(Value::Null)
}

/// Check the vLLM document: the same question has the same answer before and after the restart of vLLM, and all its whole blocks were
/// hit then, as vLLM's metrics and `kvtide status` show.
fn a_hit_after_the_restart(done: &[Done], _: &mut Terminal) -> Result<Value, Error> {
    let outputs = |part: &'static str| {
        done.iter().filter(move |done| done.command.text.contains(part)).map(|done| &done.ran.output)
    };
    let wrong = |what: String| Err(Error::Check(what));
    let mut answers = Vec::new();
    for output in outputs("/v1/completions") {
        let answer: Value = serde_json::from_str(output.trim())
            .map_err(|e| Error::Check(format!("not an answer of vLLM ({e}): {output}")))?;
        let text = answer["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
        answers.push((text, answer["usage"]["prompt_tokens"].as_u64().unwrap_or_default()));
    }
    let [(before, tokens), (after, again)] = &answers[..] else {
        return wrong(format!("{} questions were asked, not 2", answers.len()));
    };
    if before.is_empty() || before != after || tokens != again {
        return wrong(format!("the answers differ: {before:?} and {after:?}"));
    }
    let Some(metrics) = outputs("/metrics").next_back() else { return wrong("no metrics were shown".to_owned()) };
    let metric = |name: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let hits = metric("vllm:external_prefix_cache_hits_total") as u64;
    let by_tier = metric("vllm:kvtide_hit_tokens_host_total") + metric("vllm:kvtide_hit_tokens_nvme_total");
    let block = metrics.split("block_size=\"").nth(1).and_then(|rest| rest.split('"').next()?.parse::<u64>().ok());
    let Some(block) = block else { return wrong(format!("the metrics do not show the size of a block:\n{metrics}")) };
    // The last token is always computed.
    let whole = (tokens - 1) / block;
    if whole == 0 || hits != whole * block || by_tier as u64 != hits {
        return wrong(format!(
            "{hits} tokens were hit ({by_tier} by kvtide's count), not {whole} blocks of {block}:\n{metrics}"
        ));
    }
    // A scheduler and a rank.
    if metric("vllm:kvtide_attached{") != 2.0 {
        return wrong(format!("the metrics do not show that vLLM is attached:\n{metrics}"));
    }
    let Some(status) = outputs("kvtide status").next_back() else { return wrong("no status was shown".to_owned()) };
    if !status.contains(&format!("  loaded   {hits} tokens: ")) {
        return wrong(format!("the status does not show {hits} loaded tokens:\n{status}"));
    }
    let to_the_hit = done.iter().rposition(|done| done.command.text.contains("/v1/completions")).map_or(0, |at| at + 1);
    Ok(json!({"prompt_tokens": tokens, "block_tokens": block, "hit_tokens": hits, "commands_to_the_hit": to_the_hit}))
}
