//! Planning: what a training run will need and how fast it will be, before any card is asked for. Plain numbers in, plain
//! numbers out; nothing here knows tensors or touches a file.
//!
//! ```text
//!  ModelFacts (sizes, or a count of parameters) ─┐
//!  Cluster (cards, nodes, links) ────────────────┼─► search ─► fits (a refusal says the nearest that would) ─► predict ─► ranked
//!  Cut (dp, pp, tp, strategy, order of axes) ────┘               │                                     │
//!                                                    memory (per rank and part)        traffic (per link), pipeline (bubble)
//!  article   the articles' round figures, right and wrong, so that a reader can find them again
//!  balance   layers of each stage: by number, by counted parameters, by measured times
//!  draw      coordinates, groups and links, as text and as SVG
//! ```
//!
//! Invariants:
//! - bytes and rates are decimal (1 GB = 10⁹ B), as in the articles and on data sheets;
//! - every estimate names its assumptions ([`Report`] prints them); what is not known is refused, not guessed;
//! - what is refused comes with the nearest that can be.

mod answer;
mod article;
mod balance;
mod batch;
mod cluster;
mod cut;
mod draw;
mod fits;
mod given;
mod memory;
mod model;
mod order;
mod pipeline;
mod predict;
mod presets;
mod quantity;
mod recompute;
mod report;
mod search;
mod strategy;
mod text;
mod traffic;

pub use answer::plan;
pub use article::{ARTICLE_BYTES, Article, cards_at_least, state_bytes};
use balance::split_or_given;
pub use balance::{Balance, Costs, split_as_trained, split_by_costs, split_evenly};
pub use batch::{Batch, choose_microbatches, choose_stages};
pub use cluster::Cluster;
pub use cut::{Cut, GroupTable};
pub use draw::{drawing, svg};
pub use fits::{Misfit, tensor_degrees};
pub use given::{facts, policy, strategy};
pub use memory::{Ledger, Line, Policy};
pub use model::{Family, ModelFacts, Sizes};
pub use order::{Axis, Order};
pub use pipeline::{Bubble, Pipeline};
pub use predict::{Prediction, Seconds};
pub use presets::{CARDS, Card, MODELS, card, model};
pub use quantity::{bytes, count, parse_bytes, parse_count, parse_rate, seconds};
pub use recompute::Recompute;
pub use report::{Closely, Excluded, Question, Ranked, Report};
pub use search::{Candidate, Terms, search};
pub use strategy::Strategy;
pub use traffic::{TensorTraffic, Traffic, data_parallel, pipeline_link, tensor_parallel};
