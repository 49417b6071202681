//! What a configuration says when it is right, and when it is not.

use std::{fs, path::PathBuf};

use proptest::prelude::*;

use super::{Strategy as Sharded, *};
use crate::{Error, mesh::MeshShape};

const BASE: &str = "data.folder = \"text\"\nmodel = { kind = \"llama\", dim = 96, layers = 6, heads = 24, ffn = 96, vocab = 240 }\n";

struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn given(text: &str, overrides: &[&str]) -> crate::Result<Resolved> {
    let files = Files::new(&[("run.toml", text)]);
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    resolve(Some(&files.path("run.toml")), &overrides)
}

fn refused(text: &str, overrides: &[&str], words: &[&str]) -> Error {
    let error = given(text, overrides).unwrap_err();
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    assert_eq!(error.kind(), crate::ErrorKind::Config);
    assert!(error.hint_text().is_some());
    error
}

#[test]
fn the_command_line_wins_over_the_file_and_the_file_over_defaults() {
    let text = format!("{BASE}[training]\nsteps = 7\nseq_len = 64\n");
    let resolved = given(&text, &["training.steps=9", "checkpoint.run=007", "optimizer.lr=1"]).unwrap();
    let config = &resolved.config;
    assert_eq!((config.training.steps, config.training.seq_len, config.training.micro_batch), (9, 64, 1));
    assert_eq!(config.checkpoint.run, "007");
    assert!((config.optimizer.lr - 1.0).abs() < f64::EPSILON);
    assert_eq!(resolved.origin("training.steps"), &Origin::CommandLine);
    assert_eq!(resolved.origin("training.micro_batch"), &Origin::Default);
    let Origin::File { path, line } = resolved.origin("training.seq_len") else { panic!() };
    assert!(path.ends_with("run.toml") && *line == 5, "{path}:{line}");
    assert_eq!(resolved.origin("lr_scheduler.decay_steps"), &Origin::Derived("training.steps"));
    assert_eq!(config.lr_scheduler.decay_steps, 9);
}

#[test]
fn what_is_included_lies_under_what_includes_it() {
    let files = Files::new(&[
        (
            "a.toml",
            "[model]\ndim = 8\nlayers = 1\nheads = 2\nffn = 8\n[data]\nfolder = \"a\"\n[training]\nsteps = 1\nseed = 1\nmicro_batch = 1\n",
        ),
        ("b.toml", "[training]\nsteps = 2\nseed = 2\n"),
        ("run.toml", "include = [\"a.toml\", \"b.toml\"]\n[training]\nsteps = 3\n"),
        ("loop.toml", "include = [\"loop.toml\"]\n"),
        ("lost.toml", "include = [\"absent.toml\"]\n"),
        ("odd.toml", "include = \"a.toml\"\n"),
    ]);
    let resolved = resolve(Some(&files.path("run.toml")), &[]).unwrap();
    let training = &resolved.config.training;
    assert_eq!((training.steps, training.seed, resolved.config.data.folder.as_str()), (3, 2, "a"));
    let refused = |name: &str| resolve(Some(&files.path(name)), &[]).unwrap_err().to_string();
    assert!(refused("loop.toml").contains("loop.toml:1: loop.toml is included in a circle"));
    assert!(refused("lost.toml").contains("absent.toml"));
    assert!(refused("odd.toml").contains("expected a list of paths"));
}

#[test]
fn unknown_keys_are_refused_with_their_line_and_the_nearest_known_one() {
    refused(
        &format!("{BASE}[training]\nstep = 5\n"),
        &[],
        &["run.toml:4", "`training.step`", "did you mean `training.steps`?"],
    );
    refused(BASE, &["optimizer.steps=5"], &["command line", "did you mean `training.steps`?"]);
    refused(BASE, &["trainnig.seed=5"], &["did you mean `training.seed`?"]);
    refused(BASE, &["training.global_batchsize=5"], &["did you mean `training.global_batch`?"]);
    refused("steps = 5\n", &[], &["run.toml:1", "unknown key `steps`", "did you mean `training.steps`?"]);
    let far = refused(BASE, &["zzz.qqq=5"], &["unknown key `zzz.qqq`"]);
    assert!(!far.to_string().contains("did you mean"), "{far}");
    refused("training = 5\n", &[], &["`training` is 5, expected a table: [training]"]);
}

