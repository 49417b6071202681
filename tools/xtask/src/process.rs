//! Running other programs: shown, and turned into one [`Error`] when they fail.

use std::process::{Command, Output, Stdio};

use crate::error::Error;

/// The command as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| quoted(&word.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs it with our own streams; a failure carries `advice`.
pub(crate) fn run(command: &mut Command, advice: &str) -> Result<(), Error> {
    let status = command.status().map_err(|source| Error::Start { command: shown(command), source })?;
    if status.success() { Ok(()) } else { Err(failed(command, &status.to_string(), advice)) }
}

/// Runs it and keeps what it prints, whatever its exit code.
pub(crate) fn output(command: &mut Command) -> Result<Output, Error> {
    command.stdin(Stdio::null()).output().map_err(|source| Error::Start { command: shown(command), source })
}

/// The error for a command that ended badly.
pub(crate) fn failed(command: &Command, status: &str, advice: &str) -> Error {
    let advice = if advice.is_empty() { String::new() } else { format!(": {advice}") };
    Error::Failed { command: shown(command), status: status.to_owned(), advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("ckpt");
        command.args(["inspect", "a b", "--to=4x2x8", "it's"]);
        assert_eq!(shown(&command), r"ckpt inspect 'a b' --to=4x2x8 'it'\''s'");
    }

    #[test]
    fn a_failing_command_is_an_error_with_its_advice() {
        let error = run(Command::new("sh").args(["-c", "exit 3"]), "look above").unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with(": look above"), "{error}");
    }
}
