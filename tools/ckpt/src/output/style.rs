//! Colour and escaping. Colour never carries meaning alone; `anstream` drops it where stdout is no terminal or the
//! user asked for none.

use owo_colors::OwoColorize;

/// Less important text.
pub(crate) fn faint(text: &str) -> String {
    text.dimmed().to_string()
}

/// The word a line begins with, by how bad it is.
pub(crate) fn word(word: &str) -> String {
    match word {
        "ok" | "identical" | "committed" => word.green().to_string(),
        "corrupt" | "error" | "missing" => word.red().bold().to_string(),
        "warn" | "warning" | "different" | "partial" => word.yellow().to_string(),
        other => other.bold().to_string(),
    }
}

/// Text from a file, made harmless to a terminal.
pub(crate) fn harmless(text: &str) -> String {
    if text.chars().any(|c| c.is_control() || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}'))
    {
        return text.chars().flat_map(escape).collect();
    }
    text.to_owned()
}

fn escape(c: char) -> Vec<char> {
    if c.is_control() || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}') {
        return c.escape_default().collect();
    }
    vec![c]
}

/// The text, or its beginning where it is longer than `most` characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}
