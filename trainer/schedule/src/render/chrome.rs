//! [`chrome`]: the JSON of trace viewers (`chrome://tracing`, Perfetto): a process for each rank, arrows for what is sent, a
//! counter for what is held.

use std::fmt::Write as _;

use super::{
    Picture,
    cells::{Cell, Kind, cells, transfers},
};

/// The trace. One unit of the simulation's time is `microseconds` long.
#[must_use]
pub fn chrome(picture: &Picture<'_>, microseconds: f64) -> String {
    let cells = cells(picture);
    let mut events = Vec::new();
    for rank in 0..picture.table.ranks.len() {
        events.extend(names(picture, rank));
    }
    events.extend(cells.iter().map(|cell| slice(cell, microseconds)));
    for (id, transfer) in transfers(picture, &cells).iter().enumerate() {
        let name = if transfer.activations { "activations" } else { "gradients" };
        let inside = |number: usize, share: f64| {
            // An arrow belongs to the slice that it is within.
            cells.get(number).map_or(0.0, |cell| microseconds * (cell.start + share * cell.takes()))
        };
        for (phase, (rank, number), share) in [("s", transfer.from, 0.99), ("f", transfer.to, 0.01)] {
            let at = inside(number, share);
            events.push(format!(
                "{{\"ph\":\"{phase}\",\"bp\":\"e\",\"id\":{id},\"cat\":\"transfer\",\"name\":\"{name}\",\"pid\":{rank},\
                 \"tid\":0,\"ts\":{at:.3}}}"
            ));
        }
    }
    for (rank, usage) in picture.memory.iter().enumerate() {
        events.extend(usage.timeline.iter().map(|(at, held)| {
            format!(
                "{{\"ph\":\"C\",\"name\":\"held\",\"pid\":{rank},\"ts\":{:.3},\"args\":{{{}:{held}}}}}",
                at * microseconds,
                quoted(picture.memory_unit)
            )
        }));
    }
    let title = quoted(picture.title);
    format!(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"title\":{title}}},\"traceEvents\":[\n{}\n]}}\n",
        events.join(",\n")
    )
}

fn names(picture: &Picture<'_>, rank: usize) -> Vec<String> {
    let stages: Vec<String> =
        picture.table.placement.stages_of(rank).iter().map(ToString::to_string).collect();
    let process = format!("rank {rank} (stages {})", stages.join(", "));
    let meta = |name: &str, tid: usize, args: &str| {
        format!("{{\"ph\":\"M\",\"name\":\"{name}\",\"pid\":{rank},\"tid\":{tid},\"args\":{{{args}}}}}")
    };
    vec![
        meta("process_name", 0, &format!("\"name\":{}", quoted(&process))),
        meta("process_sort_index", 0, &format!("\"sort_index\":{rank}")),
        meta("thread_name", 0, "\"name\":\"computations\""),
        meta("thread_name", 1, "\"name\":\"collectives\""),
    ]
}

fn slice(cell: &Cell, microseconds: f64) -> String {
    let (_, kind) = cell.kind.legend();
    format!(
        "{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"stage\":{}}}}}",
        quoted(&cell.action.to_string()),
        quoted(kind),
        cell.rank,
        usize::from(cell.kind == Kind::Collective),
        cell.start * microseconds,
        cell.takes() * microseconds,
        cell.action.stage
    )
}

/// As a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
