//! Schedules from files, aliases, splits and refusals, as a run takes them.

use super::*;

const PP: (&str, &str) = ("parallelism.mesh", "1x2x1");

fn file(place: &Place, name: &str, rows: &str) -> String {
    let path = place.path().join(name);
    std::fs::write(&path, rows).unwrap();
    path.display().to_string()
}

/// The rows of a schedule that has a name, as torch would write them.
fn rows(place: &Place, schedule: &str, communication: bool) -> String {
    let outline =
        Outline::new(&place.job("llama", &[PP, ("parallelism.schedule", schedule)]).unwrap().config).unwrap();
    let only = |action: &&schedule::Action| communication || action.computes();
    let row = |row: &Vec<schedule::Action>| {
        let cells: Vec<_> = row.iter().filter(only).map(ToString::to_string).collect();
        cells.join(",") + "\n"
    };
    outline.program().table().ranks.iter().map(row).collect()
}

#[test]
fn files_with_communication_and_without_give_the_losses_of_the_schedules_that_they_hold() {
    let alone = curve("1x1x1", &[]);
    for schedule in ["1F1B", "ZBVZeroBubble", "DualPipeV"] {
        for communication in [false, true] {
            let place = Place::new();
            let path = file(&place, "order.csv", &rows(&place, schedule, communication));
            let ran = place.run(&[PP, ("parallelism.schedule_csv", &path)]);
            ran.summary.unwrap_or_else(|error| panic!("{schedule} {communication}: {error}"));
            assert_eq!(ran.curve, alone, "{schedule}, communication {communication}");
        }
    }
    // Older letters; the path in the schedule's own key; stages spread unevenly over ranks.
    let place = Place::new();
    let older = "0F0,0F1,2F0,2F1,2BW0,2BW1,0B0,0W0,0BW1\n,1F0,1F1,,1B0,1W0,1BW1\n";
    let path = file(&place, "older.csv", older);
    let few = [PP, ("training.global_batch", "2")];
    let dialect = [("parallelism.schedule", path.as_str()), ("parallelism.schedule_dialect", "older")];
    let ran = place.run(&[few, dialect].concat());
    ran.summary.unwrap();
    assert_eq!(ran.curve, curve("1x1x1", &few[1..]));
}

#[test]
fn a_file_that_is_refused_is_named_with_row_and_column_and_ranks_with_other_files_do_not_begin() {
    let place = Place::new();
    let refused = |rows: &str, more: &[(&str, &str)]| {
        let path = file(&place, "bad.csv", rows);
        let settings =
            [&[PP, ("training.global_batch", "1"), ("parallelism.schedule_csv", path.as_str())], more]
                .concat();
        let said = place.job("llama", &settings).unwrap_err();
        assert_eq!(said.kind(), crate::ErrorKind::Config, "{said}");
        assert!(said.to_string().contains("bad.csv"), "{said}");
        said.to_string()
    };
    let twice = refused("0F0,0F0,0B0\n1F0,1B0\n", &[]);
    assert!(twice.contains("row 1") && twice.contains("column 2"), "{twice}");
    assert!(refused("0F0,0B0\n", &[]).contains("2 pipeline ranks"));
    let stages = refused("0F0,0B0\n1F0,1B0\n", &[("parallelism.stages_per_rank", "2")]);
    assert!(stages.contains("has 2 stages, but pp=2 x parallelism.stages_per_rank=2"), "{stages}");
    let none = place.job("llama", &[PP, ("parallelism.schedule_csv", "/nowhere/order.csv")]).unwrap_err();
    assert_eq!(none.kind(), crate::ErrorKind::NotFound);
    let digest = |rows: &str| {
        let path = file(&place, "same.csv", rows);
        let settings = [PP, ("training.global_batch", "1"), ("parallelism.schedule_csv", path.as_str())];
        place.job("llama", &settings).unwrap().digest().unwrap()
    };
    assert_ne!(digest("0F0,0B0\n1F0,1B0\n"), digest("0F0,0I0,0W0\n1F0,1B0\n"));
}

#[test]
fn other_names_of_a_schedule_are_understood_and_its_own_is_kept() {
    let place = Place::new();
    for (alias, own, stages) in [
        ("zero_bubble", "ZBH1", 1),
        ("zb1p", "ZBH1", 1),
        ("zbv", "ZBVZeroBubble", 2),
        ("interleaved-1f1b", "Interleaved1F1B", 2),
        ("automatic", "Auto", 1),
    ] {
        let job = place.job("llama", &[PP, ("parallelism.schedule", alias)]).unwrap();
        let parallelism = &job.config.config.parallelism;
        assert_eq!((parallelism.schedule.as_str(), parallelism.stages_per_rank), (own, stages), "{alias}");
    }
}

#[test]
fn an_automatic_schedule_keeps_to_its_limit_and_takes_one_stage_on_each_rank() {
    let place = Place::new();
    let auto = [PP, ("parallelism.schedule", "auto")];
    let refused =
        place.job("llama", &[&auto[..], &[("parallelism.stages_per_rank", "2")]].concat()).unwrap_err();
    assert!(
        refused.to_string().contains("one stage on each rank") && refused.hint_text().is_some(),
        "{refused}"
    );
    let one = [&auto[..], &[("parallelism.live_microbatches", "1")]].concat();
    let outline = Outline::new(&place.job("llama", &one).unwrap().config).unwrap();
    let cells = outline.program().table().row(0).iter().filter(|cell| cell.computes());
    let kinds: String =
        cells.map(|cell| if matches!(cell.step, schedule::Step::F(_)) { 'F' } else { 'b' }).collect();
    assert!(!kinds.contains("FF"), "one microbatch at a time: {kinds}");
    assert_eq!(place.run(&one).curve, curve("1x1x1", &[]));
}
