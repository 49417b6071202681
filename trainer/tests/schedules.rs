//! What `ckpt-train schedule` prints, writes and refuses.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{fs, process::Command};

struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
}

fn schedule(arguments: &str) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ckpt-train"));
    let output =
        command.arg("schedule").args(arguments.split_whitespace()).env("NO_COLOR", "1").output().unwrap();
    Answer {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[track_caller]
fn done(arguments: &str) -> String {
    let answer = schedule(arguments);
    assert_eq!((answer.code, answer.err.as_str()), (Some(0), ""), "{arguments}");
    answer.out
}

fn json(arguments: &str) -> serde_json::Value {
    serde_json::from_str(&done(&format!("{arguments} --json"))).unwrap()
}

#[test]
fn a_schedule_is_drawn_with_its_three_bubbles() {
    assert_eq!(
        done("show 1F1B --pp 2 --microbatches 3 --width 80"),
        "1F1B: 2 ranks, 3 microbatches\n\
         \x20      0              5              10\n\
         rank 0 F0 F1 ······B0─── F2 B1─── ···B2───\n\
         \x20       ▼  ▼       △      ▼ △        △\n\
         rank 1 ···F0 B0─── F1 B1─── F2 B2─── ······\n\
         \x20         ▽      ▲ ▽      ▲ ▽      ▲\n\
         \n\
         F forward   B backward, both   · idle   ▼▲ sends, ▽△ receives activations, gradients\n\
         makespan 12   bubble 25.0 % of the makespan, 33.3 % of the ideal, 25.0 % of the longest rank\n"
    );
}

#[test]
fn a_simulation_stands_beside_the_formula() {
    let out = done("simulate 1F1B --pp 4 --microbatches 8");
    assert!(out.contains("makespan  33   formula (M + P - 1)(F + I + W) = 33\n"), "{out}");
    for line in ["27.3 % of the makespan", "37.5 % of the ideal", "27.3 % of the longest rank"] {
        assert!(out.contains(line), "{out}");
    }
    let found = json("simulate ZBH2 --pp 4 --microbatches 8 --times 1,1,1,0");
    assert_eq!(found["makespan"], 27.0);
    assert_eq!(found["bubbles"]["longest_rank"], 0.0);
    assert_eq!(found["ranks"][3]["peak"], 7.0);
    assert_eq!(found["formula"]["peak"], serde_json::json!([7.0, 7.0, 7.0, 7.0]));
}

#[test]
fn a_comparison_ranks_what_fits_and_says_why_the_rest_does_not() {
    let found = json("compare --pp 4 --microbatches 6 --limit 4");
    let of = |name: &str| {
        let all = found["schedules"].as_array().unwrap();
        all.iter().find(|it| it["schedule"] == name).unwrap().clone()
    };
    let fits: Vec<bool> =
        found["schedules"].as_array().unwrap().iter().map(|it| it["fits"].as_bool().unwrap()).collect();
    assert!(fits.is_sorted_by(|a, b| a >= b), "those that fit come first: {fits:?}");
    assert!(of("ZBH1")["throughput_gain"].as_f64().unwrap() > 0.2);
    assert_eq!((of("GPipe")["fits"].clone(), of("GPipe")["peak"][0].clone()), (false.into(), 6.0.into()));
    assert_eq!(found["refused"][0]["schedule"], "DualPipeV");
    assert!(found["refused"][0]["why"].as_str().unwrap().contains("8 microbatches"), "{found}");
    let text = done("compare GPipe ZBH1 --pp 4 --microbatches 6 --limit 4");
    assert!(text.contains("over the limit: rank 0 would hold 6 of 4; ZBH1 fits"), "{text}");
}

#[test]
fn without_splittable_weight_gradients_zero_bubble_gains_nothing_over_1f1b() {
    let gain = |share: &str| {
        let found =
            json(&format!("compare ZBH1 auto --pp 4 --microbatches 8 --limit 4 --splittable {share}"));
        let gains =
            found["schedules"].as_array().unwrap().iter().map(|it| it["throughput_gain"].as_f64().unwrap());
        gains.fold(0.0, f64::max)
    };
    assert!((gain("1") - 6.0 / 27.0).abs() < 1e-9, "{}", gain("1"));
    assert!(gain("0.5") > 0.0 && gain("0.5") < gain("1"));
    assert!(gain("0").abs() < 1e-9);
}

#[test]
fn an_automatic_schedule_is_written_as_csv_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.csv");
    let path = path.to_str().unwrap();
    let numbers = "--times 1,1.2,0.7,0.1 --limit 3";
    let made = json(&format!("simulate auto --pp 4 --microbatches 8 {numbers}"));
    done(&format!("show auto --pp 4 --microbatches 8 {numbers} --format csv -o {path}"));
    let read = json(&format!("simulate --csv {path} {numbers}"));
    assert_eq!(
        (read["makespan"].clone(), read["ranks"].clone()),
        (made["makespan"].clone(), made["ranks"].clone())
    );
    assert!(
        made["ranks"].as_array().unwrap().iter().all(|rank| rank["peak"].as_f64().unwrap() <= 3.0),
        "{made}"
    );
    assert!(done(&format!("check --csv {path}")).starts_with("valid  "));
}

#[test]
fn pictures_and_traces_are_whole() {
    let svg = done("show ZBVZeroBubble --pp 4 --microbatches 8 --format svg");
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("ZBVZeroBubble: 4 ranks"),
        "{svg}"
    );
    let trace = done("show 1F1B --pp 4 --microbatches 8 --format chrome");
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    let slices = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count();
    assert_eq!(slices, 64);
}

#[test]
fn refusals_name_the_cell_and_what_to_do_with_the_code_of_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wrong.csv");
    fs::write(&path, "0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B1\n").unwrap();
    let refused = |arguments: &str, code: i32, said: &str| {
        let answer = schedule(arguments);
        assert!(answer.err.contains(said), "{arguments}: {}", answer.err);
        assert_eq!((answer.code, answer.out.as_str()), (Some(code), ""), "{arguments}");
    };
    refused(&format!("check --csv {}", path.display()), 78, "rank 1, step 3, cell 1B1");
    refused("check --csv nothing.csv", 10, "nothing.csv");
    refused("show 1F1B --microbatches 4", 78, "--pp is not given");
    refused("show 1F2B --pp 2 --microbatches 4", 78, "the nearest is 1F1B");
    refused(
        "show Interleaved1F1B --pp 2 --microbatches 4 --stages-per-rank 1",
        78,
        "at least 2 stages on each rank",
    );
    refused("simulate auto --pp 2 --microbatches 4 --limit 0.5", 78, "raise its limit");
    refused("simulate 1F1B --pp 2 --microbatches 4 --times 1,2", 2, "three or four");
    refused(
        "simulate 1F1B --pp 2 --microbatches 4 --limit 1 --times 1,1,1 --times 1,1,1 --times 1,1,1",
        78,
        "--times",
    );
}
