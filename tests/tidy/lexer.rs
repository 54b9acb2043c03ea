//! Blank comments, strings and character literals out of Rust source, keeping lines and columns, so that a word search finds only
//! code.

/// Return the source with everything except code replaced by spaces.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let end = skip(bytes, i);
        if end > i {
            out.extend(bytes[i..end].iter().map(|&b| if b == b'\n' { b'\n' } else { b' ' }));
            i = end;
        } else {
            out.push(bytes[i]);
            i += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Return the end of the comment or literal that starts at `i`; `i` itself if none starts there.
fn skip(b: &[u8], i: usize) -> usize {
    let at = |k: usize| b.get(k).copied().unwrap_or(0);
    match (at(i), at(i + 1)) {
        (b'/', b'/') => (i..b.len()).find(|&k| b[k] == b'\n').unwrap_or(b.len()),
        (b'/', b'*') => block_comment(b, i),
        (b'"', _) => string(b, i + 1),
        (b'r' | b'b' | b'c', _) if i == 0 || !is_word(b[i - 1]) => raw_string(b, i),
        (b'\'', _) => char_literal(b, i),
        _ => i,
    }
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

fn block_comment(b: &[u8], start: usize) -> usize {
    let (mut i, mut depth) = (start + 2, 1);
    while i < b.len() && depth > 0 {
        match (b[i], b.get(i + 1)) {
            (b'/', Some(b'*')) => (i, depth) = (i + 2, depth + 1),
            (b'*', Some(b'/')) => (i, depth) = (i + 2, depth - 1),
            _ => i += 1,
        }
    }
    i.min(b.len())
}

fn string(b: &[u8], mut i: usize) -> usize {
    while i < b.len() && b[i] != b'"' {
        i += if b[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(b.len())
}

/// Return the end of `r"…"`, `r#"…"#`, `br"…"`, `b"…"` or `c"…"`; other text after these prefixes is code.
fn raw_string(b: &[u8], start: usize) -> usize {
    let mut i = start;
    while i < b.len() && matches!(b[i], b'b' | b'c' | b'r') && i - start < 2 {
        i += 1;
    }
    let raw = b[start..i].contains(&b'r');
    let quote = (i..b.len()).find(|&k| b[k] != b'#').unwrap_or(b.len());
    let hashes = quote - i;
    if b.get(quote) != Some(&b'"') || (hashes > 0 && !raw) {
        return start;
    }
    if !raw {
        return string(b, quote + 1);
    }
    let mut close = vec![b'"'];
    close.extend(std::iter::repeat_n(b'#', hashes));
    (quote + 1..b.len()).find(|&k| b[k..].starts_with(&close)).map_or(b.len(), |k| k + close.len())
}

/// Return the end of a character literal; a lifetime is not one.
fn char_literal(b: &[u8], start: usize) -> usize {
    if b.get(start + 1) == Some(&b'\\') {
        return (start + 3..b.len()).find(|&k| b[k] == b'\'').map_or(b.len(), |k| k + 1);
    }
    let closes = (start + 2..b.len().min(start + 6)).find(|&k| b[k] == b'\'');
    match closes {
        Some(k) if k == start + 2 || b[start + 1] >= 0x80 => k + 1,
        _ => start,
    }
}

#[test]
fn blanks_what_is_not_code() {
    let source =
        "let a = \"un\\\"safe\"; // unsafe\nlet b = r#\"unsafe\"#; /* unsafe /* x */ */ let c: &'static str = x; 'u'";
    let code = code_only(source);
    assert!(!code.contains("unsafe"), "{code}");
    assert!(code.contains("let c: &'static str = x;"), "{code}");
    assert_eq!(code.lines().count(), source.lines().count());
}