#[test]
fn wrong_values_are_refused_with_what_was_expected() {
    let training = |line: &str| format!("{BASE}\n[training]\n{line}\n");
    refused(
        &training("steps = \"many\""),
        &[],
        &["run.toml:5", "`training.steps` is \"many\"", "a whole number of at least 1"],
    );
    refused(&training("steps = 0"), &[], &["is 0, expected a whole number of at least 1"]);
    refused(&training("seq_len = 1.5"), &[], &["is 1.5"]);
    refused(&training("mode = \"exat\""), &[], &["exact or fast", "did you mean \"exact\"?"]);
    refused(BASE, &["optimizer.lr=nan"], &["`optimizer.lr`", "a number of at least 0"]);
    refused(BASE, &["optimizer.betas=[0.9, 1.0]"], &["two numbers"]);
    refused(BASE, &["comm.step_timeout=soon"], &["\"soon\"", "a length of time"]);
    refused(BASE, &["comm.step_timeout=0"], &["comm.step_timeout is 0"]);
    refused(BASE, &["parallelism.mesh=2x0"], &["parallelism.mesh", "2x0"]);
    refused(BASE, &["parallelism.mesh=dp=2,ep=2"], &["no axis ep"]);
    refused(BASE, &["parallelism.schedule=1B1F"], &["GPipe, 1F1B"]);
    refused(BASE, &["checkpoint.root="], &["a text that is not empty"]);
    refused("[training\n", &[], &["run.toml:1: this is not TOML"]);
    refused("", &[], &["`data.folder` is not set"]);
    refused(
        BASE,
        &["debug.nan_step=3", "debug.nan_rank=1"],
        &["debug.nan_rank=1 is not on parallelism.mesh=1x1x1"],
    );
    refused(BASE, &["lr_scheduler.warmup_steps=500"], &["warmup_steps=500", "decay_steps=100"]);
    let keep = |count: &str| ["checkpoint.share=true".to_owned(), format!("checkpoint.keep_last={count}")];
    refused(BASE, &keep("1").each_ref().map(String::as_str), &["checkpoint.share=true", "keep_last=1"]);
    given(BASE, &keep("2").each_ref().map(String::as_str)).unwrap();
}

#[test]
fn codecs_are_given_for_all_roles_or_by_role_and_others_are_refused() {
    for (text, written) in [("planes", "planes"), ("planes, param=none", "planes,param=none")] {
        let codec = given(BASE, &[&format!("checkpoint.codec={text}")]).unwrap().config.checkpoint.codec;
        assert_eq!(codec.to_string(), written);
    }
    refused(BASE, &["checkpoint.codec=lz4"], &["checkpoint.codec", "none, zstd or planes"]);
    refused(BASE, &["checkpoint.codec=planes,weights=none"], &["checkpoint.codec", "none, zstd or planes"]);
    assert!(given(BASE, &[]).unwrap().config.checkpoint.codec.is_none());
}

#[test]
fn batch_sizes_that_do_not_multiply_out_are_refused_with_every_number() {
    let words =
        ["training.global_batch=10", "training.micro_batch=2", "dp=2", "= 4", "2x1x1", "8 or 12 would do"];
    refused(BASE, &["training.global_batch=10", "training.micro_batch=2", "parallelism.mesh=2x1x1"], &words);
    let words = ["training.microbatches=4", "training.micro_batch=1", "dp=1 = 4", "training.global_batch=8"];
    refused(BASE, &["training.microbatches=4"], &words);
    let words = ["global_batch=1 is no multiple", "; 4 would do"];
    refused(BASE, &["training.global_batch=1", "parallelism.mesh=4x1x1"], &words);
    let huge = i64::MAX;
    refused(BASE, &[&format!("training.micro_batch={huge}"), "parallelism.mesh=4x1x1"], &["no multiple"]);
    let resolved =
        given(BASE, &["training.global_batch=32", "training.micro_batch=2", "parallelism.mesh=4x1x1"])
            .unwrap();
    assert_eq!((resolved.batches.microbatches, resolved.batches.total()), (4, 16));
    assert_eq!(resolved.config.training.microbatches, 4);
}

