//! Drawings of a mesh: which ranks stand where, which groups they form, and which links those go over.

use std::fmt::Write as _;

use super::{Axis, Cluster, Cut, GroupTable, quantity};

/// Groups of each axis that are listed one by one; of more, the first and the last.
const LISTED: usize = 4;

/// The mesh as text: a grid of nodes and stages, then the groups of each axis and their links. With `coordinates`, also
/// a line for every rank.
#[must_use]
pub fn drawing(cut: &Cut, cluster: &Cluster, coordinates: bool) -> String {
    let mut text = format!(
        "mesh dp={} x pp={} x tp={} = {} ranks on {} nodes of {}; order {} (the last is the fastest)\n\n",
        cut.dp,
        cut.pp,
        cut.tp,
        cut.ranks(),
        cluster.nodes(),
        cluster.per_node,
        cut.order
    );
    grid(&mut text, cut, cluster);
    text.push('\n');
    for axis in Axis::ALL {
        groups(&mut text, &cut.groups(axis, cluster), cluster, cut);
    }
    if coordinates {
        text.push_str("\nrank  node  dp  pp  tp\n");
        for rank in 0..cut.ranks() {
            let [dp, pp, tp] = cut.coordinates(rank);
            let _ = writeln!(text, "{rank:>4}  {:>4}  {dp:>2}  {pp:>2}  {tp:>2}", cluster.node(rank));
        }
    }
    text
}

/// One row per replica, one column per stage; a cell is a tensor group.
fn grid(text: &mut String, cut: &Cut, cluster: &Cluster) {
    let cell = |dp, pp| {
        let ranks: Vec<u64> = (0..cut.tp).map(|tp| cut.rank([dp, pp, tp])).collect();
        format!("{} [{}]", nodes(&ranks, cluster), span(&ranks))
    };
    let rows: Vec<Vec<String>> = (0..cut.dp).map(|dp| (0..cut.pp).map(|pp| cell(dp, pp)).collect()).collect();
    let width = rows.iter().flatten().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let head: Vec<String> = (0..cut.pp).map(|pp| format!("{:width$}", format!("pp{pp}"))).collect();
    let _ = writeln!(text, "       {}", head.join("      ").trim_end());
    for (dp, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "dp{dp:<3}  {}", cells.join(" ---> ").trim_end());
    }
    let _ = writeln!(
        text,
        "\n       [a-b] a tensor group    ---> activations to the next stage, their gradients back    columns: data groups"
    );
}

fn nodes(ranks: &[u64], cluster: &Cluster) -> String {
    let (first, last) = (ranks.first().map(|r| cluster.node(*r)), ranks.last().map(|r| cluster.node(*r)));
    match (first, last) {
        (Some(first), Some(last)) if first == last => format!("node {first}"),
        (Some(first), Some(last)) => format!("nodes {first}-{last}"),
        _ => String::new(),
    }
}

/// Ranks in short: `0-7`, or `0,16,32,48`.
fn span(ranks: &[u64]) -> String {
    match (ranks.first(), ranks.last()) {
        (Some(first), Some(last)) if ranks.len() > 2 && last - first + 1 == ranks.len() as u64 => {
            format!("{first}-{last}")
        }
        _ => ranks.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
    }
}

const fn role(axis: Axis) -> &'static str {
    match axis {
        Axis::Dp => "weights gathered, gradients reduced",
        Axis::Pp => "activations forward, their gradients back",
        Axis::Tp => "hidden states summed, several times a layer",
    }
}

fn groups(text: &mut String, table: &GroupTable, cluster: &Cluster, cut: &Cut) {
    let (count, within) = (table.groups.len(), table.within_node);
    let size = cut.size(table.axis);
    let name = table.axis.name();
    if size == 1 {
        let _ = writeln!(text, "{name}  no groups: one rank each");
        return;
    }
    let link = match within {
        all if all == count => format!("within a node, {}/s", quantity::bytes(cluster.intra)),
        0 => format!("across nodes, {}/s", quantity::bytes(cluster.inter)),
        some => {
            format!("{some} of them within a node, the others across at {}/s", quantity::bytes(cluster.inter))
        }
    };
    let _ = writeln!(text, "{name}  {count} groups of {size}: {}; {link}", role(table.axis));
    let shown = if count > 2 * LISTED { LISTED } else { count };
    let line = |text: &mut String, index: usize, group: &Vec<u64>| {
        let _ = writeln!(text, "      {name}{index:<3} {}  {}", span(group), nodes(group, cluster));
    };
    for (index, group) in table.groups.iter().enumerate().take(shown) {
        line(text, index, group);
    }
    if shown < count {
        text.push_str("      ...\n");
        if let Some(last) = table.groups.last() {
            line(text, count - 1, last);
        }
    }
    if table.axis == Axis::Tp && within < count {
        text.push_str("      warning: a tensor group that crosses nodes waits for the slow link several times a layer\n");
    }
}

