//! `ckpt inspect`: what is inside, from metadata alone.

mod card;
mod listing;
mod values;

use dcp::Result;
use dcp::engine::Verify;
use dcp::formats::{Depth, OpenOptions};
use dcp::rank_state::RankScheme;

use self::card::{Card, Request};
use super::{Context, open};
use crate::{cli, exit, output};

/// Opens the target and shows its card.
pub(crate) fn run(context: &Context<'_>, args: &cli::Inspect) -> Result<exit::Code> {
    // Data is only near where a catalog of this depth says: what reads or lists places asks for all.
    let depth = if args.value.is_some() || args.shards { Depth::Data } else { Depth::Catalog };
    let opened = open::open(&args.target, OpenOptions::new().depth(depth))?;
    if let Some(text) = &args.value {
        let verify = if args.unverified { Verify::None } else { Verify::Records };
        let value = values::read(&*opened.source, text, verify)?;
        output::show(context, &args.target.to_string(), &opened.warnings, &value)?;
        return Ok(exit::DONE);
    }
    let glob = args.filter.as_deref().or(args.target.glob.as_deref());
    let request = Request {
        glob,
        sort: args.sort,
        tensors: args.tensors,
        shards: args.shards,
        files: args.files,
        objects: args.objects,
    };
    let mut warnings = opened.warnings.clone();
    let catalog = opened.source.catalog();
    // Without a value that it could be about, what is recorded by that name means nothing.
    let recorded = if catalog.objects.is_empty() { Ok(RankScheme::default()) } else { catalog.rank_scheme() };
    let rank_state = recorded.unwrap_or_else(|error| {
        warnings.push(error.to_string());
        RankScheme::default()
    });
    let card = Card::new(&opened, &request, rank_state)?;
    output::show(context, &args.target.to_string(), &warnings, &card)?;
    Ok(exit::DONE)
}