#[test]
fn exact_mode_asks_for_powers_of_two_and_fast_mode_does_not() {
    let six = ["training.global_batch=12", "parallelism.mesh=2x1x1"];
    refused(BASE, &six, &["must be a power of two", "global_batch=12", "= 6"]);
    given(BASE, &[&six[..], &["training.mode=fast"]].concat()).unwrap();
    // One rank that has all microbatches has a whole tree of any number.
    given(BASE, &["training.global_batch=12"]).unwrap();
    refused(
        BASE,
        &["parallelism.mesh=1x1x2", "exact.virtual_tp=3"],
        &["exact.virtual_tp=3", "tp=2 does not divide"],
    );
    refused(BASE, &["parallelism.mesh=1x1x2", "exact.virtual_tp=6"], &["no power of two"]);
    assert_eq!(given(BASE, &["parallelism.mesh=1x1x2"]).unwrap().config.exact.virtual_tp, 2);
    assert_eq!(given(BASE, &["exact.virtual_tp=4"]).unwrap().config.exact.virtual_tp, 4);
}

#[test]
fn tokens_that_are_cut_over_ranks_must_divide_and_the_nearest_lengths_are_told() {
    let cut = |more: &[&'static str]| {
        [&["parallelism.mesh=1x1x4", "parallelism.sequence_parallel=true"], more].concat()
    };
    let odd = ["training.micro_batch=1", "training.seq_len=10"];
    refused(
        BASE,
        &cut(&odd),
        &[
            "training.micro_batch=1 x training.seq_len=10 = 10",
            "exact.virtual_tp=4",
            "training.seq_len=8 or training.seq_len=12",
        ],
    );
    refused(BASE, &cut(&[&odd[..], &["training.mode=fast"]].concat()), &["over tp=4", "1x1x4"]);
    refused(BASE, &cut(&["training.seq_len=3"]), &["; training.seq_len=4 would do"]);
    given(BASE, &cut(&["training.micro_batch=2", "training.seq_len=10"])).unwrap();
    // One rank owns all tokens, in exact mode one virtual rank.
    given(BASE, &["training.seq_len=9", "parallelism.sequence_parallel=true"]).unwrap();
    refused(
        BASE,
        &["training.seq_len=9", "parallelism.sequence_parallel=true", "exact.virtual_tp=2"],
        &["exact.virtual_tp=2"],
    );
    let elsewhere = given(BASE, &["parallelism.enable_sequence_parallel=true"]).unwrap();
    assert!(elsewhere.config.parallelism.sequence_parallel);
    assert!(!given(BASE, &[]).unwrap().config.parallelism.sequence_parallel);
    refused(BASE, &["parallelism.sequence_paralel=true"], &["did you mean `parallelism.sequence_parallel`?"]);
    refused(BASE, &["parallelism.sequence_parallel=on"], &["parallelism.sequence_parallel"]);
}

#[test]
fn a_strategy_is_one_line_and_names_from_elsewhere_mean_the_same() {
    for (names, strategy) in [
        (["FULL_SHARD", "zero3", "fsdp"], Sharded::FullShard),
        (["SHARD_GRAD_OP", "zero2", "shard_grad_op"], Sharded::ShardGradOp),
        (["NO_SHARD", "ddp", "DDP"], Sharded::NoShard),
    ] {
        for name in names {
            let line = format!("parallelism.fsdp.strategy={name}");
            let found = given(BASE, &["parallelism.mesh=2x1x1", &line]).unwrap();
            assert_eq!(found.config.fsdp.strategy, strategy, "{name}");
        }
    }
    refused(BASE, &["fsdp.strategy=full"], &["full_shard or shard_grad_op", "did you mean"]);
    refused(BASE, &["fsdp.reshard_after_forward=maybe"], &["default, always, never, true or false"]);
    let kept = given(BASE, &["parallelism.fsdp_reshard_after_forward=false"]).unwrap();
    assert_eq!(kept.config.fsdp.reshard_after_forward, Reshard::Never);
}

