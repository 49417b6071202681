//! As much of Rust's lexis as telling comments from code needs, and names taken apart into words.

/// The code with each comment as blanks; lines stay where they are.
pub(super) fn without_comments(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while !rest.is_empty() {
        let (length, is_comment) = token(rest);
        let (text, after) = rest.split_at(length);
        if is_comment {
            code.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(text);
        }
        rest = after;
    }
    code
}

/// How long the first token of `rest` is, in bytes and at least one character, and whether it is a comment.
fn token(rest: &str) -> (usize, bool) {
    if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), true)
    } else if rest.starts_with("/*") {
        (block_comment(rest), true)
    } else if let Some(text) = rest.strip_prefix('"') {
        (1 + quoted(text, '"'), false)
    } else if rest.starts_with('\'') {
        (character(rest), false)
    } else {
        (raw_text(rest).unwrap_or_else(|| word_or_sign(rest)), false)
    }
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Up to and with the closing `end`, given what follows the opening one.
fn quoted(rest: &str, end: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == end => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// `'x'` and `'\n'`; of a lifetime only the sign.
fn character(rest: &str) -> usize {
    let mut after = rest.char_indices().skip(1);
    match (after.next(), after.next()) {
        (Some((at, '\\')), _) => at + quoted(&rest[at..], '\''),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// `r"…"`, `r#"…"#`, with a prefix or without.
fn raw_text(rest: &str) -> Option<usize> {
    let opened = rest.strip_prefix(['b', 'c']).unwrap_or(rest).strip_prefix('r')?;
    let inner = opened.trim_start_matches('#');
    let end = format!("\"{}", "#".repeat(opened.len() - inner.len()));
    let body = inner.strip_prefix('"')?;
    let start = rest.len() - body.len();
    Some(body.find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

fn word_or_sign(rest: &str) -> usize {
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    if end > 0 { end } else { rest.chars().next().map_or(1, char::len_utf8) }
}

/// The words of a line in lower case: `tp_rank`, `TpRank`, `TPRank` and `TP_RANK` are each `tp` and `rank`.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut before = ' ';
    let mut letters = line.chars().peekable();
    while let Some(c) = letters.next() {
        let ends_capitals = before.is_uppercase() && letters.peek().is_some_and(|next| next.is_lowercase());
        let starts = !c.is_alphabetic() || (c.is_uppercase() && (before.is_lowercase() || ends_capitals));
        if starts && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphabetic() {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_where_their_words_begin() {
        assert_eq!(
            words("tp_rank0.ofStage TP_MESH TPRank A"),
            ["tp", "rank", "of", "stage", "tp", "mesh", "tp", "rank", "a"]
        );
    }

    #[test]
    fn comments_become_blanks_and_everything_else_stays() {
        let source = "a // b\n/* c\n*/ \"// d\" 'e' '\\'' r#\"\"/*\"# <'a> é /// f";
        let code = without_comments(source);
        assert_eq!(code.lines().count(), source.lines().count());
        assert_eq!(
            code.split_whitespace().collect::<Vec<_>>().join(" "),
            "a \"// d\" 'e' '\\'' r#\"\"/*\"# <'a> é"
        );
    }

    #[test]
    fn text_that_never_ends_is_no_endless_loop() {
        for source in ["\"a", "r#\"a", "'", "/* a", "'\\", "é"] {
            assert!(without_comments(source).chars().count() == source.chars().count(), "{source}");
        }
    }
}
