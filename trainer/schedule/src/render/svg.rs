//! [`svg()`]: a picture that needs nothing else: rows of ranks, what is sent between them, what each holds over time, a
//! legend. Light or dark as its reader is.

use std::fmt::Write as _;

use super::{
    Picture,
    cells::{Cell, Kind, Transfer, cells, kinds, number, transfers},
    terminal::nice,
};
use crate::Usage;

/// Names of ranks; those of their stages need more.
const NAMES: f64 = 64.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 92.0;
const ROW: f64 = 30.0;
/// Between the cells of two ranks: room for arrows.
const GAP: f64 = 20.0;
const MEMORY: f64 = 26.0;
/// Arrows of more values than that hide what they are to show.
const MOST_ARROWS: usize = 600;

const STYLE: &str = "
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px;fill:#1f2328}
.page{fill:#ffffff}.title{font-size:16px;font-weight:600}.soft{fill:#59636e;font-size:11px}.lane{fill:#f0f2f5}
.tick{stroke:#d1d9e0;stroke-width:1}.cell{stroke:#ffffff;stroke-width:1}.label{text-anchor:middle;font-size:11px}
.right{text-anchor:end}.on{fill:#ffffff}.ink{fill:#14171a}
.f0{fill:#2f6fb0}.f1{fill:#8db8e2}.i0{fill:#1d8a7a}.i1{fill:#8fd0c4}.w0{fill:#e3a33b}.w1{fill:#f6d79b}
.b0{fill:#7d4fa3}.b1{fill:#c3a5dc}.o0{fill:#b4507c}.o1{fill:#e2a6c1}.u0,.u1{fill:#8b949e}
.down{stroke:#2f6fb0;fill:none;stroke-width:1.1;opacity:.55}.up{stroke:#1d8a7a;fill:none;stroke-width:1.1;opacity:.55}
.held{fill:#8b949e;opacity:.45}.most{stroke:#cf5340;stroke-width:1;stroke-dasharray:3 2}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.soft{fill:#9198a1}.lane{fill:#161b22}
.tick{stroke:#30363d}.cell{stroke:#0d1117}.on{fill:#ffffff}.ink{fill:#14171a}.held{fill:#9198a1}
.down{stroke:#79b0e8}.up{stroke:#5cc4b3}}
";

/// The drawing: one SVG document.
#[must_use]
pub fn svg(picture: &Picture<'_>) -> String {
    let cells = cells(picture);
    let drawing = Drawing::new(picture, &cells);
    let mut out = String::new();
    drawing.open(&mut out);
    drawing.axis(&mut out);
    for rank in 0..picture.table.ranks.len() {
        drawing.rank(&mut out, rank);
    }
    let transfers = transfers(picture, &cells);
    cells.iter().for_each(|cell| drawing.cell(&mut out, cell));
    if transfers.len() <= MOST_ARROWS {
        transfers.iter().for_each(|transfer| drawing.arrow(&mut out, transfer));
    }
    drawing.legend(&mut out, transfers.len());
    out.push_str("</svg>\n");
    out
}

struct Drawing<'a> {
    picture: &'a Picture<'a>,
    kinds: Vec<Kind>,
    /// Pixels of one unit of time.
    scale: f64,
    /// Pixels from one rank to the next.
    pitch: f64,
    several: bool,
    /// Where time begins.
    left: f64,
}

impl<'a> Drawing<'a> {
    fn new(picture: &'a Picture<'a>, cells: &[Cell]) -> Self {
        let length = picture.simulation.makespan.max(f64::MIN_POSITIVE);
        let computing = cells.iter().filter(|cell| cell.kind != Kind::Collective && cell.takes() > 0.0);
        let shortest = computing.map(Cell::takes).fold(length, f64::min);
        let several = picture.table.stages() > picture.table.ranks.len();
        // Labels of the shortest cells are to be read, unless that makes the picture too wide for anyone.
        let wanted = if several { 34.0 } else { 26.0 } / shortest;
        let scale = wanted.max(900.0 / length).min(6000.0 / length);
        let memory = if picture.memory.is_empty() { 0.0 } else { MEMORY };
        let names = (0..picture.table.ranks.len()).map(|rank| stages(picture, rank).chars().count());
        let left = NAMES + 14.0 + 6.4 * names.max().unwrap_or(0) as f64;
        Self { picture, kinds: kinds(cells), scale, pitch: ROW + GAP + memory, several, left }
    }

    fn x(&self, time: f64) -> f64 {
        self.left + time * self.scale
    }

    fn y(&self, rank: usize) -> f64 {
        TOP + rank as f64 * self.pitch
    }

    fn bottom(&self) -> f64 {
        self.y(self.picture.table.ranks.len())
    }

    fn open(&self, out: &mut String) {
        let simulation = self.picture.simulation;
        let (width, height) = (self.x(simulation.makespan) + RIGHT, self.bottom() + 44.0);
        let title = escaped(self.picture.title);
        let [makespan, ideal, longest] = simulation.bubbles().values().map(|share| 100.0 * share);
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n<text class=\"title\" x=\"16\" y=\"28\">{title}</text>\n\
             <text class=\"soft\" x=\"16\" y=\"48\">makespan {} · bubble: {makespan:.1} % of the makespan, {ideal:.1} % of \
             the ideal, {longest:.1} % of the longest rank</text>",
            number(simulation.makespan)
        );
    }

    fn axis(&self, out: &mut String) {
        let step = nice(70.0 / self.scale);
        let mut time = 0.0;
        while time <= self.picture.simulation.makespan + 1e-9 {
            let x = self.x(time);
            let _ = writeln!(
                out,
                "<line class=\"tick\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/><text class=\"soft\" \
                 x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                TOP - 8.0,
                self.bottom() - GAP / 2.0,
                TOP - 13.0,
                number(time)
            );
            time += step;
        }
    }

    fn rank(&self, out: &mut String, rank: usize) {
        let (picture, y) = (self.picture, self.y(rank));
        let end = picture.simulation.makespan;
        let _ = writeln!(
            out,
            "<rect class=\"lane\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{ROW}\" rx=\"3\"/>",
            self.left,
            end * self.scale
        );
        let busy = picture.simulation.busy.get(rank).copied().unwrap_or(0.0);
        let share = if end > 0.0 { 100.0 * busy / end } else { 0.0 };
        let right = self.x(end) + 10.0;
        let _ = writeln!(
            out,
            "<text x=\"16\" y=\"{:.1}\">rank {rank}</text><text class=\"soft right\" x=\"{}\" y=\"{:.1}\">{}</text>\
             <text class=\"soft\" x=\"{right:.1}\" y=\"{:.1}\">{share:.1} % busy</text>",
            y + 19.0,
            self.left - 10.0,
            y + 19.0,
            stages(picture, rank),
            y + 19.0
        );
        if let Some(usage) = picture.memory.get(rank) {
            self.memory(out, rank, usage, right);
        }
    }

    fn memory(&self, out: &mut String, rank: usize, usage: &Usage, right: f64) {
        let most = self.picture.memory.iter().map(|usage| usage.peak).fold(f64::MIN_POSITIVE, f64::max);
        let foot = self.y(rank) + ROW + 4.0 + MEMORY;
        let height = |held: f64| foot - (MEMORY - 4.0) * (held / most).clamp(0.0, 1.0);
        let mut path = format!("M{:.1} {foot:.1}", self.x(0.0));
        for (at, held) in &usage.timeline {
            let _ = write!(path, "H{:.1}V{:.1}", self.x(*at), height(*held));
        }
        let _ = write!(path, "H{:.1}V{foot:.1}Z", self.x(self.picture.simulation.makespan));
        let top = height(usage.peak);
        let _ = writeln!(
            out,
            "<path class=\"held\" d=\"{path}\"/><line class=\"most\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{top:.1}\" \
             y2=\"{top:.1}\"/><text class=\"soft\" x=\"{right:.1}\" y=\"{:.1}\">peak {}</text><text class=\"soft right\" \
             x=\"{}\" y=\"{:.1}\">held</text>",
            self.left,
            self.x(self.picture.simulation.makespan),
            top + 4.0,
            number(usage.peak),
            self.left - 10.0,
            foot - 6.0
        );
    }

    fn cell(&self, out: &mut String, cell: &Cell) {
        let (x, width) = (self.x(cell.start), cell.takes() * self.scale);
        // Collectives run beside computations: they are a thin line at the foot of the row.
        let collective = cell.kind == Kind::Collective;
        let (y, height) =
            if collective { (self.y(cell.rank) + ROW - 4.0, 4.0) } else { (self.y(cell.rank), ROW) };
        let label = cell.label(self.several);
        let _ = write!(
            out,
            "<g><title>{} on rank {}: {} to {}</title><rect class=\"cell {}{}\" x=\"{x:.1}\" y=\"{y:.1}\" \
             width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\"/>",
            cell.action,
            cell.rank,
            number(cell.start),
            number(cell.end),
            class(cell.kind),
            cell.chunk.min(1)
        );
        if !collective && width >= 7.0 * label.chars().count() as f64 {
            let ink = if cell.chunk == 0 && cell.kind != Kind::Weight { "on" } else { "ink" };
            let (x, y) = (x + width / 2.0, y + height / 2.0 + 4.0);
            let _ = write!(out, "<text class=\"label {ink}\" x=\"{x:.1}\" y=\"{y:.1}\">{label}</text>");
        }
        out.push_str("</g>\n");
    }

    /// From the foot of the cell that gives to the head of the one that takes, or the other way round.
    fn arrow(&self, out: &mut String, transfer: &Transfer) {
        let down = transfer.to.0 > transfer.from.0;
        let (from, to) = (self.y(transfer.from.0), self.y(transfer.to.0));
        let (from, to) = if down { (from + ROW, to) } else { (from, to + ROW) };
        let (sent, used) = (self.x(transfer.sent), self.x(transfer.used));
        // Between neighbours the value lies in the gap until it is used; over several ranks the arrow is steep.
        let tip = if down { -4.0 } else { 4.0 };
        let class = if transfer.activations { "down" } else { "up" };
        let _ = writeln!(
            out,
            "<path class=\"{class}\" d=\"M{sent:.1} {from:.1}L{used:.1} {to:.1}m-2.5 {tip}l2.5 {:.1}l2.5 {tip}\"/>",
            -tip
        );
    }

    fn legend(&self, out: &mut String, transfers: usize) {
        let y = self.bottom() + 12.0;
        let mut x = 16.0;
        for kind in &self.kinds {
            let (letter, meaning) = kind.legend();
            let text = format!("{letter} {meaning}");
            let _ = writeln!(
                out,
                "<rect class=\"{}0\" x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"14\" rx=\"2\"/><text class=\"soft\" \
                 x=\"{}\" y=\"{y:.1}\">{text}</text>",
                class(*kind),
                y - 11.0,
                x + 20.0
            );
            x += 38.0 + 6.3 * text.chars().count() as f64;
        }
        let mut rest = String::new();
        if self.several {
            rest.push_str("paler: later stages of a rank");
        }
        if !self.picture.memory.is_empty() {
            let _ = write!(
                rest,
                "{}held: {}",
                if rest.is_empty() { "" } else { " · " },
                escaped(self.picture.memory_unit)
            );
        }
        if transfers > 0 && transfers <= MOST_ARROWS {
            for (class, text) in [("down", "activations"), ("up", "gradients")] {
                let _ = writeln!(
                    out,
                    "<path class=\"{class}\" d=\"M{x} {:.1}h18m-4 -2.5l4 2.5l-4 2.5\"/><text class=\"soft\" x=\"{}\" \
                     y=\"{y:.1}\">{text}</text>",
                    y - 4.0,
                    x + 24.0
                );
                x += 44.0 + 6.3 * text.chars().count() as f64;
            }
        }
        let _ = writeln!(out, "<text class=\"soft\" x=\"{x}\" y=\"{y:.1}\">{rest}</text>");
    }
}

/// `stage 3`, `stages 0, 7`.
fn stages(picture: &Picture<'_>, rank: usize) -> String {
    let stages: Vec<String> =
        picture.table.placement.stages_of(rank).iter().map(ToString::to_string).collect();
    format!("stage{} {}", if stages.len() == 1 { "" } else { "s" }, stages.join(", "))
}

const fn class(kind: Kind) -> char {
    match kind {
        Kind::Forward => 'f',
        Kind::Input => 'i',
        Kind::Weight => 'w',
        Kind::Backward => 'b',
        Kind::Composite => 'o',
        Kind::Collective => 'u',
    }
}

/// As XML asks for, without control characters.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
