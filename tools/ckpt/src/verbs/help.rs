//! `ckpt help [TOPIC]`: topics that are not verbs, and the verbs' own help.

use std::fmt::Write;

use dcp::{Error, ErrorKind, Result};

use crate::{cli, exit, output};

const TOPICS: &[(&str, &str)] = &[
    ("retention", RETENTION),
    ("targets", TARGETS),
    ("meshes", MESHES),
    ("formats", FORMATS),
    ("placement", PLACEMENT),
    ("stacking", STACKING),
    ("workers", WORKERS),
    ("rank-state", RANK_STATE),
];

const TARGETS: &str = "\
A checkpoint is named as PATH[@REVISION][#FQN-GLOB].

  run/ckpt                  a root of the native store: its newest commit
  run/ckpt@latest~2         the commit before the one before it
  run/ckpt@step:1000        the newest commit of step 1000
  run/ckpt@seq:42           the commit of sequence number 42
  run/ckpt@tag:best         the commit that a tag names
  run/ckpt@9f3a             the commit whose manifest's digest begins so
  run/ckpt#layers.3.**      only tensors whose FQN matches; * stays within a segment, ** does not
  s3://bucket/run@step:1000 a root in a bucket; also gs://, az://, abfss:// (builds with those features)
  model.safetensors, a Hugging Face folder, a torch DCP folder, a .pt: found by content
";

const MESHES: &str = "\
A mesh has named, ordered axes; the last one varies fastest from rank to rank.

  4x2x8                     dp=4 pp=2 tp=8
  2x2                       dp=2 tp=2
  8                         dp=8
  dp=4,pp=2,tp=8            by name; also ep, cp, dp_shard, dp_replicate
  dp2,tp2                   the same, shorter
";

const FORMATS: &str = "\
Read and written, found by content; --as takes the name.

  native        our own store: committed, hashed, fingerprinted
  torch-dcp     torch.distributed.checkpoint folders, torch 2.1 to 2.13 (written: for 2.4 and later)
  pt            torch.save archives: .pt, .pth, .bin
  safetensors   one file
  hf            a Hugging Face folder: config.json, safetensors and their index
";

const PLACEMENT: &str = "\
A placement rule says how a tensor lies on any mesh: AXIS:DIMENSION cuts in cutting order, and the pipeline stage.

  tp:0,dp:0,pp:layer        rows cut over tp, each part over dp; on the stage of its layer
  dp:0,pp:first             rows cut over dp, on the first stage; an axis that is not named replicates
  replicate                 whole, everywhere
  dp+cp:0                   rows cut over both axes as if they were one
  tp:0%128,pp:first         rows padded to a multiple of 128 times tp before they are cut; padding holds no element
  ep:expert,tp:0,pp:layer   one expert's tensor: on the part of ep that has this expert
  ep:0,tp:1,pp:layer        a tensor of all experts, one after another
  tp:1,pp:layers@0          a tensor of all layers: each stage has the slices of its own

A rules file has more: `parts = \"gate,up\"` names the fused parts that a tp cut falls inside, `divides = \"heads\"` what it
must not break.

Rules come from, later ones winning: the checkpoint itself, --preset, --rules FILE, --place GLOB=RULE.
";

const RANK_STATE: &str = "\
State that is no tensor follows its rule when the mesh changes: what is one value for the run is kept; what each data rank has of its
own (dataloader.dp_rank_0, dataloader.dp_rank_1 …) is kept while the number of data ranks stays, that is dp, or dp_replicate times
dp_shard; what belongs to one rank of all is kept on the same mesh only.

Where the number of data ranks changes, say of each leaf of such a value what becomes of it. Its path leaves the rank out:

  --rank-state dataloader.token_buffer=concat     lists joined in the order of ranks, and cut into contiguous parts
  --rank-state dataloader.samples=interleave      lists: item j of rank r of R is item j*R+r of the whole
  --rank-state dataloader.tokens_seen=sum         numbers added up and shared out, what is left over on the first ranks
  --rank-state dataloader.sample_idx=same         must agree on all ranks, and is kept
  --rank-state dataloader.world_size=ranks        the number of data ranks, rewritten
  --rank-state 'dataloader.workers.**=drop'       left out

A path is a pattern (* within a segment, ** any number of them), and a rule covers all below what it matches. The last one that covers a
leaf decides. A leaf that none covers is refused, with its value: nothing is guessed, altered or lost. Values are JSON or pickles, also
pickles within pickles; they are read as data, and nothing in them is run.

