//! Values of which there are few: each by its word, in files as in code.

use serde::{Deserialize, Serialize};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// As they are written.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];

            /// As it is written.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

choice! {
    /// How sums are made.
    Mode {
        /// The same bits on every mesh.
        Exact = "exact",
        /// In whatever order is fastest.
        Fast = "fast",
    }
}

choice! {
    /// What numbers are computed on or carried.
    Numbers {
        /// f32.
        Float32 = "float32",
        /// bf16.
        Bfloat16 = "bfloat16",
    }
}

choice! {
    /// How the learning rate falls after the warm-up.
    Decay {
        /// Not at all.
        Constant = "constant",
        /// In a straight line.
        Linear = "linear",
        /// Along half a cosine.
        Cosine = "cosine",
    }
}

choice! {
    /// How data parallelism shares out weights, moments and gradients; see [`Sharding`](super::super::Sharding).
    Strategy {
        /// All of them over all of dp; gathered weights are freed after each use (ZeRO-3).
        FullShard = "full_shard",
        /// All of them over all of dp; gathered weights stay until the end of the step (ZeRO-2).
        ShardGradOp = "shard_grad_op",
        /// Over dp_shard ranks, and repeated on dp_replicate.
        HybridShard = "hybrid_shard",
        /// Not at all: every rank has everything (DDP).
        NoShard = "no_shard",
    }
}

choice! {
    /// Whether gathered weights are freed after forward.
    Reshard {
        /// Without a pipeline, yes; with one, no, as every microbatch would gather them again.
        Default = "default",
        /// After each use.
        Always = "always",
        /// At the end of the step.
        Never = "never",
    }
}

choice! {
    /// What to do when the newest checkpoint is damaged.
    OnDamage {
        /// Name it and resume from the one before.
        Fallback = "fallback",
        /// Name it and stop.
        Stop = "stop",
    }
}

choice! {
    /// What proves the boxes that a rank loads.
    LoadProof {
        /// The fingerprints that the sums of all ranks add up to: a rank reads its own bytes alone.
        Group = "group",
        /// The blocks around each box: a rank reads them whole.
        Blocks = "blocks",
    }
}

choice! {
    /// How a token's operations are counted.
    FlopsFormula {
        /// 6 for each parameter but the table, and attention's.
        Palm = "palm",
        /// 6 for each parameter.
        SixN = "6n",
    }
}

choice! {
    /// What to do when a background save failed.
    OnSaveFailure {
        /// Stop at the next save or at the end.
        Stop = "stop",
        /// Say so and go on training.
        Continue = "continue",
    }
}

choice! {
    /// Whether to resume.
    Resume {
        /// From the newest checkpoint of the run, or from the beginning where there is none.
        Auto = "auto",
        /// From the newest checkpoint; having none is an error.
        Require = "require",
        /// Never; a run that has checkpoints is in the way.
        Never = "never",
    }
}

choice! {
    /// Transports.
    TransportKind {
        /// Among processes `gloo`, or `nccl` for tensors on GPUs; within one `local`.
        Auto = "auto",
        /// Ranks are threads of this process.
        Local = "local",
        /// Ranks are processes; libtorch's gloo carries the tensors.
        Gloo = "gloo",
        /// Ranks are processes with a GPU each; NCCL carries the tensors.
        Nccl = "nccl",
        /// This process is one rank, and the others are imagined: nothing is trained.
        Fake = "fake",
    }
}

choice! {
    /// Where weights and batches lie, and products are computed.
    Device {
        /// Memory of the machine; its processors.
        Cpu = "cpu",
        /// The GPU whose number is that of the rank on its machine.
        Cuda = "cuda",
    }
}

choice! {
    /// When a send returns.
    CommMode {
        /// At once, as long as there is room.
        Async = "async",
        /// When the receiver has taken the message.
        Sync = "sync",
    }
}

choice! {
    /// What happens to a message on purpose.
    MessageFault {
        /// Nothing.
        None = "none",
        /// It is lost.
        Drop = "drop",
        /// The next one overtakes it.
        Swap = "swap",
        /// It ends too early.
        Cut = "cut",
        /// It has another shape.
        Shape = "shape",
        /// It has another dtype.
        Dtype = "dtype",
    }
}

choice! {
    /// What the letters of a schedule's file mean.
    ScheduleDialect {
        /// Found out from the file, and refused where that is not certain.
        Auto = "auto",
        /// I: gradient of inputs, B: of inputs and weights. torch since 2.6.
        Newer = "newer",
        /// B: gradient of inputs, BW: of inputs and weights. torch before.
        Older = "older",
    }
}

choice! {
    /// What becomes of a parameter that two pipeline ranks use, as a tied embedding is.
    Ties {
        /// It is refused.
        Reject = "reject",
        /// Both hold it, and add their gradients up once a step.
        Sync = "sync",
    }
}

choice! {
    /// Which layers are computed again in backward.
    Recomputed {
        /// None.
        None = "none",
        /// All.
        Full = "full",
        /// Some of them, or all but their products.
        Selective = "selective",
    }
}
