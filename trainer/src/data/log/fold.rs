//! Reading the log, and the proof that every sample was consumed exactly once.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use super::Record;
use crate::{Error, ErrorKind, data::Sample};

/// What a log can prove, or fail to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file that can't be read.
    #[error("cannot read the log of consumed samples")]
    Read(#[source] io::Error),
    /// A line that is no record, and no line that a crash cut.
    #[error("line {line} is no record of consumed samples: {message}")]
    Line {
        /// From 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// Samples that no step consumed.
    #[error("line {line}: samples {from}..{to} were consumed by no step (step {step} begins at sample {to})")]
    Gap {
        /// From 1.
        line: usize,
        /// First that is missing.
        from: u64,
        /// After the last.
        to: u64,
        /// The step that begins after them.
        step: u64,
    },
    /// Samples that two steps consumed.
    #[error("line {line}: samples {from}..{to} were consumed twice (step {step} begins at sample {from})")]
    Repeat {
        /// From 1.
        line: usize,
        /// First that is repeated.
        from: u64,
        /// After the last.
        to: u64,
        /// The step that repeats them.
        step: u64,
    },
    /// Steps that do not follow each other.
    #[error("line {line}: step {found} where step {expected} should be")]
    Step {
        /// From 1.
        line: usize,
        /// The step in the log.
        found: u64,
        /// The step that follows.
        expected: u64,
    },
    /// The same sample twice in one pass over the data.
    #[error("line {line}: sample {} of epoch {} was consumed twice", sample.index, sample.epoch)]
    Twice {
        /// From 1.
        line: usize,
        /// Which.
        sample: Sample,
    },
    /// A record of an incarnation that is over, or has not begun.
    #[error("line {line}: a record of incarnation {found} among those of {expected}")]
    Incarnation {
        /// From 1.
        line: usize,
        /// In the record.
        found: u64,
        /// The one that writes.
        expected: u64,
    },
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        let kind = match &error {
            LogError::Read(source) if source.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
            LogError::Read(_) => ErrorKind::Io,
            _ => ErrorKind::Corrupt,
        };
        let message = match &error {
            LogError::Read(source) => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        Self::new(kind, message).caused_by(error)
    }
}

/// The effective sequence of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Folded {
    /// Steps that count, as (step, samples), in order.
    pub steps: Vec<(u64, Vec<Sample>)>,
    /// Samples consumed.
    pub cursor: u64,
    /// Incarnations that wrote.
    pub incarnations: u64,
    /// Steps that were done and then done again, since their effect was lost.
    pub replayed: u64,
    /// Lines that a crash cut.
    pub cut: u64,
}

/// Records with their lines, and how many lines a crash cut. A cut line is one that stands last, or before a `start`.
///
/// # Errors
/// Other lines that are no records.
pub fn read(path: &Path) -> Result<(Vec<(usize, Record)>, u64), LogError> {
    parse(BufReader::new(File::open(path).map_err(LogError::Read)?))
}

fn parse(lines: impl BufRead) -> Result<(Vec<(usize, Record)>, u64), LogError> {
    let (mut records, mut cut) = (Vec::new(), 0);
    let mut suspect: Option<LogError> = None;
    for (index, line) in lines.split(b'\n').enumerate() {
        let line = line.map_err(LogError::Read)?;
        if line.is_empty() {
            continue;
        }
        match (serde_json::from_slice::<Record>(&line), suspect.take()) {
            (Ok(record), None) => records.push((index + 1, record)),
            (Ok(record @ Record::Start { .. }), Some(_)) => {
                cut += 1;
                records.push((index + 1, record));
            }
            (_, Some(error)) => return Err(error),
            (Err(error), None) => {
                suspect = Some(LogError::Line { line: index + 1, message: error.to_string() });
            }
        }
    }
    Ok((records, cut + u64::from(suspect.is_some())))
}

/// A step that counts, with the cursor before it.
type Counted = (u64, u64, Vec<Sample>);

/// The effective sequence of the log, proven to be without gap and without repeat.
///
/// # Errors
/// The first line that breaks the proof.
pub fn fold(path: &Path) -> Result<Folded, LogError> {
    let (records, cut) = read(path)?;
    let folded = fold_records(&records)?;
    Ok(Folded { cut, ..folded })
}

fn fold_records(records: &[(usize, Record)]) -> Result<Folded, LogError> {
    let mut counted: Vec<Counted> = Vec::new();
    let (mut incarnation, mut incarnations, mut replayed) = (0, 0, 0);
    for (line, record) in records {
        match record {
            Record::Start { incarnation: new, step, cursor } => {
                let before = counted.len();
                counted.retain(|(_, at, _)| at < cursor);
                replayed += (before - counted.len()) as u64;
                follows(*line, &counted, step + 1, *cursor)?;
                if incarnations > 0 && *new <= incarnation {
                    return Err(LogError::Incarnation {
                        line: *line,
                        found: *new,
                        expected: incarnation + 1,
                    });
                }
                (incarnation, incarnations) = (*new, incarnations + 1);
            }
            Record::Step { incarnation: by, step, cursor, samples } => {
                if *by != incarnation || incarnations == 0 {
                    return Err(LogError::Incarnation { line: *line, found: *by, expected: incarnation });
                }
                follows(*line, &counted, *step, *cursor)?;
                counted.push((*step, *cursor, samples.clone()));
            }
        }
    }
    once(&counted, records)?;
    let cursor = end(&counted).1;
    let steps = counted.into_iter().map(|(step, _, samples)| (step, samples)).collect();
    Ok(Folded { steps, cursor, incarnations, replayed, cut: 0 })
}

/// The last step that counts and the samples consumed by then.
fn end(counted: &[Counted]) -> (u64, u64) {
    counted.last().map_or((0, 0), |(step, cursor, samples)| (*step, cursor + samples.len() as u64))
}

/// What comes next begins where the last step that counts ended.
fn follows(line: usize, counted: &[Counted], step: u64, cursor: u64) -> Result<(), LogError> {
    let (last, consumed) = end(counted);
    if cursor > consumed {
        return Err(LogError::Gap { line, from: consumed, to: cursor, step });
    }
    if cursor < consumed {
        return Err(LogError::Repeat { line, from: cursor, to: consumed, step });
    }
    if step != last + 1 {
        return Err(LogError::Step { line, found: step, expected: last + 1 });
    }
    Ok(())
}

/// No sample comes twice within an epoch.
fn once(counted: &[Counted], records: &[(usize, Record)]) -> Result<(), LogError> {
    let mut seen = BTreeSet::new();
    for (step, _, samples) in counted {
        if let Some(sample) = samples.iter().find(|sample| !seen.insert(**sample)) {
            let of = |record: &Record| matches!(record, Record::Step { step: n, .. } if n == step);
            let line = records.iter().rev().find(|(_, record)| of(record)).map_or(0, |(line, _)| *line);
            return Err(LogError::Twice { line, sample: *sample });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