#[test]
fn degrees_of_replicas_and_shards_make_dp_where_nothing_else_says_it() {
    let degrees = [
        "parallelism.data_parallel_replicate_degree=2",
        "parallelism.data_parallel_shard_degree=4",
        "parallelism.pipeline_parallel_degree=2",
    ];
    let found = given(BASE, &degrees).unwrap();
    assert_eq!(found.config.parallelism.mesh.to_string(), "8x2x1");
    assert_eq!((found.config.fsdp.strategy, found.config.parallelism.dp_shard), (Sharded::HybridShard, 4));
    let found =
        given(BASE, &["parallelism.mesh=4x1x1", "parallelism.dp_replicate=2", "parallelism.dp_shard=-1"]);
    assert_eq!(found.unwrap().sharding.data, crate::mesh::DataSplit { replicate: 2, shard: 2 });
    let wrong = ["parallelism.mesh=4x1x1", "parallelism.dp_shard=3"];
    refused(BASE, &wrong, &["dp_shard=3", "is not dp=4", "4x1, 2x2, 1x4 would do"]);
    refused(BASE, &["parallelism.dp_shard=0"], &["a whole number of at least 1, or -1 for what is left"]);
}

#[test]
fn a_model_that_does_not_divide_is_refused_with_what_would() {
    let sizes = ModelSizes { heads: 8, kv_heads: 4, ffn: 96, layers: 6, vocabulary: 256 };
    let check = |overrides: &[&str]| {
        given(BASE, overrides)
            .and_then(|resolved| check_model(&resolved.config, &sizes))
            .map_err(|error| error.to_string())
    };
    check(&["parallelism.mesh=1x2x4"]).unwrap();
    let error = check(&["parallelism.mesh=1x1x8"]).unwrap_err();
    assert!(
        error.contains("4 KV heads do not divide over tp=8") && error.contains("dp=2 pp=1 tp=4"),
        "{error}"
    );
    let error = check(&["parallelism.mesh=1x1x2", "exact.virtual_tp=8"]).unwrap_err();
    assert!(error.contains("exact.virtual_tp=8 does not divide the model's 4 KV heads"), "{error}");
    let error = check(&["parallelism.mesh=1x2x1", "parallelism.stage_split=[3, 4]"]).unwrap_err();
    assert!(error.contains("3 + 4 = 7 layers, but the model has 6"), "{error}");
    check(&["parallelism.mesh=1x2x1", "parallelism.stage_split=[2, 4]"]).unwrap();
    let error = check(&["parallelism.mesh=1x9x1"]).unwrap_err();
    assert!(error.contains("9 stages") && error.contains("only 6 layers"), "{error}");
    refused(BASE, &["parallelism.stage_split=[3, 3]"], &["lists 2 stages, but pp=1"]);
}

#[test]
fn the_model_section_is_checked_by_what_the_kind_has() {
    refused("data.folder = \"text\"\n", &[], &["`model.dim` is not set: width of the residual stream"]);
    refused(BASE, &["model.dims=5"], &["unknown key `model.dims`; did you mean `model.dim`?"]);
    refused(
        BASE,
        &["model.kind=gpt2", "model.kv_heads=4"],
        &["model.kv_heads means nothing for model.kind=gpt2"],
    );
    refused(BASE, &["model.tie_embeddings=1"], &["`model.tie_embeddings` is 1, expected true or false"]);
    refused(BASE, &["model.max_length=64"], &["training.seq_len=128 is longer than model.max_length=64"]);
    let text = "data.folder = \"text\"\n[model]\nkind = \"gpt2\"\ndim = 8\nlayers = 1\nheads = 2\n";
    let resolved = given(text, &[]).unwrap();
    assert_eq!(resolved.config.model.keys.get("vocab"), Some(&toml::Value::Integer(256)));
    assert_eq!(resolved.origin("model.max_length"), &Origin::Derived("training.seq_len"));
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Narrow {
        dim: u64,
    }
    let error = resolved.config.model.parsed::<Narrow>().unwrap_err().to_string();
    assert!(error.starts_with("model.kind=gpt2: unknown field"), "{error}");
}

