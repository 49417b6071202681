//! [`read`]: from text to a [`Document`], strict.

use std::collections::BTreeMap;

use super::{
    Dialect, Document, Format,
    detect::{self, Cell},
};
use crate::{Action, Placement, ScheduleError};

/// What the caller knows about a file; what it leaves out is found out from the cells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// What the letters mean.
    pub dialect: Option<Dialect>,
    /// What it holds.
    pub format: Option<Format>,
    /// Pipeline ranks: one row for each.
    pub ranks: Option<usize>,
    /// Microbatches of a step.
    pub microbatches: Option<usize>,
    /// Where stages lie.
    pub placement: Option<Placement>,
}

/// Reads a file's text.
///
/// # Errors
/// The first cell that is no action, or not one that the file may hold; a dialect that is not certain; a stage on two
/// rows or on none; anything that is not as declared. Whether the schedule makes sense is said by [`Document::table`] and
/// [`Document::program`].
pub fn read(text: &str, options: &Options) -> Result<Document, ScheduleError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let newline = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let lines = lines(text)?;
    let cells: Vec<_> = lines.iter().enumerate().flat_map(|(row, line)| cells(row + 1, line)).collect();
    if let Some(ranks) = options.ranks.filter(|ranks| *ranks != lines.len()) {
        return Err(ScheduleError::File(format!(
            "the file has {} rows, one for each rank, but there are {ranks} pipeline ranks",
            lines.len()
        )));
    }
    let filled: Vec<_> = cells.iter().copied().filter(|cell| !cell.text.is_empty()).collect();
    let dialect = options.dialect.map_or_else(|| detect::dialect(&filled).map_err(|why| unsure(&why)), Ok)?;
    let actions =
        filled.iter().map(|cell| Ok((*cell, action(*cell, dialect)?))).collect::<Result<Vec<_>, _>>()?;
    let format = format(&cells, &actions, options.format)?;
    let placement = placement(&actions, lines.len(), options.placement.as_ref())?;
    let highest =
        actions.iter().flat_map(|(_, action)| action.parts()).filter_map(|it| it.step.microbatch()).max();
    let microbatches = options.microbatches.unwrap_or_else(|| highest.map_or(0, |it| it.saturating_add(1)));
    let mut rows: Vec<Vec<Option<Action>>> = lines.iter().map(|_| Vec::new()).collect();
    let mut actions = actions.into_iter().map(|(_, action)| action);
    for cell in cells {
        let action = if cell.text.is_empty() { None } else { actions.next() };
        rows.get_mut(cell.row - 1).into_iter().for_each(|row| row.push(action));
    }
    Ok(Document { dialect, format, placement, microbatches, rows, newline, ended: text.ends_with('\n') })
}

/// Lines, without empty ones at the end.
fn lines(text: &str) -> Result<Vec<&str>, ScheduleError> {
    let lines: Vec<_> =
        text.trim_end_matches(['\r', '\n']).split('\n').map(|it| it.trim_end_matches('\r')).collect();
    if let Some(row) = lines.iter().position(|line| line.trim().is_empty()) {
        return Err(ScheduleError::File(match lines.len() {
            1 => "the file is empty: it needs a row of actions for each rank".to_owned(),
            _ => {
                format!("row {} is empty: each row is a rank, and each rank has at least one stage", row + 1)
            }
        }));
    }
    Ok(lines)
}

fn cells(row: usize, line: &str) -> impl Iterator<Item = Cell<'_>> {
    (1..).zip(line.split(',')).map(move |(column, text)| Cell { row, column, text: unquoted(text) })
}

/// Without blanks around it, and without quotes that a spreadsheet has put around it.
fn unquoted(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).map_or(text, str::trim)
}

fn action(cell: Cell<'_>, dialect: Dialect) -> Result<Action, ScheduleError> {
    dialect.action(cell.text).map_err(|why| {
        match cell.text.contains([';', '\t']) && !cell.text.contains('(') {
            true => refused(cell, "cells are separated by commas".to_owned()),
            false => refused(cell, why),
        }
    })
}

fn refused(Cell { row, column, text }: Cell<'_>, why: String) -> ScheduleError {
    ScheduleError::Csv { row, column, cell: text.escape_default().to_string(), why }
}

fn unsure(why: &str) -> ScheduleError {
    ScheduleError::File(format!("the file's dialect is not certain: {why}; mend it, or declare the dialect"))
}

/// What the file holds: as declared, or communication where a cell communicates.
fn format(
    cells: &[Cell<'_>],
    actions: &[(Cell<'_>, Action)],
    declared: Option<Format>,
) -> Result<Format, ScheduleError> {
    let lowered = actions.iter().find(|(_, action)| !action.computes());
    match (declared, lowered) {
        (Some(Format::ComputeOnly), Some((cell, _))) => {
            let why = "the file is declared to hold computations only: F, I, W, B and OVERLAP_F_B".to_owned();
            Err(refused(*cell, why))
        }
        (None | Some(Format::ComputeOnly), None) => Ok(Format::ComputeOnly),
        _ => no_idle(cells).map(|()| Format::ComputeComms),
    }
}

/// A program says nothing of times: an empty cell in it is one that got lost. Those at the end of a row are what
/// spreadsheets add.
fn no_idle(cells: &[Cell<'_>]) -> Result<(), ScheduleError> {
    let followed = |(one, next): &(&Cell<'_>, &Cell<'_>)| {
        one.text.is_empty() && !next.text.is_empty() && one.row == next.row
    };
    match cells.iter().zip(cells.iter().skip(1)).find(followed) {
        Some((cell, _)) => {
            let why =
                "a file that holds communication runs as it is and can't have empty cells between others";
            Err(refused(*cell, why.to_owned()))
        }
        None => Ok(()),
    }
}

/// The rank of every stage: the row that its cells are in.
fn placement(
    actions: &[(Cell<'_>, Action)],
    ranks: usize,
    declared: Option<&Placement>,
) -> Result<Placement, ScheduleError> {
    let mut of: BTreeMap<usize, Cell<'_>> = BTreeMap::new();
    for (cell, part) in actions.iter().flat_map(|(cell, action)| action.parts().map(move |part| (cell, part)))
    {
        let before = *of.entry(part.stage).or_insert(*cell);
        if before.row != cell.row {
            let why = format!("stage {} is on rank {} already: {before}", part.stage, before.row - 1);
            return Err(refused(*cell, why));
        }
        let declared = declared.and_then(|it| it.rank_of(part.stage)).filter(|rank| rank + 1 != cell.row);
        if let Some(rank) = declared {
            return Err(refused(*cell, format!("stage {} lies on rank {rank}", part.stage)));
        }
    }
    if let Some((missing, (_, cell))) = of.iter().enumerate().find(|(index, (stage, _))| index != *stage) {
        return Err(refused(
            *cell,
            format!("there is no cell of stage {missing}, though there are higher ones"),
        ));
    }
    if let Some(declared) = declared.filter(|it| it.stages() != of.len()) {
        return Err(ScheduleError::File(format!(
            "the file has {} stages, not {}",
            of.len(),
            declared.stages()
        )));
    }
    Placement::new(ranks, of.values().map(|cell| cell.row - 1).collect())
}
