//! A [`Report`] for people: what it is about, the answer first, then where it comes from, the assumptions last.

use std::fmt::{self, Formatter, Write as _};

use super::{
    Balance, Candidate, Ledger, Report,
    quantity::{bytes, count, seconds},
    report::{Closely, Excluded},
};

/// Meshes that are listed for each reason.
const LISTED: usize = 6;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        match &self.asked {
            Some(asked) => self.asked(f, asked)?,
            None => self.ranking(f)?,
        }
        self.assumptions(f)
    }
}

impl Report {
    fn head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (sizes, cluster) = (&self.model.sizes, &self.cluster);
        writeln!(
            f,
            "model    {}: {} parameters ({}); {} layers of {}, embedding {}, head {}",
            self.model.name,
            count(self.params as f64),
            self.params,
            sizes.layers,
            count(self.model.layer as f64),
            count(self.model.embedding as f64),
            count(self.model.head as f64)
        )?;
        writeln!(
            f,
            "cluster  {} ranks, {} a node, {} each ({} reserved), {:.0} TFLOP/s, links {}/s in a node, {}/s between nodes",
            cluster.ranks,
            cluster.per_node,
            bytes(cluster.memory),
            bytes(cluster.reserve),
            cluster.flops / 1e12,
            bytes(cluster.intra),
            bytes(cluster.inter)
        )?;
        let (global, micro, seq) = self.batch;
        writeln!(
            f,
            "batch    {global} sequences of {seq} tokens a step ({} tokens), {micro} a microbatch; schedule {}",
            count((global * seq) as f64),
            self.schedule
        )?;
        writeln!(
            f,
            "state    {} at 16 B a parameter: at least {} cards of {}, activations not counted",
            bytes(self.state),
            self.cards,
            bytes(cluster.memory)
        )?;
        let (four, two) = self.microbatches;
        let degrees = self.tensor_degrees.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        writeln!(
            f,
            "choices  tp: {degrees}.  pp: {} layers at 16 B fill half a card, so {} stages without sharding.  \
             microbatches: {four} to begin with (4 x stages), at least {two}",
            self.layers_on_one, self.stages
        )
    }

    fn ranking(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.ranked.is_empty() {
            writeln!(f, "\nno mesh of {} ranks fits", self.cluster.ranks)?;
        } else {
            let (shown, of) = (self.ranked.len(), self.fitting);
            writeln!(f, "\nmeshes that fit, fastest first ({shown} of {of}; mesh is dp x pp x tp)")?;
            writeln!(
                f,
                "  {:<10} {:<14} {:>9} {:>6} {:>7} {:>6} {:>9} {:>4}",
                "mesh", "strategy", "tokens/s", "mfu", "bubble", "comm", "memory", "M"
            )?;
        }
        for it in &self.ranked {
            let Candidate { cut, prediction, batch, .. } = &it.candidate;
            writeln!(
                f,
                "  {:<10} {:<14} {:>9} {:>5.1}% {:>6.1}% {:>5.1}% {:>9} {:>4}",
                it.mesh,
                cut.strategy.name(),
                count(prediction.tokens_per_second),
                100.0 * prediction.mfu,
                100.0 * prediction.bubble.of_total,
                100.0 * prediction.communication,
                bytes(it.peak),
                batch.microbatches
            )?;
        }
        self.out(f)
    }

    /// What is out, by reason.
    fn out(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut kinds: Vec<&str> = self.excluded.iter().map(|it| it.misfit.kind()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if !kinds.is_empty() {
            writeln!(f, "\nmeshes that are out")?;
        }
        for kind in kinds {
            let these: Vec<&Excluded> = self.excluded.iter().filter(|it| it.misfit.kind() == kind).collect();
            let names: Vec<&str> = these.iter().take(LISTED).map(|it| it.mesh.as_str()).collect();
            let more = if these.len() > LISTED {
                format!(" and {} more", these.len() - LISTED)
            } else {
                String::new()
            };
            writeln!(f, "  {kind}: {}{more}", names.join(", "))?;
            if let Some(first) = these.first() {
                writeln!(f, "      {}: {}; {}", first.mesh, first.said, first.remedy)?;
            }
        }
        Ok(())
    }

    fn asked(&self, f: &mut Formatter<'_>, asked: &Closely) -> fmt::Result {
        let Candidate { cut, prediction, batch, .. } = &asked.candidate;
        writeln!(
            f,
            "\nmesh     {cut} (dp x pp x tp), {}, {} shards x {} copies; {} microbatches = {} / (micro-batch {} x dp {})",
            cut.strategy,
            cut.shard,
            cut.replicas(),
            batch.microbatches,
            batch.global,
            batch.micro,
            cut.dp
        )?;
        match &asked.misfit {
            Some(misfit) => writeln!(f, "answer   does not fit: {misfit}\n         {}", misfit.remedy())?,
            None => writeln!(
                f,
                "answer   fits; {} tokens/s, {} a step, mfu {:.1} %",
                count(prediction.tokens_per_second),
                seconds(prediction.seconds.step),
                100.0 * prediction.mfu
            )?,
        }
        self.time(f, asked)?;
        self.memory(f, asked)?;
        self.traffic(f, asked)?;
        balance(f, asked)
    }

    fn time(&self, f: &mut Formatter<'_>, asked: &Closely) -> fmt::Result {
        let time = &asked.candidate.prediction.seconds;
        writeln!(f, "\ntime of a step")?;
        for (what, value) in [
            ("computing, on the slowest rank", time.compute),
            ("collectives of tensor ranks", time.tensor),
            ("waiting in the pipeline (bubble and transfers)", time.bubble),
            ("data-parallel traffic that nothing hides", time.exposed),
        ] {
            writeln!(f, "  {:<48} {:>9}  {:>5.1} %", what, seconds(value), 100.0 * value / time.step)?;
        }
        let unit = &asked.unit_bubble;
        let formula = unit
            .formula
            .map_or_else(String::new, |formula| format!(" (by formula {:.1} %)", 100.0 * formula));
        writeln!(
            f,
            "  bubble of {} with F = I = W: {:.1} % of all ranks' time{formula}; {:.1} % over the ideal time; {:.1} % of the \
             longest rank's span",
            self.schedule,
            100.0 * unit.of_total,
            100.0 * unit.of_ideal,
            100.0 * unit.of_span
        )?;
        if asked.candidate.prediction.communication > 0.3 {
            writeln!(
                f,
                "  warning: over 30 % of the step is communication that nothing hides: choose another mesh"
            )?;
        }
        Ok(())
    }

    fn memory(&self, f: &mut Formatter<'_>, asked: &Closely) -> fmt::Result {
        let have = self.cluster.memory - self.cluster.reserve;
        let ledgers = &asked.candidate.memory;
        let totals: Vec<String> =
            ledgers.iter().map(|it| format!("pp{} {}", it.pp, bytes(it.total()))).collect();
        writeln!(f, "\nmemory of a rank, of {} that can be used: {}", bytes(have), totals.join(", "))?;
        if let Some(fullest) = asked.candidate.fullest() {
            ledger(f, fullest)?;
        }
        let (right, wrong) = (&asked.article, &asked.article_without_pipeline);
        writeln!(
            f,
            "  at 16 B a parameter: {} of state ({} ways); {} where the pipeline is forgotten ({} ways), as some articles count",
            bytes(right.state),
            right.ways,
            bytes(wrong.state),
            wrong.ways
        )
    }

    fn traffic(&self, f: &mut Formatter<'_>, asked: &Closely) -> fmt::Result {
        let cut = &asked.candidate.cut;
        writeln!(
            f,
            "\ntraffic of a rank and step, sent (weights in {} B, gradients in {} B)",
            self.policy.compute, self.policy.reduce
        )?;
        for it in &asked.data {
            let across = if it.across > 0.0 {
                format!(" + {} across copies", bytes(it.across))
            } else {
                String::new()
            };
            let times =
                if it.gathers > 0.0 { format!(", gathered {} x a step", it.gathers) } else { String::new() };
            let chosen = if it.strategy == cut.strategy { " <- this plan" } else { "" };
            writeln!(
                f,
                "  {:<14} {:>9} = {} gathering + {} reducing{across}{times}{chosen}",
                it.strategy.name(),
                bytes(it.total()),
                bytes(it.gather),
                bytes(it.reduce)
            )?;
        }
        let (right, wrong) = (&asked.article, &asked.article_without_pipeline);
        writeln!(
            f,
            "  with everything in 2 B and one gather a use: 2x {} (DDP, SHARD_GRAD_OP), 3x {} (FULL_SHARD); {} and {} where \
             the pipeline is forgotten",
            bytes(right.traffic_twice),
            bytes(right.traffic_thrice),
            bytes(wrong.traffic_twice),
            bytes(wrong.traffic_thrice)
        )?;
        let within = |axis| {
            let table = cut.groups(axis, &self.cluster);
            if table.within_node == table.groups.len() { "within a node" } else { "across nodes" }
        };
        let tokens = if self.policy.sequence { ", tokens cut over them" } else { "" };
        writeln!(
            f,
            "  tensor groups  {:>9} a rank, {}{tokens}",
            bytes(asked.tensor),
            within(super::Axis::Tp)
        )?;
        writeln!(
            f,
            "  stages         {:>9} over each boundary forward, the same back, {}",
            bytes(asked.pipeline),
            within(super::Axis::Pp)
        )
    }

    fn assumptions(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\nassumed: products reach {:.0} % of the card's rate; data-parallel traffic hides behind {:.0} % of computing; \
             rings; activations {}, attention's scores {}; computed again: {}; weights {} B, gradients reduced in {} B; messages are under way while \
             ranks compute (comm.mode = async); loading data, the optimizer and saves take no time",
            100.0 * self.cluster.efficiency,
            100.0 * self.cluster.overlap,
            match (self.policy.exact, self.policy.sequence) {
                (true, _) => "and sums of exact mode",
                (false, true) => "in 34 / tp s b h bytes a layer",
                (false, false) => "in 10 + 24 / tp s b h bytes a layer",
            },
            if self.policy.scores { "stored" } else { "not stored" },
            self.policy.recompute,
            self.policy.compute,
            self.policy.reduce
        )
    }
}

fn ledger(f: &mut Formatter<'_>, ledger: &Ledger) -> fmt::Result {
    for line in &ledger.lines {
        writeln!(f, "  {:<42} {:>9}  {}", line.what, bytes(line.bytes), line.how)?;
    }
    writeln!(f, "  {:<42} {:>9}  on pp{}", "together", bytes(ledger.total()), ledger.pp)
}

fn balance(f: &mut Formatter<'_>, asked: &Closely) -> fmt::Result {
    if asked.even.layers.len() < 2 {
        return Ok(());
    }
    let line = |it: &Balance| {
        let mut text = it.layers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let _ = write!(text, "  (dearest stage {:.2} x the mean)", it.ratio);
        text
    };
    writeln!(f, "\nlayers of each stage")?;
    writeln!(f, "  {:<42} {}", format!("{}, in parameters", asked.even_by), line(&asked.even))?;
    let counts: Vec<String> = asked.even.costs.iter().map(|cost| count(*cost)).collect();
    writeln!(f, "      parameters                             {}", counts.join(", "))?;
    writeln!(f, "  by {:<39} {}", asked.balanced_by, line(&asked.balanced))?;
    let split = asked.balanced.layers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    writeln!(f, "      parallelism.stage_split = [{split}]")
}