Rules come from, the first that covers winning: --rank-state, [[rank_state]] tables (match, how) of --rules FILE, the checkpoint itself: a
native store keeps them, and `ckpt inspect` shows them. --drop-per-rank leaves out whatever can't follow and no rule is about.

Rules are for values of the whole run too: ranks rewrites the number of data ranks in them, drop leaves them out. How many data ranks there
were is told by the values themselves, by --from, by the mesh that the checkpoint records; all that is told has to agree.

Tensors whose names name a rank (rng.rank_0), and which are no parameters, belong to it: on another mesh they are refused, or left out by
--drop-per-rank or a drop rule. Without --to everything stays as it is, and no mesh is recorded for it where it is not the source's own.
";

const STACKING: &str = "\
Experts, or layers, are tensors of their own in some models' names, and one tensor with a dimension for them in others'. `convert`,
`reshard` and `export` make the one of the other; the moments of the optimizer come along.

  --stack experts           the pairs of names that a rules file, or else the preset, knows for experts
  --stack layers            the same for layers
  --stack 'layers.{layer}.mlp.experts.{expert}.w1.weight=layers.{layer}.moe.w1@0'
                            a pair: MEMBERS=STACK@AXIS; {layer} and {expert} are numbers, any other {name} is a segment, {**name}
                            are several; the one that only members have numbers them; AXIS is the stack's new dimension
  --unstack ...             the other way, by the same words and texts; done first where both are given
  PATH#GLOB                 chooses among the names that the source has

In a rules file (--rules), which the words look at first:

  [[stack]]
  members = \"layers.{layer}.mlp.experts.{expert}.{part}.weight\"
  stack = \"layers.{layer}.moe.{part}@0\"

Members are numbered from 0, each once, of one shape and dtype. A stack has one scalar of the optimizer (step): members whose
scalars differ are refused. Placement follows: ep:expert becomes a cut of the new dimension over ep, pp:layer becomes pp:layers@AXIS,
unless a rule has the new name. What is made is proven by the fingerprints that the source records, in its own tensors.
";

const RETENTION: &str = "\
Which checkpoints stay is decided by `ckpt forget`, how their bytes go by `ckpt gc`.

  always stays              the newest of a run, the newest found whole by `ckpt verify --record`, what is tagged or pinned
  --keep-last N             the newest N of the run's line: the newest and what it goes on from
  --keep-every K            the first checkpoint of every K training steps
  --keep-within 14d         what is no older, by the store's clock
  --keep-best loss:min:3    the best by a metric that was saved with the checkpoints

What one rule keeps stays. `--dry-run` shows all reasons. What the run has not gone on from (it fell back behind it) stays
while it is newer than the oldest of the last N.

`ckpt gc` condemns the folders that no checkpoint needs, and deletes them when they were condemned a grace period ago. Saves
that were stopped count as garbage once nothing was written to them for a day. Folders of others are never touched.
";

const WORKERS: &str = "\
Many processes may write one native target with the same command, each a share of its files; who finishes last commits.

  --worker 1/4              the second of four
  --worker auto             as RANK and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK (Open MPI) or SLURM_PROCID (srun) say
  --worker auto/8           one of eight, as JOB_COMPLETION_INDEX (a Kubernetes indexed Job) says
  CKPT_WORKER               the same, for all commands of a script

Name the checkpoint, the same for all: PATH@seq:12. A worker that was lost is started again; the same command without --worker finishes
what all of them left.
";

/// Prints the topic's text to stdout.
pub(crate) fn run(topic: Option<&str>) -> Result<exit::Code> {
    let text = match topic {
        None => cli::command().render_long_help().ansi().to_string(),
        Some("exit-codes") => exit_codes(),
        Some(topic) => match TOPICS.iter().find(|(name, _)| *name == topic) {
            Some((_, text)) => (*text).to_owned(),
            None => verb_help(topic)?,
        },
    };
    output::print(&text)?;
    Ok(exit::DONE)
}

fn exit_codes() -> String {
    let mut text = String::from("Exit codes are stable; any other number means failure.\n\n");
    for code in exit::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:>3}  {}", code.number, code.meaning);
    }
    text
}

fn verb_help(verb: &str) -> Result<String> {
    let mut command = cli::command();
    command.build();
    let known: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    let found = command.find_subcommand_mut(verb).map(|sub| sub.render_long_help().ansi().to_string());
    found.ok_or_else(|| {
        let topics =
            TOPICS.iter().map(|(name, _)| *name).chain(["exit-codes"]).collect::<Vec<_>>().join(", ");
        Error::new(ErrorKind::NotFound, format!("no help on {verb:?}"))
            .hint(format!("topics: {topics}; verbs: {}", known.join(", ")))
    })
}
