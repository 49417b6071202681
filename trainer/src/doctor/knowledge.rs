//! [`Knowledge`]: symptoms and reference tables, read from the TOML files beside this one that are part of the program.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

const SYMPTOMS: &str = include_str!("tables/symptoms.toml");
const TABLES: &[&str] = &[
    include_str!("tables/quick.toml"),
    include_str!("tables/strategies.toml"),
    include_str!("tables/layout.toml"),
    include_str!("tables/troubleshooting.toml"),
];

/// Something that people see, and what is behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Symptom {
    /// Its name.
    pub id: String,
    /// What is seen.
    pub title: String,
    /// Other words for it.
    pub words: Vec<String>,
    /// What can be behind it, likeliest first.
    pub causes: Vec<String>,
    /// What to look at, in order.
    pub checks: Vec<String>,
    /// What to do.
    pub remedies: Vec<String>,
}

/// A table to look things up in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its name.
    pub id: String,
    /// What it is about.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
}

/// All that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Knowledge {
    /// Symptoms.
    pub symptoms: Vec<Symptom>,
    /// Tables.
    pub tables: Vec<Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Symptoms {
    symptom: Vec<Symptom>,
}

impl Knowledge {
    /// Reads it.
    ///
    /// # Errors
    /// `Internal`: the tables are part of the program, and a test reads them.
    pub fn read() -> Result<Self> {
        let failed = |error: toml::de::Error| {
            Error::internal(format!("a table of symptoms: {error}")).caused_by(error)
        };
        let symptoms: Symptoms = toml::from_str(SYMPTOMS).map_err(failed)?;
        let tables = TABLES.iter().map(|text| toml::from_str(text).map_err(failed));
        Ok(Self { symptoms: symptoms.symptom, tables: tables.collect::<Result<_>>()? })
    }

    /// The symptom of that name.
    #[must_use]
    pub fn symptom(&self, id: &str) -> Option<&Symptom> {
        self.symptoms.iter().find(|it| it.id == id)
    }

    /// The table of that name.
    ///
    /// # Errors
    /// `Config`, with all names.
    pub fn table(&self, id: &str) -> Result<&Table> {
        let names = || self.tables.iter().map(|it| it.id.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.tables.iter().find(|it| it.id == id);
        found.ok_or_else(|| {
            Error::config(format!("there is no table \"{}\"", id.escape_default()))
                .hint(format!("tables are {}", names()))
        })
    }
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}  ({})", self.title, self.id)?;
        let mut list = |head: &str, lines: &[String], numbered: bool| -> fmt::Result {
            writeln!(f, "\n{head}")?;
            lines.iter().enumerate().try_for_each(|(index, line)| {
                let mark = if numbered { format!("{}.", index + 1) } else { "-".to_owned() };
                writeln!(f, "  {mark:<3}{}", wrapped(line, 5))
            })
        };
        list("likely causes", &self.causes, false)?;
        list("check, in this order", &self.checks, true)?;
        list("then", &self.remedies, false)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}  ({})", self.title, self.id)?;
        for row in &self.rows {
            writeln!(f)?;
            for (column, cell) in self.columns.iter().zip(row) {
                writeln!(f, "  {column:<16} {}", wrapped(cell, 19))?;
            }
        }
        Ok(())
    }
}

/// Lines of at most 100 characters, those after the first indented.
fn wrapped(text: &str, indent: usize) -> String {
    let (mut out, mut width) = (String::new(), indent);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > indent && width + 1 + length > 100 {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            width = indent;
        } else if width > indent {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symptom_has_causes_checks_and_remedies_and_every_row_all_its_cells() {
        let known = Knowledge::read().unwrap();
        assert!(known.symptoms.len() >= 12);
        let mut names = std::collections::BTreeSet::new();
        for it in &known.symptoms {
            assert!(names.insert(&it.id), "{} is there twice", it.id);
            assert!(
                !it.words.is_empty()
                    && !it.causes.is_empty()
                    && !it.checks.is_empty()
                    && !it.remedies.is_empty(),
                "{}",
                it.id
            );
        }
        for table in &known.tables {
            assert!(
                !table.rows.is_empty() && table.rows.iter().all(|row| row.len() == table.columns.len()),
                "{}",
                table.id
            );
        }
        assert!(known.table("strategy").unwrap_err().hint_text().unwrap().contains("strategies"));
    }

    /// Advice that names a key or a verb which is not there sends people astray.
    #[test]
    fn keys_and_verbs_that_the_tables_name_exist() {
        let all = [SYMPTOMS].iter().chain(TABLES).copied().collect::<String>();
        let verbs =
            ["train", "launch", "config", "stages", "data", "plan", "doctor", "compare", "trace", "schedule"];
        for after in all.split("ckpt-train ").skip(1) {
            let verb: String = after.chars().take_while(char::is_ascii_alphabetic).collect();
            assert!(verbs.contains(&verb.as_str()), "ckpt-train {verb}");
        }
    }
}