/// The mesh as SVG: a box per node, a card per rank, coloured by stage, arrows between stages, rails for data groups.
#[must_use]
pub fn svg(cut: &Cut, cluster: &Cluster) -> String {
    const CARD: u64 = 34;
    const GAP: u64 = 26;
    let (row, column) = (CARD + 2 * GAP, cut.tp * CARD + 3 * GAP);
    let (width, height) = (cut.pp * column + 4 * GAP, cut.dp * row + 4 * GAP);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<title>mesh {cut}: dp x pp x tp</title>\n"
    );
    for dp in 0..cut.dp {
        for pp in 0..cut.pp {
            let (x, y) = (2 * GAP + pp * column, 2 * GAP + dp * row);
            let first = cut.rank([dp, pp, 0]);
            let (hue, node) = (pp * 360 / cut.pp.max(1), cluster.node(first));
            let (boxed, tall) = (cut.tp * CARD + 8, CARD + 20);
            let _ = writeln!(
                text,
                "<rect x=\"{}\" y=\"{}\" width=\"{boxed}\" height=\"{tall}\" fill=\"none\" stroke=\"#888\"/><text x=\"{x}\" \
                 y=\"{}\">node {node}, dp{dp} pp{pp}</text>",
                x - 4,
                y - 16,
                y - 4
            );
            for tp in 0..cut.tp {
                let (left, rank) = (x + tp * CARD, cut.rank([dp, pp, tp]));
                let _ = writeln!(
                    text,
                    "<rect x=\"{left}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"hsl({hue},60%,80%)\" stroke=\"#333\"/><text \
                     x=\"{}\" y=\"{}\" text-anchor=\"middle\">{rank}</text>",
                    CARD - 4,
                    CARD - 4,
                    left + CARD / 2 - 2,
                    y + CARD / 2 + 2
                );
            }
            let (right, middle) = (x + boxed - 4, y + CARD / 2);
            if pp + 1 < cut.pp {
                let _ = writeln!(
                    text,
                    "<path d=\"M{right} {middle} h{} m-6 -4 l6 4 l-6 4\" fill=\"none\" stroke=\"#06c\"/>",
                    column - boxed
                );
            }
            if dp + 1 < cut.dp {
                let _ = writeln!(
                    text,
                    "<path d=\"M{} {} v{}\" stroke=\"#c60\" stroke-dasharray=\"3\"/>",
                    x + CARD / 2,
                    y + CARD,
                    row - CARD
                );
            }
        }
    }
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\">a box: a tensor group; blue: activations and gradients between stages; orange: data groups</text>\n</svg>",
        2 * GAP,
        height - GAP
    );
    text
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Order, Strategy},
        *,
    };

    fn cluster() -> Cluster {
        crate::plan::cluster::a100s(64)
    }

    fn cut(per_node: u64) -> (Cut, Cluster) {
        let cluster = Cluster { per_node, ..cluster() };
        (Cut::new("4x2x8".parse().unwrap(), Strategy::FullShard, Order::DpPpTp, &cluster), cluster)
    }

    #[test]
    fn the_fourth_articles_mesh_is_drawn_with_nodes_groups_and_links() {
        let (cut, cluster) = cut(8);
        let text = drawing(&cut, &cluster, true);
        for line in [
            "dp0    node 0 [0-7]   ---> node 1 [8-15]",
            "dp3    node 6 [48-55] ---> node 7 [56-63]",
            "dp  16 groups of 4: weights gathered, gradients reduced; across nodes, 25.0 GB/s",
            "      dp0   0,16,32,48  nodes 0-6",
            "pp  32 groups of 2: activations forward, their gradients back; across nodes",
            "tp  8 groups of 8: hidden states summed, several times a layer; within a node, 300 GB/s",
            "  27     3   1   1   3",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_tensor_group_that_crosses_nodes_is_warned_of() {
        let (cut, cluster) = cut(4);
        let text = drawing(&cut, &cluster, false);
        assert!(
            text.contains("nodes 0-1 [0-7]") && text.contains("warning: a tensor group that crosses nodes"),
            "{text}"
        );
    }

    #[test]
    fn the_picture_has_a_card_for_every_rank_and_an_arrow_for_every_boundary() {
        let (cut, cluster) = cut(8);
        let picture = svg(&cut, &cluster);
        assert_eq!(picture.matches("text-anchor=\"middle\"").count(), 64);
        assert_eq!(picture.matches("stroke=\"#06c\"").count(), 4);
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    }
}
