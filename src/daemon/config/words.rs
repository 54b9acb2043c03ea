//! Errors of the TOML parser in the words of this project: keys, tables and lists instead of fields, maps and sequences.

use super::resolve::most_like;

/// Translate a message of the parser. One about the syntax of TOML stays as it is.
pub(super) fn own(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (name, known) = split(rest);
        return format!("unknown key `{name}`{} Known here: {}", near(name, known), listed(known));
    }
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let (name, known) = split(rest);
        return format!("unknown value \"{name}\"{} Expected {}", near(name, known), listed(known));
    }
    if let Some(name) = message.strip_prefix("duplicate field `") {
        return format!("the key `{name} is given twice");
    }
    match message {
        "duplicate key" => return "the key is given twice".into(),
        "wanted string or table" => return "expected a text in quotes".into(),
        "string values must be quoted, expected literal string" => {
            return "expected a value; texts are in quotes".into();
        }
        _ => {}
    }
    let wrong = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    match wrong.and_then(|wrong| wrong.split_once(", expected ")) {
        Some(("map", "a sequence")) => {
            "expected a list, found a table; a list of tables has two brackets, [[NAME]]".into()
        }
        Some((value, wanted)) => format!("expected {}, found {}", expected(wanted), found(value)),
        None => message.to_owned(),
    }
}

/// Split "NAME`, expected one of `a`, `b`" into the name and the known ones.
fn split(rest: &str) -> (&str, &str) {
    rest.split_once('`').unwrap_or((rest, ""))
}

/// Return the names in quotes of a text.
fn names(known: &str) -> impl Iterator<Item = &str> {
    known.split('`').skip(1).step_by(2)
}

fn near(name: &str, known: &str) -> String {
    most_like(name, names(known)).map_or(".".to_owned(), |near| format!("; did you mean `{near}`?"))
}

fn listed(known: &str) -> String {
    let all: Vec<String> = names(known).map(|name| format!("`{name}`")).collect();
    if all.is_empty() { "no key".to_owned() } else { all.join(", ") }
}

/// Return the type that serde expects.
fn expected(wanted: &str) -> &str {
    match wanted {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" => "a whole number, at least 0",
        "a boolean" => "true or false",
        "a string" | "string or table" => "a text in quotes",
        "path string" => "a path in quotes",
        "a sequence" => "a list",
        "a map" => "a table",
        structure if structure.starts_with("struct ") => "a table",
        choice if choice.starts_with("enum ") || choice.starts_with("variant of enum ") => "a text in quotes",
        other => other,
    }
}

/// Return the value that serde found.
fn found(value: &str) -> &str {
    match value {
        "map" => "a table",
        "sequence" => "a list",
        _ => {
            let quoted = value.split_once('`').and_then(|(_, rest)| rest.strip_suffix('`'));
            quoted.unwrap_or_else(|| value.strip_prefix("string ").unwrap_or(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::own;

    #[test]
    fn messages_have_the_words_of_the_file() {
        for (theirs, ours) in [
            (
                "unknown field `dirs`, expected one of `dir`, `log`",
                "unknown key `dirs`; did you mean `dir`? Known here: `dir`, `log`",
            ),
            ("unknown variant `x`, expected `on` or `off`", "unknown value \"x\". Expected `on`, `off`"),
            ("duplicate key", "the key is given twice"),
            ("wanted string or table", "expected a text in quotes"),
            ("duplicate field `sample`", "the key `sample` is given twice"),
            (
                "invalid type: map, expected a sequence",
                "expected a list, found a table; a list of tables has two brackets, [[NAME]]",
            ),
            ("invalid type: string \"50\", expected u64", "expected a whole number, at least 0, found \"50\""),
            ("invalid value: integer `-1`, expected u32", "expected a whole number from 0 to 4294967295, found -1"),
            ("invalid type: boolean `true`, expected path string", "expected a path in quotes, found true"),
            ("invalid type: integer `5`, expected struct RawDaemon", "expected a table, found 5"),
            ("unclosed array, expected `]`", "unclosed array, expected `]`"),
        ] {
            assert_eq!(own(theirs), ours);
        }
    }
}