#[test]
fn the_number_of_processes_must_be_that_of_the_mesh() {
    let mesh: MeshShape = "2x4x4".parse().unwrap();
    let error = check_world(mesh, 16).unwrap_err().to_string();
    assert!(error.contains("dp=2 x pp=4 x tp=4 = 32 ranks, but there are 16 processes"), "{error}");
    assert!(error.ends_with("; meshes of 16: 1x4x4, 2x2x4, 2x4x2"), "{error}");
    check_world(mesh, 32).unwrap();
}

#[test]
fn names_known_from_elsewhere_become_the_canonical_ones() {
    let text = "[parallelism]\ndata_parallel_degree = 2\ntensor_parallel_degree = 2\npipeline_schedule = \"zero_bubble\"\n\
                [training]\nbatch_size = 16\n[dataset]\npath = \"text\"\n\
                [model]\ndim = 8\nlayers = 1\nheads = 2\nffn = 8\n";
    let resolved = given(text, &[]).unwrap();
    assert_eq!(resolved.config.parallelism.mesh.to_string(), "2x1x2");
    assert_eq!(resolved.config.parallelism.schedule, "ZBH1");
    assert_eq!((resolved.config.training.global_batch, resolved.config.data.folder.as_str()), (16, "text"));
    let printed = resolved.to_toml().unwrap();
    for line in [
        "mesh = \"2x1x2\"",
        "written parallelism.data_parallel_degree = 2, parallelism.tensor_parallel_degree = 2",
        "schedule = \"ZBH1\"",
        "written parallelism.pipeline_schedule = \"zero_bubble\"",
        "global_batch = 16",
        "written training.batch_size = 16",
    ] {
        assert!(printed.contains(line), "{line} is not in {printed}");
    }
    // A degree on the command line changes its part of the file's mesh; beside a mesh it must agree.
    let text = format!("{BASE}[parallelism]\nmesh = \"2x2x1\"\n");
    let resolved = given(&text, &["parallelism.tensor_parallel_degree=4"]).unwrap();
    assert_eq!(resolved.config.parallelism.mesh.to_string(), "2x2x4");
    refused(BASE, &["parallelism.mesh=2x2x1", "parallelism.tp=4"], &["`parallelism.tp` is 4", "2x2x1"]);
    refused(BASE, &["parallelism.tp=0"], &["`parallelism.tp` is 0"]);
}

#[test]
fn the_printed_configuration_resolves_to_itself() {
    let overrides = [
        "parallelism.mesh=2x2x1",
        "parallelism.schedule=zb-h1",
        "comm.step_timeout=1.5",
        "debug.slow_save=2m",
    ];
    let resolved = given(BASE, &overrides).unwrap();
    let printed = resolved.to_toml().unwrap();
    let again = given(&printed, &[]).unwrap();
    assert_eq!(again.config, resolved.config);
    assert_eq!(again.config.sha256().unwrap(), resolved.config.sha256().unwrap());
    assert!(printed.starts_with(&format!("# sha256 {}\n", resolved.config.sha256().unwrap())));
    assert!(printed.contains("schedule = \"ZBH1\"") && printed.contains("# command line"), "{printed}");
    let stored = resolved.config.to_json().unwrap();
    assert_eq!(Config::from_json(&stored).unwrap(), resolved.config);
}

#[test]
fn what_differs_between_two_configurations_is_listed_by_key() {
    let before = given(BASE, &[]).unwrap().config;
    let after = given(BASE, &["training.seed=5", "model.rope_theta=5e5"]).unwrap().config;
    let found = differences(&before, &after).unwrap();
    let names: Vec<&str> = found.iter().map(|d| d.key.as_str()).collect();
    assert_eq!(names, ["training.seed", "model.rope_theta"]);
    assert_eq!((found[0].before.as_deref(), found[0].after.as_deref()), (Some("0"), Some("5")));
    assert_eq!(found[1].before, None);
    assert_ne!(before.sha256().unwrap(), after.sha256().unwrap());
}

