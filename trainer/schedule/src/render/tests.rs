//! Drawings: what is on them, that they fit, that they are well-formed.

use std::collections::HashMap;

use super::*;
use crate::{Memory, Shape, Times, generate, memory, named, simulate};

/// Draws `name` on `ranks` ranks.
fn drawn<T>(
    name: &str,
    (ranks, per_rank, microbatches): (usize, usize, usize),
    draw: impl Fn(&Picture<'_>) -> T,
) -> T {
    let shape = Shape { stages: ranks * per_rank, ranks, microbatches };
    let table = generate(named(name).unwrap(), shape).unwrap();
    let simulation = simulate(&table, &Times::UNIT.of_part(per_rank)).unwrap();
    let held = memory(&table, &simulation, &Memory::live(&table.placement));
    draw(&Picture {
        title: "a <title> & \"more\"\u{1b}",
        table: &table,
        simulation: &simulation,
        memory: &held,
        memory_unit: "microbatches",
    })
}

fn on(width: usize, colour: bool) -> impl Fn(&Picture<'_>) -> String {
    move |picture| terminal(picture, Terminal { width, colour, marks: true })
}

#[test]
fn one_f_one_b_is_drawn_slot_by_slot_with_what_is_sent() {
    let text = drawn("1F1B", (2, 1, 3), on(80, false));
    assert_eq!(
        text,
        "a <title> & \"more\"\u{fffd}\n\
         \x20      0              5              10\n\
         rank 0 F0 F1 ······B0─── F2 B1─── ···B2───\n\
         \x20       ▼  ▼       △      ▼ △        △\n\
         rank 1 ···F0 B0─── F1 B1─── F2 B2─── ······\n\
         \x20         ▽      ▲ ▽      ▲ ▽      ▲\n\
         \n\
         F forward   B backward, both   · idle   ▼▲ sends, ▽△ receives activations, gradients\n"
    );
}

#[test]
fn lines_are_no_wider_than_the_terminal_and_large_steps_stay_short() {
    for (name, numbers) in [
        ("ZBH2", (4, 1, 8)),
        ("InterleavedZeroBubble", (4, 2, 8)),
        ("1F1B", (8, 1, 64)),
        ("ZBH1", (16, 1, 256)),
    ] {
        for width in [60, 80, 120] {
            let text = drawn(name, numbers, on(width, false));
            let widest = text
                .lines()
                .skip(1)
                .filter(|line| !line.contains("idle"))
                .map(|line| line.chars().count())
                .max();
            assert!(widest.unwrap() <= width, "{name} {width}: {widest:?}\n{text}");
            let lines = text.lines().count();
            assert!(lines <= 4 * (2 * numbers.0 + 2) + 2, "{name} {width}: {lines} lines");
        }
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let (plain, coloured) =
        (drawn("ZBH1", (4, 1, 8), on(200, false)), drawn("ZBH1", (4, 1, 8), on(200, true)));
    let mut bare = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        bare.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    bare.push_str(rest);
    let letters = |text: &str| {
        text.lines()
            .filter(|line| line.starts_with("rank"))
            .map(|line| line.replace(['─', ' ', '·'], ""))
            .collect::<Vec<_>>()
    };
    assert_eq!(letters(&bare), letters(&plain));
    assert!(coloured.contains("\x1b[0m") && !plain.contains('\x1b'));
}

#[test]
fn every_cell_and_every_transfer_is_in_the_picture_and_titles_are_escaped() {
    let text = drawn("InterleavedZeroBubble", (4, 2, 8), svg);
    assert_eq!(text.matches("class=\"cell ").count(), 4 * 2 * 8 * 3);
    // Seven boundaries, each crossed by eight activations and eight gradients.
    assert_eq!(
        text.matches("<path class=\"down\" d=\"M").count() + text.matches("<path class=\"up\" d=\"M").count(),
        7 * 16 + 2
    );
    assert!(text.contains("a &lt;title&gt; &amp; &quot;more&quot;\u{fffd}"));
    assert!(text.contains("prefers-color-scheme:dark") && text.contains("peak 4"));
    for tag in ["g", "svg", "text", "title", "style"] {
        assert_eq!(
            text.matches(&format!("<{tag}>")).count() + text.matches(&format!("<{tag} ")).count(),
            text.matches(&format!("</{tag}>")).count(),
            "{tag}"
        );
    }
}

#[test]
fn a_trace_has_a_process_for_each_rank_and_arrows_that_begin_and_end_within_slices() {
    let text = drawn("ZBVZeroBubble", (4, 2, 8), |picture| chrome(picture, 1000.0));
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|it| it["ph"] == phase).cloned().collect::<Vec<_>>();
    let slices = of("X");
    assert_eq!(slices.len(), 4 * 2 * 8 * 3);
    let number = |it: &serde_json::Value, key: &str| it[key].as_f64().unwrap();
    let (starts, ends) = (of("s"), of("f"));
    // Of seven boundaries, the turning point of the V is within a rank.
    assert_eq!((starts.len(), ends.len()), (6 * 16, 6 * 16));
    let started: HashMap<u64, f64> =
        starts.iter().map(|it| (it["id"].as_u64().unwrap(), number(it, "ts"))).collect();
    for arrow in starts.iter().chain(&ends) {
        let at = number(arrow, "ts");
        let within = |slice: &&serde_json::Value| {
            slice["pid"] == arrow["pid"]
                && number(slice, "ts") <= at
                && at <= number(slice, "ts") + number(slice, "dur")
        };
        assert!(slices.iter().any(|slice| within(&slice)), "{arrow}");
    }
    for end in &ends {
        assert!(started[&end["id"].as_u64().unwrap()] <= number(end, "ts"));
    }
    let names =
        of("M").into_iter().filter(|it| it["name"] == "process_name").map(|it| it["args"]["name"].clone());
    assert_eq!(names.collect::<Vec<_>>()[0], "rank 0 (stages 0, 7)");
    assert!(!of("C").is_empty());
    assert_eq!(trace["otherData"]["title"], "a <title> & \"more\"\u{1b}");
}
