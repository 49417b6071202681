//! What was done and found: printed as it happens, and once more as a table.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;

/// A check and its verdict.
#[derive(Debug)]
struct Check {
    stage: usize,
    what: String,
    passed: bool,
}

/// A stage and when it began.
#[derive(Debug)]
struct Stage {
    number: usize,
    title: &'static str,
    began: Instant,
    took: Duration,
}

/// Everything that goes into the closing table.
#[derive(Debug, Default)]
pub(crate) struct Report {
    stages: Vec<Stage>,
    checks: Vec<Check>,
    sizes: Vec<(String, u64)>,
}

impl Report {
    /// Begins a stage.
    pub(crate) fn stage(&mut self, number: usize, title: &'static str) {
        self.end_stage();
        println!("\n== {number}. {title}");
        self.stages.push(Stage { number, title, began: Instant::now(), took: Duration::ZERO });
    }

    fn end_stage(&mut self) {
        if let Some(stage) = self.stages.last_mut() {
            stage.took = stage.began.elapsed();
        }
    }

    /// Records a check; `detail` is shown when it failed.
    pub(crate) fn check(&mut self, what: impl Into<String>, passed: bool, detail: &str) {
        let what = what.into();
        println!("{}  {what}", if passed { "pass" } else { "FAIL" });
        if !passed {
            detail.lines().for_each(|line| println!("      {line}"));
        }
        let stage = self.stages.last().map_or(0, |stage| stage.number);
        self.checks.push(Check { stage, what, passed });
    }

    /// Records how much disk something takes.
    pub(crate) fn size(&mut self, what: &str, bytes: u64) {
        self.sizes.push((what.to_owned(), bytes));
    }

    /// Prints the table; an error if a check failed, or if `readme` shows another table. It has all lines of the README's
    /// when everything was run (`whole`).
    pub(crate) fn close(&mut self, folder: &Path, readme: &str, whole: bool) -> Result<(), Error> {
        self.end_stage();
        let table = self.table();
        println!("\n== what was done");
        table.iter().for_each(|line| println!("{line}"));
        println!("kept  {}", folder.display());
        self.check(
            "README.md shows this table, numbers aside",
            readme_shows(readme, &table, whole),
            &table.join("\n"),
        );
        self.verdict()
    }

    fn table(&self) -> Vec<String> {
        let stages = self.stages.iter().map(|stage| {
            let number = stage.number;
            let of_stage = || self.checks.iter().filter(|check| check.stage == number);
            let (passed, all) = (of_stage().filter(|check| check.passed).count(), of_stage().count());
            let verdict = if passed == all && all > 0 { "pass" } else { "FAIL" };
            let seconds = stage.took.as_secs_f64();
            format!(
                "{verdict}  {number:>2}. {:<57}  {passed:>2} of {all:>2} checks  {seconds:>6.1} s",
                stage.title
            )
        });
        let sizes =
            self.sizes.iter().map(|(what, bytes)| format!("size  {what:<61}  {:>18}", mebibytes(*bytes)));
        stages.chain(sizes).collect()
    }

    fn verdict(&self) -> Result<(), Error> {
        let failed: Vec<_> = self.checks.iter().filter(|check| !check.passed).collect();
        if failed.is_empty() && !self.checks.is_empty() {
            println!("all {} checks passed", self.checks.len());
            return Ok(());
        }
        failed.iter().for_each(|check| println!("FAIL  {}. {}", check.stage, check.what));
        Err(Error::Checks { count: failed.len(), what: "the demo's checks".to_owned() })
    }
}

/// The line before the table in the README.
const MARK: &str = "<!-- the demo's table";

/// Whether the block behind [`MARK`] has these lines, whatever their numbers, in this order; and no others, if they are
/// the `whole` table.
fn readme_shows(readme: &str, table: &[String], whole: bool) -> bool {
    let block = readme.split(MARK).nth(1).and_then(|rest| rest.split("```").nth(1)).unwrap_or_default();
    let mut shown = block.lines().skip(1).map(without_numbers);
    let mut wanted = table.iter().map(|line| without_numbers(line));
    if whole { shown.eq(wanted) } else { wanted.all(|line| shown.any(|other| other == line)) }
}

fn without_numbers(line: &str) -> String {
    let words = line.split_whitespace();
    let kept = words.map(|word| if word.parse::<f64>().is_ok() { "#" } else { word });
    kept.collect::<Vec<_>>().join(" ")
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readme_that_shows_another_table_fails_the_demo() {
        let mut report = Report::default();
        report.stage(1, "a");
        report.check("good", true, "");
        let readme = format!("{MARK} -->\n```text\npass  1. a  7 of 7 checks  3.2 s\n```\n");
        assert!(report.close(Path::new("."), &readme, true).is_ok());
        assert!(report.close(Path::new("."), "nothing", true).is_err());
    }

    #[test]
    fn a_half_of_the_demo_is_held_to_its_part_of_the_table() {
        let mut report = Report::default();
        report.stage(7, "b");
        report.check("good", true, "");
        let lines = |last: &str| {
            format!(
                "{MARK} -->\n```text\npass  1. a  7 of 7 checks  3.2 s\npass  7. {last}  1 of 1 checks  3.2 s\n```\n"
            )
        };
        assert!(report.close(Path::new("."), &lines("b"), false).is_ok());
        assert!(report.close(Path::new("."), &lines("b"), true).is_err(), "stage 1 is missing");
        let mut report = Report::default();
        report.stage(7, "b");
        report.check("good", true, "");
        assert!(report.close(Path::new("."), &lines("c"), false).is_err());
    }

    #[test]
    fn one_failed_check_fails_the_whole() {
        let mut report = Report::default();
        report.stage(1, "a");
        report.check("bad", false, "why");
        let readme = format!("{MARK} -->\n```text\nFAIL  1. a  0 of 1 checks  3.2 s\n```\n");
        assert!(report.close(Path::new("."), &readme, true).is_err());
    }

    #[test]
    fn a_demo_that_checked_nothing_has_not_passed() {
        let mut report = Report::default();
        report.stage(1, "a");
        assert!(report.close(Path::new("."), &format!("{MARK} -->\n```text\n```"), true).is_err());
    }
}
