//! What libtorch and gloo say when they refuse, without what helps nobody who reads it here: paths of the machine that they
//! were built on, and advice that the caller's own message gives better. Pure.

/// Where gloo's advice begins.
const ADVICE: &[&str] = &["This is typically caused by", "Check the logs of", "GLHF"];
/// What names of source files end with, before the line.
const SOURCES: &[&str] = &[".cc:", ".cpp:", ".h:", ".hpp:"];

/// The first line of a refusal, without advice and places in the source.
pub(super) fn plain(text: &str) -> String {
    let mut line = text.lines().next().unwrap_or_default().to_owned();
    while let Some((begin, end)) = source(&line) {
        line.replace_range(begin..end, "");
    }
    if let Some(advice) = ADVICE.iter().filter_map(|advice| line.find(advice)).min() {
        line.truncate(advice);
    }
    let ends = |c: char| c.is_whitespace() || ".:;,-".contains(c);
    line.trim_start().trim_end_matches(ends).to_owned()
}

/// Where `[/path/of/a/source.cc:12] ` stands.
fn source(line: &str) -> Option<(usize, usize)> {
    let mut from = 0;
    while let Some(begin) = line.get(from..)?.find('[').map(|at| from + at) {
        let end = begin + line.get(begin..)?.find(']')? + 1;
        if SOURCES.iter().any(|name| line.get(begin..end).is_some_and(|text| text.contains(name))) {
            let blanks = line.get(end..)?.chars().take_while(|c| *c == ' ').count();
            return Some((begin, end + blanks));
        }
        from = begin + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_the_source_and_advice_are_left_out_and_the_rest_stays() {
        for (said, plainly) in [
            (
                "[/build/x/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:2355. \
                 This is typically caused by a remote worker crashing. Check the logs of the remote worker. GLHF! \u{1f3d6}\u{fe0f}\nat 0x12",
                "Connection closed by peer [127.0.0.1]:2355",
            ),
            ("Gloo failed: [a/b.h:1] [c/d.cpp:2] timed out after 5 ms.", "Gloo failed: timed out after 5 ms"),
            ("counts [1, 2] are not of [3]", "counts [1, 2] are not of [3]"),
            ("[never closed", "[never closed"),
            ("", ""),
        ] {
            assert_eq!(plain(said), plainly);
        }
    }
}
