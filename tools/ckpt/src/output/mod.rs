//! What a verb prints: for people on a terminal, tab-separated in a pipe, one JSON object on request. Data goes to
//! stdout; progress, warnings and errors go to stderr.
//!
//! The JSON envelope is `{schema, tool, target, result, warnings, elapsed_ms}`; `schema` is `ckpt.<verb>/<major>` and
//! grows only by additions within a major.

pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod units;

use std::io::{IsTerminal, Write};

use dcp::{Error, Place, Result};
use serde::Serialize;

use crate::{cli::Global, exit::Code, verbs::Context};

/// The output mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// `human` on a terminal, `plain` elsewhere.
    Auto,
    /// Aligned, folded, coloured.
    Human,
    /// Tab-separated, untruncated.
    Plain,
    /// One JSON object.
    Json,
}

/// A result that can be shown.
pub(crate) trait Render: Serialize {
    /// Schema name and major: `ckpt.inspect/1`.
    fn schema(&self) -> &'static str;
    /// For people; `width` is the terminal's, `None` when lines may be as long as they like.
    fn human(&self, width: Option<usize>) -> String;
    /// For pipes.
    fn plain(&self) -> String;
    /// For `--quiet`: names or paths only.
    fn quiet(&self) -> String {
        String::new()
    }
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    schema: &'static str,
    tool: Tool,
    target: &'a str,
    result: &'a T,
    warnings: &'a [String],
    elapsed_ms: u64,
}

#[derive(Serialize)]
struct Tool {
    name: &'static str,
    version: &'static str,
}

/// Prints `result` in the mode that was asked for, and warnings.
pub(crate) fn show<T: Render>(
    context: &Context<'_>,
    target: &str,
    warnings: &[String],
    result: &T,
) -> Result<()> {
    let global = context.global;
    let text = match global.mode() {
        Mode::Json => {
            let tool = Tool { name: "ckpt", version: env!("CARGO_PKG_VERSION") };
            let elapsed_ms = u64::try_from(context.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let envelope = Envelope { schema: result.schema(), tool, target, result, warnings, elapsed_ms };
            serde_json::to_string_pretty(&envelope).map_err(|e| Error::internal(e.to_string()))? + "\n"
        }
        _ if global.quiet => result.quiet(),
        Mode::Plain => result.plain(),
        Mode::Auto | Mode::Human => result.human(global.width()),
    };
    print(&text)?;
    if global.mode() != Mode::Json {
        warnings
            .iter()
            .for_each(|warning| anstream::eprintln!("{}  {}", style::word("warn"), style::harmless(warning)));
    }
    Ok(())
}

/// Writes data to stdout. Whoever reads it may have seen enough: that changes nothing of the verdict.
///
/// # Errors
/// What the system says of stdout, but for a closed pipe.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.place("stdout"),
    }
}

/// Says what went wrong and what to do, on stderr.
pub(crate) fn failure(global: &Global, error: &Error, code: Code) {
    let hint = error.hint_text().or(crate::exit::advice(error.kind()));
    if global.mode() == Mode::Json {
        let record = serde_json::json!({
            "message_type": "exit_error", "code": code.number, "meaning": code.meaning,
            "message": error.to_string(), "causes": causes(error), "hint": hint,
        });
        anstream::eprintln!("{record}");
        return;
    }
    anstream::eprintln!("{}  {}", style::word("error"), style::harmless(&error.to_string()));
    for cause in causes(error) {
        anstream::eprintln!("{}  {}", style::word("cause"), style::harmless(&cause));
    }
    if let Some(hint) = hint {
        anstream::eprintln!("{}   {}", style::word("hint"), style::harmless(hint));
    }
}

/// What lies behind a failure and is not in its message already.
fn causes(error: &Error) -> Vec<String> {
    let (mut said, mut causes) = (error.to_string(), Vec::new());
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if !said.contains(&text) {
            said.push_str(&text);
            causes.push(text);
        }
        next = cause.source();
    }
    causes
}

/// Width of the terminal that stdout is, if it is one.
pub(crate) fn terminal_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).or_else(|| {
        let (_, columns) = console::Term::stdout().size_checked()?;
        Some(usize::from(columns))
    })
}
