//! Traces that Perfetto and `chrome://tracing` show: a process per rank, with a line each for computing, communicating and
//! saving, a slice per action, an arrow per message.
//!
//! Invariants: a rank's file is a JSON array whose end may be missing, which both viewers read; [`merge`] makes one whole
//! array of all ranks' files, and refuses an arrow that has one end only, since then a rank's file is missing or another run's.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
};

use schedule::{Action, Step};
use serde_json::{Value, json};

use super::Span;
use crate::{Error, ErrorKind, Result};

/// Folder of traces, in that of the metrics.
pub const TRACES: &str = "trace";
/// Name of the file that [`merge`] makes.
pub const MERGED: &str = "trace.json";

const COMPUTE: u64 = 0;
const COMMUNICATE: u64 = 1;
const SAVE: u64 = 2;

/// The trace of one rank.
#[derive(Debug)]
pub struct Trace {
    file: File,
    path: PathBuf,
    rank: usize,
    /// What tells this rank's pipeline from those of other replicas: ranks of one pipeline have the same.
    pipeline: String,
}

impl Trace {
    /// Creates `folder/trace/rank_00000.json`. What was there is of another run.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn create(folder: &Path, rank: usize, pipeline: &str, name: &str) -> Result<Self> {
        let path = folder.join(TRACES).join(format!("rank_{rank:05}.json"));
        let open = || {
            fs::create_dir_all(folder.join(TRACES))?;
            OpenOptions::new().write(true).create(true).truncate(true).open(&path)
        };
        let file = open().map_err(|error| failed(&path, error))?;
        let mut trace = Self { file, path, rank, pipeline: pipeline.to_owned() };
        let mut names = vec![
            json!({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": format!("rank {rank}, {name}")}}),
        ];
        for (tid, name) in [(COMPUTE, "compute"), (COMMUNICATE, "communicate"), (SAVE, "save")] {
            names.push(
                json!({"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": name}}),
            );
        }
        trace.write("[\n", &names)?;
        Ok(trace)
    }

    /// Adds the actions of a step.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn step(&mut self, step: u64, spans: &[Span]) -> Result<()> {
        let events: Vec<Value> = spans.iter().flat_map(|span| self.events(step, span)).collect();
        self.write("", &events)
    }

    /// Adds a save: from `begin_us`, so long.
    ///
    /// # Errors
    /// `Io`, with the path.
    pub fn save(&mut self, step: u64, begin_us: u64, seconds: f64) -> Result<()> {
        let event = json!({
            "name": format!("save of step {step}"), "ph": "X", "cat": "save", "pid": self.rank, "tid": SAVE,
            "ts": begin_us, "dur": (seconds * 1e6).max(1.0), "args": {"step": step},
        });
        self.write("", &[event])
    }

    fn events(&self, step: u64, span: &Span) -> Vec<Value> {
        let (tid, category) =
            if span.action.computes() { (COMPUTE, "compute") } else { (COMMUNICATE, "communicate") };
        let (begin, length) = (span.begin_us, span.end_us.saturating_sub(span.begin_us).max(1));
        let mut events = vec![json!({
            "name": span.action.to_string(), "ph": "X", "cat": category, "pid": self.rank, "tid": tid,
            "ts": begin, "dur": length, "args": {"step": step},
        })];
        if let Some((name, id, sends)) = self.message(step, span.action) {
            // The arrow leaves when the send begins and arrives when the receive ends.
            let (phase, at) = if sends { ("s", begin) } else { ("f", begin + length - 1) };
            let mut arrow = json!({
                "name": name, "ph": phase, "cat": "message", "id": id, "pid": self.rank, "tid": tid, "ts": at,
            });
            if let (false, Some(arrow)) = (sends, arrow.as_object_mut()) {
                arrow.insert("bp".to_owned(), json!("e"));
            }
            events.push(arrow);
        }
        events
    }

    /// What an action sends or receives: the same name and id on both sides.
    fn message(&self, step: u64, action: Action) -> Option<(&'static str, String, bool)> {
        let (name, microbatch, to, sends) = match action.step {
            Step::SendF(m) => ("activations", m, action.stage + 1, true),
            Step::RecvF(m) => ("activations", m, action.stage, false),
            Step::SendB(m) => ("gradients", m, action.stage.checked_sub(1)?, true),
            Step::RecvB(m) => ("gradients", m, action.stage, false),
            _ => return None,
        };
        Some((name, format!("{}/{step}/{name}/{to}/{microbatch}", self.pipeline), sends))
    }

    fn write(&mut self, before: &str, events: &[Value]) -> Result<()> {
        let mut text = before.to_owned();
        events.iter().for_each(|event| text.extend([&event.to_string(), ",\n"]));
        self.file.write_all(text.as_bytes()).map_err(|error| failed(&self.path, error))
    }
}

/// What [`merge`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// Ranks.
    pub ranks: usize,
    /// Slices.
    pub slices: usize,
    /// Arrows.
    pub arrows: usize,
}

