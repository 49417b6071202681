//! `ckpt-train schedule check`: what a run would refuse, before it.

use serde_json::json;
use trainer::Result;

use super::{args::Check, subject::Setting};

pub(super) fn run(options: &Check) -> Result<u8> {
    let subject = Setting::new(&options.which.numbers)?.which(&options.which)?;
    let program = subject.program()?;
    let cells: usize = subject.table.ranks.iter().map(Vec::len).sum();
    let exchanges =
        program.table().ranks.iter().flatten().filter(|action| action.partner().is_some()).count() / 2;
    if options.which.numbers.json {
        return super::json(&json!({
            "schedule": subject.name,
            "ranks": subject.shape.ranks,
            "stages": subject.shape.stages,
            "microbatches": subject.shape.microbatches,
            "cells": cells,
            "exchanges": exchanges,
            "valid": true,
            "pair_order": true,
            "rendezvous": true,
            "notes": subject.notes,
        }));
    }
    let mut text = format!(
        "valid  {}\n  {cells} cells: every microbatch once forward and once backward on each of {} stages\n  {exchanges} \
         exchanges between ranks, in one order on both sides of every pair (rule A)\n  it runs to its end even if every send \
         waits for its receive (rule B)\n",
        subject.title(),
        subject.shape.stages
    );
    text.extend(subject.notes.iter().map(|note| format!("note   {note}\n")));
    super::super::print(&text)
}
