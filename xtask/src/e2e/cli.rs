//! The tool against real daemons: the examples of every help, operators' commands, output that cannot be written.

use crate::run::{Error, cargo, output};
use serde_json::json;

/// Modules of the daemon's tests that run the tool.
const MODULES: [&str; 3] = ["examples::", "operate::", "tool::"];

/// Run the cases. With `json`, print one object: `cases` with `name` and `ok`.
pub fn check(json: bool) -> Result<(), Error> {
    let mut test = cargo();
    test.args(["test", "--locked", "-p", "kvtide", "--test", "daemon", "--"]).args(MODULES);
    let result = output(&mut test);
    let text = match &result {
        Ok(text) => text.clone(),
        Err(error) => error.to_string(),
    };
    let cases: Vec<(&str, bool)> = text.lines().filter_map(case).collect();
    if json {
        let cases: Vec<_> = cases.iter().map(|(name, ok)| json!({ "name": name, "ok": ok })).collect();
        println!("{}", json!({ "version": 1, "cases": cases }));
    } else {
        print!("{text}");
    }
    match (result, cases.is_empty()) {
        (Ok(_), true) => Err(Error::Check("no case was run".to_owned())),
        (result, _) => result.map(|_| ()),
    }
}

/// Read a line of libtest: `test NAME ... ok`.
fn case(line: &str) -> Option<(&str, bool)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name, result == "ok"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_the_runners_lines() {
        assert_eq!(case("test operate::a_block_is_found ... ok"), Some(("operate::a_block_is_found", true)));
        assert_eq!(case("test tool::x ... FAILED"), Some(("tool::x", false)));
        assert_eq!(case("test result: ok. 3 passed"), None);
    }
}