/// Makes `folder/trace.json` of all ranks' files.
///
/// # Errors
/// `NotFound` where there are none, `Corrupt` for what is no trace and for an arrow with one end.
pub fn merge(folder: &Path) -> Result<(PathBuf, Merged)> {
    let traces = folder.join(TRACES);
    let listed = fs::read_dir(&traces).map_err(|error| {
        Error::from(error)
            .at(traces.display())
            .hint("a run writes traces where metrics.trace_first is set: --metrics.trace_first=3 --metrics.trace_steps=2")
    })?;
    let mut files: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let mut events = Vec::new();
    for file in &files {
        events.extend(read(file)?);
    }
    let arrows = arrows(&events)?;
    let slices = events.iter().filter(|event| event["ph"] == "X").count();
    let path = folder.join(MERGED);
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    fs::write(&path, format!("[\n{}\n]\n", lines.join(",\n"))).map_err(|error| failed(&path, error))?;
    Ok((path, Merged { ranks: files.len(), slices, arrows }))
}

fn read(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).map_err(|error| Error::from(error).at(path.display()))?;
    let mut events = Vec::new();
    let lines = text.lines().collect::<Vec<_>>();
    for (index, line) in lines.iter().enumerate().skip(1) {
        match serde_json::from_str(line.trim_end_matches(',')) {
            Ok(event) => events.push(event),
            // A crash cuts the last line alone.
            Err(_) if index + 1 == lines.len() => {}
            Err(error) => {
                let said = format!("{}:{} is no event of a trace: {error}", path.display(), index + 1);
                return Err(Error::new(ErrorKind::Corrupt, said).caused_by(error));
            }
        }
    }
    Ok(events)
}

/// Counts arrows, each of which must have both ends.
fn arrows(events: &[Value]) -> Result<usize> {
    let mut ends: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for event in events {
        let Some(id) = event["id"].as_str() else { continue };
        let (sent, received) = ends.entry(id).or_default();
        match event["ph"].as_str() {
            Some("s") => *sent += 1,
            Some("f") => *received += 1,
            _ => {}
        }
    }
    match ends.iter().find(|(_, ends)| **ends != (1, 1)) {
        None => Ok(ends.len()),
        Some((id, (sent, received))) => {
            let said =
                format!("message {id} was sent {sent} times and received {received} times in these traces");
            Err(Error::new(ErrorKind::Corrupt, said)
                .hint("the files must be of the same run and of all its ranks; a run that failed leaves messages open"))
        }
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(texts: &[&str], from: u64) -> Vec<Span> {
        let span = |(text, at): (&&str, u64)| Span {
            action: text.parse().unwrap(),
            begin_us: from + 10 * at,
            end_us: from + 10 * at + 10,
        };
        texts.iter().zip(0..).map(span).collect()
    }

    #[test]
    fn ranks_are_processes_and_every_message_is_an_arrow_with_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut ranks = [0, 1].map(|rank| Trace::create(folder.path(), rank, "dp0 tp0", "pp").unwrap());
        for step in 1..3 {
            ranks[0]
                .step(step, &spans(&["0F0", "0SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD"], 100 * step))
                .unwrap();
            ranks[1].step(step, &spans(&["1RECV_F0", "1F0", "1B0", "1SEND_B0"], 100 * step)).unwrap();
        }
        ranks[1].save(2, 500, 0.25).unwrap();
        let (path, merged) = merge(folder.path()).unwrap();
        assert_eq!(merged, Merged { ranks: 2, slices: 19, arrows: 4 });
        let events: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let save = events.iter().find(|event| event["cat"] == "save").unwrap();
        assert_eq!(
            (save["pid"].as_u64(), save["tid"].as_u64(), save["dur"].as_f64()),
            (Some(1), Some(2), Some(250_000.0))
        );
        let sent = events.iter().find(|event| event["ph"] == "s").unwrap();
        let received = events.iter().find(|event| event["ph"] == "f" && event["id"] == sent["id"]).unwrap();
        assert_eq!(
            (sent["pid"].as_u64(), received["pid"].as_u64(), received["bp"].as_str()),
            (Some(0), Some(1), Some("e"))
        );
    }

    #[test]
    fn an_arrow_with_one_end_is_refused_and_a_cut_last_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut rank = Trace::create(folder.path(), 0, "dp0 tp0", "pp0").unwrap();
        rank.step(1, &spans(&["0F0"], 0)).unwrap();
        rank.file.write_all(b"{\"name\":\"0SE").unwrap();
        assert_eq!(merge(folder.path()).unwrap().1.slices, 1);
        let mut rank = Trace::create(folder.path(), 0, "dp0 tp0", "pp0").unwrap();
        rank.step(1, &spans(&["0SEND_F0"], 0)).unwrap();
        let error = merge(folder.path()).unwrap_err();
        assert!(error.to_string().contains("sent 1 times and received 0 times"), "{error}");
    }
}
