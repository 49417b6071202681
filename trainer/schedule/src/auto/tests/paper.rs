//! The zero-bubble paper's Table 5 (arXiv 2401.10241v1): bubble rates of six schedules for the times that its Table 9 gives,
//! by the paper's definition: the share of the longest rank's own time beyond m(F + B + W).

use super::super::{Effort, Goal, Problem, greedy, plan};
use crate::{Shape, Times, generate, named, simulate};

/// A model: pipeline ranks, hidden size, heads, stages of each rank in its interleaved runs, and its three settings.
struct Model {
    ranks: usize,
    hidden: f64,
    heads: f64,
    interleaved: usize,
    settings: [Setting; 3],
}

/// Microbatches, milliseconds of F, B, W and a transfer, and the published rates.
struct Setting {
    microbatches: usize,
    times: [f64; 4],
    /// 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p, ZB-2p.
    rates: [f64; 6],
}

const fn setting(microbatches: usize, times: [f64; 4], rates: [f64; 6]) -> Setting {
    Setting { microbatches, times, rates }
}

const MODELS: [Model; 4] = [
    Model {
        ranks: 8,
        hidden: 2304.0,
        heads: 24.0,
        interleaved: 3,
        settings: [
            setting(24, [18.522, 18.086, 9.337, 0.601], [0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433]),
            setting(32, [18.513, 18.086, 9.331, 0.626], [0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039]),
            setting(64, [18.546, 18.097, 9.321, 0.762], [0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026]),
        ],
    },
    Model {
        ranks: 8,
        hidden: 4096.0,
        heads: 32.0,
        interleaved: 4,
        settings: [
            setting(24, [29.718, 29.444, 19.927, 0.527], [0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029]),
            setting(32, [29.802, 29.428, 19.530, 0.577], [0.1898, 0.0628, 0.1045, 0.0559, 0.1045, 0.0022]),
            setting(64, [29.935, 29.621, 19.388, 0.535], [0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010]),
        ],
    },
    Model {
        ranks: 16,
        hidden: 5120.0,
        heads: 40.0,
        interleaved: 3,
        settings: [
            setting(48, [11.347, 11.248, 8.132, 0.377], [0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066]),
            setting(64, [11.307, 11.254, 8.101, 0.379], [0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054]),
            setting(128, [11.325, 11.308, 8.109, 0.378], [0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028]),
        ],
    },
    Model {
        ranks: 32,
        hidden: 6144.0,
        heads: 48.0,
        interleaved: 2,
        settings: [
            setting(96, [10.419, 10.207, 7.715, 0.408], [0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038]),
            setting(128, [10.408, 10.204, 7.703, 0.408], [0.2168, 0.1164, 0.1106, 0.0490, 0.1106, 0.0029]),
            setting(256, [10.402, 10.248, 7.698, 0.460], [0.1352, 0.0624, 0.0594, 0.0257, 0.0594, 0.0018]),
        ],
    },
];

const SEQUENCE: f64 = 1024.0;

impl Model {
    /// What is kept between I and W, as a share of the activations of a microbatch: 32h to 34h + 5as of each layer.
    fn kept(&self) -> f64 {
        32.0 * self.hidden / (34.0 * self.hidden + 5.0 * self.heads * SEQUENCE)
    }

    fn rate(&self, name: &str, per_rank: usize, setting: &Setting) -> f64 {
        let shape =
            Shape { stages: self.ranks * per_rank, ranks: self.ranks, microbatches: setting.microbatches };
        let table = generate(named(name).unwrap(), shape).unwrap();
        simulate(&table, &setting.durations().of_part(per_rank)).unwrap().bubbles().longest_rank
    }

    /// With memory for so many microbatches times the ranks.
    fn automatic(&self, limit: f64, setting: &Setting) -> f64 {
        let limits = (self.kept(), limit * self.ranks as f64);
        let problem = Problem::even(self.ranks, setting.microbatches, setting.durations(), limits);
        let problem = Problem { goal: Goal::LongestRank, ..problem };
        let plan = greedy(&problem).unwrap();
        simulate(&plan.table, &setting.durations()).unwrap().bubbles().longest_rank
    }
}

impl Setting {
    const fn durations(&self) -> Times {
        let [forward, input, weight, transfer] = self.times;
        Times { forward, input, weight, transfer }
    }
}

/// All settings, `check`ed against the column; how many there were.
fn column(column: usize, within: f64, rate: impl Fn(&Model, &Setting) -> f64) {
    let mut checked = 0;
    for model in &MODELS {
        for setting in &model.settings {
            let (published, found) = (setting.rates[column], rate(model, setting));
            let (p, m) = (model.ranks, setting.microbatches);
            assert!(
                (found - published).abs() <= within,
                "p={p} h={} m={m}: {found:.5}, not {published}",
                model.hidden
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 12);
}

/// Four decimals were published; a rate that lies between two of them may be rounded either way.
const FOUR_DECIMALS: f64 = 0.000_050_001;

#[test]
fn rates_of_1f1b_are_the_published_ones() {
    column(0, FOUR_DECIMALS, |model, setting| model.rate("1F1B", 1, setting));
}

#[test]
fn rates_of_interleaved_1f1b_are_the_published_ones_within_what_transfers_explain() {
    column(1, 0.004, |model, setting| model.rate("Interleaved1F1B", model.interleaved, setting));
}

#[test]
fn rates_of_zb_h1_are_the_published_ones() {
    column(2, FOUR_DECIMALS, |model, setting| model.rate("ZBH1", 1, setting));
}

#[test]
fn rates_of_zb_h2_are_the_published_ones() {
    column(3, FOUR_DECIMALS, |model, setting| model.rate("ZBH2", 1, setting));
}

#[test]
fn the_greedy_scheduler_with_memory_of_p_microbatches_has_the_published_rates_of_zb_1p() {
    column(4, FOUR_DECIMALS, |model, setting| model.automatic(1.0, setting));
}

#[test]
fn the_greedy_scheduler_with_memory_of_2p_microbatches_has_the_published_rates_of_zb_2p() {
    column(5, FOUR_DECIMALS, |model, setting| model.automatic(2.0, setting));
}

#[test]
fn with_memory_of_less_than_p_microbatches_a_plan_takes_far_less_than_the_greedy_scheduler() {
    for (model, at_most) in [(&MODELS[0], 0.6), (&MODELS[1], 0.6), (&MODELS[2], 0.4)] {
        let setting = &model.settings[0];
        let limits = (model.kept(), 0.75 * model.ranks as f64);
        let problem = Problem::even(model.ranks, setting.microbatches, setting.durations(), limits);
        let (first, best) = (greedy(&problem).unwrap().cost, plan(&problem, Effort::NONE).unwrap().cost);
        assert!(best <= at_most * first, "p={}: {best} of {first}", model.ranks);
    }
}
