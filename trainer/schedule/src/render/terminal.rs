//! [`terminal`]: time from left to right in columns, one line for each rank and one for what it sends and receives. Where the
//! step is longer than the terminal is wide, it goes on below; where it would go on too often, labels give way to one letter
//! for each column.

use std::fmt::Write as _;

use super::{
    Picture,
    cells::{Cell, Kind, cells, kinds, number, transfers},
};

/// How a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Columns.
    pub width: usize,
    /// Whether it shows colours; without them cells are told apart by their letters.
    pub colour: bool,
    /// Whether to mark what is sent and received.
    pub marks: bool,
}

/// Times that a step goes on below, at most.
const MOST_BANDS: usize = 4;

/// The drawing, each line ended.
#[must_use]
pub fn terminal(picture: &Picture<'_>, terminal: Terminal) -> String {
    let cells = cells(picture);
    let canvas = Canvas::new(picture, &cells, terminal);
    let mut out = String::new();
    let _ = writeln!(out, "{}", plain(picture.title));
    for band in 0..canvas.bands() {
        canvas.band(&mut out, band);
    }
    canvas.legend(&mut out);
    out
}

/// Without control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// One column of a rank's line.
#[derive(Debug, Clone, Copy, Default)]
struct Column {
    glyph: Option<char>,
    /// Kind and chunk of the cell that is there.
    cell: Option<(Kind, usize)>,
    mark: Option<char>,
}

struct Canvas<'a> {
    picture: &'a Picture<'a>,
    terminal: Terminal,
    kinds: Vec<Kind>,
    rows: Vec<Vec<Column>>,
    names: Vec<String>,
    /// Columns of a band.
    band: usize,
    /// Columns of one unit of time.
    scale: f64,
}