#[test]
fn every_declared_key_has_a_field_and_every_field_is_declared() {
    let values = Config::default().values().unwrap();
    let own = |path: &str| path.starts_with("model.") && path != "model.kind";
    let declared: Vec<&str> = KEYS.iter().map(|key| key.path).filter(|path| !own(path)).collect();
    let fields: Vec<&str> = values.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(fields, declared);
    for key in KEYS {
        assert!(!key.meaning.is_empty() && !key.kind.to_string().is_empty());
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_a_place_never_worse(text in "[a-z\\[\\].=\"0-9\\n ]{0,60}", value in "[^\\n]{0,20}") {
        let _ = given(&text, &[]);
        let override_of = |key: &str| format!("{key}={value}").parse::<Override>().unwrap();
        for key in KEYS {
            if let Err(error) = resolve(None, &[override_of("data.folder"), override_of(key.path)]) {
                prop_assert!(error.kind() == crate::ErrorKind::Config, "{error:?}");
            }
        }
    }
}

#[test]
fn what_can_not_run_on_a_gpu_or_be_carried_is_refused_by_name() {
    let gpu = ["training.device=cuda", "training.mode=fast"];
    given(BASE, &gpu).unwrap();
    given(BASE, &[&gpu[..], &["comm.transport=nccl"]].concat()).unwrap();
    for (settings, words) in [
        (vec!["comm.transport=nccl"], "NCCL carries tensors of GPUs"),
        (vec!["training.device=cuda"], "proven on processors only"),
        ([&gpu[..], &["comm.transport=gloo"]].concat(), "comm.transport=gloo with training.device=cuda"),
        ([&gpu[..], &["comm.transport=local"]].concat(), "comm.transport=local with training.device=cuda"),
        ([&gpu[..], &["optimizer.fused=true"]].concat(), "optimizer.fused=true with training.device=cuda"),
        ([&gpu[..], &["debug.virtual_device=F=1,I=1,W=1"]].concat(), "imagined devices compute nothing"),
    ] {
        let error = given(BASE, &settings).unwrap_err();
        assert!(error.to_string().contains(words) && error.hint_text().is_some(), "{settings:?}: {error:?}");
    }
}

#[test]
fn the_articles_impossible_configurations_are_refused_with_what_can_be() {
    let model = "data.folder = \"text\"\nmodel = { kind = \"llama\", dim = 128, layers = 24, heads = 64, kv_heads = 8, head_dim = 16, ffn = 192, vocab = 240 }\n";
    // Three stages interleaved on three ranks: each needs two.
    let over = [
        "parallelism.mesh=1x3x1",
        "parallelism.schedule=interleaved-1f1b",
        "parallelism.stage_split=[8, 8, 8]",
    ];
    let words =
        ["lists 3 stages", "pp=3 x parallelism.stages_per_rank=2 = 6", "so 3 stages do for 1 ranks only"];
    refused(model, &over, &words);
    // Tensor ranks that divide the query heads but not the KV heads, and that divide neither.
    let tp = |tp: &str| ["training.mode=fast".to_owned(), format!("parallelism.mesh=1x1x{tp}")];
    for (degree, what) in
        [("16", "8 KV heads do not divide over tp=16"), ("6", "64 query heads do not divide over tp=6")]
    {
        refused(model, &tp(degree).each_ref().map(String::as_str), &[what]);
    }
    // 256 sequences in microbatches of 4 over two replicas are 32; over three they are no whole number.
    let batch = |mesh: &str| {
        let mesh = format!("parallelism.mesh={mesh}");
        given(model, &["training.global_batch=256", "training.micro_batch=4", &mesh])
    };
    assert_eq!(batch("2x4x4").unwrap().batches.microbatches, 32);
    assert!(batch("3x1x1").unwrap_err().to_string().contains("252 or 264 would do"));
    // A split that loses a layer, and one that has one twice.
    refused(
        model,
        &["parallelism.mesh=1x2x1", "parallelism.stage_split=[12, 11]"],
        &["12 + 11 = 23 layers", "has 24"],
    );
    refused(
        model,
        &["parallelism.mesh=1x2x1", "parallelism.stage_split=[12, 13]"],
        &["12 + 13 = 25 layers", "has 24"],
    );
}
