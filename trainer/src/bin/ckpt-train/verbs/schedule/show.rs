//! `ckpt-train schedule show`: a schedule drawn.

use std::{
    fs,
    io::{self, IsTerminal},
    path::Path,
};

use rustix::termios::tcgetwinsize;
use schedule::{Communication, Picture, Simulation, Table, Terminal, Usage, csv};
use serde_json::json;
use trainer::{Error, ErrorKind, Result};

use super::{
    args::{Colour, Format, Show},
    subject::{Setting, Subject},
};

/// Where nobody says how wide a terminal is.
const WIDTH: usize = 100;

pub(super) fn run(options: &Show) -> Result<u8> {
    let mut setting = Setting::new(&options.which.numbers)?;
    let subject = setting.which(&options.which)?;
    let (table, simulation) = timed(&subject, options.lowered)?;
    let held = schedule::memory(&table, &simulation, &subject.memory);
    let title = subject.title();
    let picture = Picture {
        title: &title,
        table: &table,
        simulation: &simulation,
        memory: &held,
        memory_unit: setting.unit(),
    };
    if options.which.numbers.json {
        return super::json(&cells(&subject, &table, &simulation, &held));
    }
    let text = match options.format {
        Format::Text => terminal(options, &picture),
        Format::Svg => schedule::svg(&picture),
        // A unit of time is taken for a millisecond.
        Format::Chrome => schedule::chrome(&picture, 1000.0),
        Format::Csv => csv::write(&table, options.which.dialect.unwrap_or_default()),
    };
    match &options.output {
        Some(path) => write(path, &text),
        None => super::super::print(&text),
    }
}

fn timed(subject: &Subject, lowered: bool) -> Result<(Table, Simulation)> {
    if lowered {
        let program = subject.program()?;
        let simulation = schedule::simulate_program(&program, &subject.timing, Communication::Rendezvous);
        return Ok((program.table().clone(), simulation));
    }
    Ok((subject.table.clone(), schedule::simulate(&subject.table, &subject.timing)?))
}

fn terminal(options: &Show, picture: &Picture<'_>) -> String {
    let stdout = io::stdout();
    let shown = options.output.is_none() && stdout.is_terminal();
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = match options.color {
        Colour::Auto => shown && !plain,
        Colour::Always => true,
        Colour::Never => false,
    };
    let own = || tcgetwinsize(&stdout).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    let width = options.width.or_else(|| own().filter(|_| shown)).unwrap_or(WIDTH);
    let mut text = schedule::terminal(picture, Terminal { width, colour, marks: true });
    let bubbles = picture.simulation.bubbles();
    text += &format!(
        "makespan {}   bubble {:.1} % of the makespan, {:.1} % of the ideal, {:.1} % of the longest rank\n",
        super::numbers::short(picture.simulation.makespan),
        100.0 * bubbles.makespan,
        100.0 * bubbles.ideal,
        100.0 * bubbles.longest_rank
    );
    text
}

fn cells(subject: &Subject, table: &Table, simulation: &Simulation, held: &[Usage]) -> serde_json::Value {
    let row = |rank: usize| {
        let spans = simulation.spans.get(rank).map_or(&[][..], Vec::as_slice);
        let cells = table.row(rank).iter().zip(spans).map(
            |(action, (start, end))| json!({ "action": action.to_string(), "start": start, "end": end }),
        );
        json!({
            "rank": rank,
            "stages": table.placement.stages_of(rank),
            "cells": cells.collect::<Vec<_>>(),
            "held": held.get(rank).map(|usage| usage.timeline.clone()),
        })
    };
    json!({
        "schedule": subject.name,
        "microbatches": subject.shape.microbatches,
        "makespan": simulation.makespan,
        "ranks": (0..table.ranks.len()).map(row).collect::<Vec<_>>(),
    })
}

fn write(path: &Path, text: &str) -> Result<u8> {
    fs::write(path, text).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot write {}: {error}", path.display())).caused_by(error)
    })?;
    super::super::print(&format!("wrote  {} ({} bytes)\n", path.display(), text.len()))
}