impl<'a> Canvas<'a> {
    fn new(picture: &'a Picture<'a>, cells: &[Cell], terminal: Terminal) -> Self {
        let names: Vec<String> = (0..picture.table.ranks.len()).map(|rank| name(picture, rank)).collect();
        let margin = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) + 1;
        let band = terminal.width.saturating_sub(margin).max(16);
        let several = picture.table.stages() > picture.table.ranks.len();
        let computing = || cells.iter().filter(|cell| cell.kind != Kind::Collective && cell.takes() > 0.0);
        let shortest = computing().map(Cell::takes).fold(f64::INFINITY, f64::min);
        let length = picture.simulation.makespan.max(f64::MIN_POSITIVE);
        let most = (band * MOST_BANDS) as f64;
        // Every label has room, or every cell has a column, or as much as the bands hold.
        let room = |cell: &Cell| (cell.label(several).chars().count() + 1) as f64 / cell.takes();
        let labelled = computing().map(room).fold(0.0, f64::max);
        let lettered = (1.0 / shortest).min(most / length);
        let fits = shortest.is_finite() && labelled * length <= most;
        let scale = if fits { labelled } else { lettered.max(band as f64 / length).min(most / length) };
        let width = column(length, scale).max(1);
        // Bands alike, rather than a short one at the end.
        let band = width.div_ceil(width.div_ceil(band)).max(1);
        let mut canvas = Self {
            picture,
            terminal,
            kinds: kinds(cells),
            rows: vec![vec![Column::default(); width]; names.len()],
            names,
            band,
            scale,
        };
        let drawn = cells.iter().filter(|cell| cell.kind != Kind::Collective);
        drawn.for_each(|cell| canvas.draw(cell, fits, several));
        if fits && terminal.marks {
            canvas.mark(cells);
        }
        canvas
    }

    fn draw(&mut self, cell: &Cell, labelled: bool, several: bool) {
        let (from, to) = self.columns(cell);
        let label = if labelled { cell.label(several) } else { cell.kind.legend().0.to_owned() };
        let mut glyphs = label.chars();
        let width = to.saturating_sub(from);
        let filler = if self.terminal.colour { ' ' } else { '─' };
        let slots = self.rows.get_mut(cell.rank).map_or(&mut [][..], Vec::as_mut_slice);
        for (at, slot) in slots.iter_mut().enumerate().take(to).skip(from) {
            slot.cell = Some((cell.kind, cell.chunk));
            let last = at + 1 == to && width > 1;
            slot.glyph = match glyphs.next() {
                Some(glyph) => Some(glyph),
                None if last && labelled => None,
                None if labelled => Some(filler),
                None => label.chars().next(),
            };
        }
    }

    /// First column, and the one behind the last.
    fn columns(&self, cell: &Cell) -> (usize, usize) {
        let from = column(cell.start, self.scale);
        (from, column(cell.end, self.scale).max(from + 1))
    }

    fn mark(&mut self, cells: &[Cell]) {
        for transfer in transfers(self.picture, cells) {
            let (sent, received) = if transfer.activations { ('▼', '▽') } else { ('▲', '△') };
            let ends = [(transfer.to.1, true, received), (transfer.from.1, false, sent)];
            for (number, begins, glyph) in ends {
                let Some(cell) = cells.get(number) else { continue };
                let (from, to) = self.columns(cell);
                let at = if begins { from } else { to.saturating_sub(2).max(from) };
                let slot = self.rows.get_mut(cell.rank).and_then(|row| row.get_mut(at));
                slot.into_iter().for_each(|slot| slot.mark = Some(glyph));
            }
        }
    }

    fn bands(&self) -> usize {
        self.rows.first().map_or(0, |row| row.len().div_ceil(self.band))
    }

    fn band(&self, out: &mut String, band: usize) {
        let margin = self.names.iter().map(|name| name.chars().count()).max().unwrap_or(0) + 1;
        let first = band * self.band;
        let _ = writeln!(out, "{}{}", " ".repeat(margin), self.ruler(first));
        for (row, name) in self.rows.iter().zip(&self.names) {
            let columns = row.iter().skip(first).take(self.band);
            let columns: Vec<Column> = columns.copied().collect();
            let _ = writeln!(out, "{name:<margin$}{}", self.line(&columns));
            let marks: String = columns.iter().map(|column| column.mark.unwrap_or(' ')).collect();
            if !marks.trim().is_empty() {
                let _ = writeln!(out, "{}{}", " ".repeat(margin), marks.trim_end());
            }
        }
        out.push('\n');
    }

    fn line(&self, columns: &[Column]) -> String {
        let mut line = String::new();
        let mut style = None;
        for (column, next) in columns.iter().zip(columns.iter().skip(1).map(Some).chain([None])) {
            // The last column of a cell is left blank between two cells of one colour.
            let ends = column.glyph.is_none() && next.is_some_and(|next| next.cell.is_some());
            let wanted = column.cell.filter(|_| !ends || !self.terminal.colour);
            if self.terminal.colour && wanted != style {
                line.push_str(
                    &wanted.map_or_else(|| "\x1b[0m".to_owned(), |(kind, chunk)| colour(kind, chunk)),
                );
                style = wanted;
            }
            line.push(column.glyph.unwrap_or(if column.cell.is_some() { ' ' } else { '·' }));
        }
        if style.is_some() {
            line.push_str("\x1b[0m");
        }
        if self.terminal.colour { line } else { line.trim_end().to_owned() }
    }

    /// Times above the columns.
    fn ruler(&self, first: usize) -> String {
        let mut ruler = String::new();
        let step = nice(12.0 / self.scale);
        let mut tick = (first as f64 / self.scale / step).ceil() * step;
        while column(tick, self.scale) < first + self.band && tick <= self.picture.simulation.makespan + 1e-9
        {
            let at = column(tick, self.scale).saturating_sub(first);
            let used = ruler.chars().count();
            if at >= used {
                ruler.push_str(&" ".repeat(at - used));
                ruler.push_str(&number(tick));
                ruler.push(' ');
            }
            tick += step;
        }
        ruler.trim_end().to_owned()
    }

    fn legend(&self, out: &mut String) {
        let kinds = self.kinds.iter().filter(|kind| **kind != Kind::Collective);
        let entries = kinds.map(|kind| {
            let (letter, meaning) = kind.legend();
            if self.terminal.colour {
                format!("{} {letter} \x1b[0m {meaning}", colour(*kind, 0))
            } else {
                format!("{letter} {meaning}")
            }
        });
        let mut entries: Vec<String> = entries.collect();
        entries.push("· idle".to_owned());
        if self.rows.iter().flatten().any(|column| column.mark.is_some()) {
            entries.push("▼▲ sends, ▽△ receives activations, gradients".to_owned());
        }
        let _ = writeln!(out, "{}", entries.join("   "));
    }
}

fn name(picture: &Picture<'_>, rank: usize) -> String {
    let stages = picture.table.placement.stages_of(rank);
    if picture.table.stages() == picture.table.ranks.len() && stages == [rank] {
        return format!("rank {rank}");
    }
    let stages: Vec<String> = stages.iter().map(ToString::to_string).collect();
    format!("rank {rank} ({})", stages.join(","))
}

/// The column that a moment is in. A drawing is at most a few bands wide; what is no such number is at its beginning.
#[expect(clippy::cast_possible_truncation, reason = "it is within what a column number can be")]
fn column(time: f64, scale: f64) -> usize {
    let at = (time * scale).round();
    if (0.0..1e6).contains(&at) { at as usize } else { 0 }
}

/// 1, 2 or 5 times a power of ten, at least `least`.
pub(super) fn nice(least: f64) -> f64 {
    if !least.is_finite() || least <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|times| times * power).into_iter().find(|step| *step >= least).unwrap_or(10.0 * power)
}

/// Background and text, of the 256 colours; later stages of a rank are paler.
fn colour(kind: Kind, chunk: usize) -> String {
    let backgrounds: [u8; 3] = match kind {
        Kind::Forward => [32, 74, 110],
        Kind::Input => [35, 78, 115],
        Kind::Weight => [178, 215, 222],
        Kind::Backward => [97, 140, 176],
        Kind::Composite | Kind::Collective => [167, 174, 181],
    };
    let background = backgrounds.get(chunk.min(2)).copied().unwrap_or(0);
    let text = if chunk == 0 && !matches!(kind, Kind::Weight) { 231 } else { 16 };
    format!("\x1b[48;5;{background};38;5;{text}m")
}
