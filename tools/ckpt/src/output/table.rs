//! Tables: aligned columns for people, tab-separated ones for pipes.

use super::style;

/// How a column is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows under named columns.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Appends a row: one text per column.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Tab-separated, untruncated, with a header line.
    pub(crate) fn plain(&self) -> String {
        let head = self.columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("\t");
        self.rows.iter().fold(head + "\n", |text, row| text + &row.join("\t") + "\n")
    }

    /// Aligned by spaces, without columns that are empty; where `width` is known, the first column is cut in its middle so
    /// that lines fit.
    pub(crate) fn human(&self, width: Option<usize>) -> String {
        self.without_empty_columns().aligned(width)
    }

    fn without_empty_columns(&self) -> Self {
        let said = |at: usize| {
            at == 0 || self.rows.iter().any(|row| row.get(at).is_some_and(|cell| !cell.is_empty()))
        };
        let said: Vec<bool> = (0..self.columns.len()).map(said).collect();
        let kept = |row: &Vec<String>| {
            row.iter().zip(&said).filter(|(_, said)| **said).map(|(cell, _)| cell.clone()).collect()
        };
        let columns = self.columns.iter().zip(&said).filter(|(_, said)| **said).map(|(column, _)| *column);
        Self { columns: columns.collect(), rows: self.rows.iter().map(kept).collect() }
    }

    fn aligned(&self, width: Option<usize>) -> String {
        let mut widths = self.widths();
        let total: usize = widths.iter().map(|w| w + 2).sum();
        if let (Some(limit), Some(first)) = (width, widths.first_mut()) {
            *first = (*first).saturating_sub((total + 2).saturating_sub(limit)).max(16);
        }
        let head: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut text = style::faint(&self.line(&head, &widths)) + "\n";
        for row in &self.rows {
            text += &self.line(row, &widths);
            text.push('\n');
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let of = |at: usize, name: &str| {
            let cells = self.rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
            cells.max().unwrap_or(0).max(name.len())
        };
        self.columns.iter().enumerate().map(|(at, (name, _))| of(at, name)).collect()
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::from("  ");
        for ((cell, width), (_, align)) in cells.iter().zip(widths).zip(&self.columns) {
            let cell = middle_cut(cell, *width);
            match align {
                Align::Left => line += &format!("{cell:<width$}  "),
                Align::Right => line += &format!("{cell:>width$}  "),
            }
        }
        line.trim_end().to_owned()
    }
}

/// Cuts the middle out of a text that is too wide: names differ at both ends.
fn middle_cut(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width || width < 5 {
        return text.to_owned();
    }
    let head = (width - 1) / 2;
    let tail = width - 1 - head;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(count - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_that_says_nothing_is_not_shown_to_people() {
        let mut table = Table::new(&[("name", Align::Left), ("count", Align::Right), ("size", Align::Right)]);
        table.row(["w", "", "4 B"]);
        assert!(!table.human(None).contains("count"));
        assert_eq!(table.plain().lines().nth(1), Some("w\t\t4 B"));
    }

    #[test]
    fn numbers_align_right_and_long_names_lose_their_middle() {
        let mut table = Table::new(&[("name", Align::Left), ("size", Align::Right)]);
        table.row(["layers.0.attention.wq.weight.and.more", "1.00 MiB"]);
        table.row(["w", "4 B"]);
        let text = table.human(Some(34));
        assert!(text.lines().skip(1).all(|line| line.chars().count() <= 34), "{text}");
        assert!(text.contains('…') && text.contains("     4 B"), "{text}");
        assert_eq!(table.plain().lines().nth(1), Some("layers.0.attention.wq.weight.and.more\t1.00 MiB"));
    }
}
