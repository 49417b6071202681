//! Meshes: every spelling and how it is read, ranks and coordinates, what is no mesh.

use super::{MAX_RANKS, Mesh, MeshError};

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

#[test]
fn every_spelling_of_a_mesh_says_how_it_was_read() {
    for (text, read) in [
        ("4x2x8", "dp=4 pp=2 tp=8"),
        ("4x2", "dp=4 tp=2"),
        ("7", "dp=7"),
        ("dp=4,pp=2,tp=8", "dp=4 pp=2 tp=8"),
        ("dp2,tp2", "dp=2 tp=2"),
        ("dp2xtp2", "dp=2 tp=2"),
        ("tp=8 pp=2", "tp=8 pp=2"),
        ("dp_replicate=2,dp_shard=4,ep=2,cp=3", "dp_replicate=2 dp_shard=4 ep=2 cp=3"),
        ("dp_replicate2xdp_shard4", "dp_replicate=2 dp_shard=4"),
    ] {
        assert_eq!(mesh(text).to_string(), read, "{text}");
        assert_eq!(mesh(&mesh(text).to_string()), mesh(text));
    }
    assert_eq!(mesh("4x2x8").short(), "4x2x8");
}

#[test]
fn texts_that_are_no_mesh_are_refused_with_the_reason() {
    for (text, why) in [
        ("", "it is empty"),
        ("4x2x8x2", "more than three numbers"),
        ("4xtp2", "some axes are named"),
        ("dq=4", "\"dq\" is no axis"),
        ("dp", "axis dp has no number"),
        ("dp=", "axis dp has no number"),
        ("dp=-4", "is no axis"),
        ("99999999999999999999", "exceeds 64 bits"),
        ("0x2", "extent 0"),
        ("dp2,dp2", "appears twice"),
        ("dp2,dp_shard2", "ambiguous"),
        ("4294967296x4294967296", "more than"),
        ("\u{1b}[31m", "is no axis"),
    ] {
        let refused = text.parse::<Mesh>().unwrap_err().to_string();
        assert!(refused.contains(why), "{text}: {refused}");
        assert!(!refused.contains('\u{1b}'));
    }
    assert_eq!(Mesh::new(Vec::new()), Err(MeshError::Empty));
    assert!(format!("dp={MAX_RANKS}").parse::<Mesh>().is_ok());
}

#[test]
fn ranks_are_row_major_with_the_last_axis_fastest() {
    let mesh = mesh("4x2x8");
    assert_eq!(mesh.coords(17).as_deref(), Some(&[1, 0, 1][..]));
    assert_eq!(mesh.coords(64), None);
    assert_eq!(mesh.rank_of(&[4, 0, 0]), None);
    assert_eq!(mesh.rank_of(&[0, 0]), None);
    for rank in 0..mesh.ranks() {
        assert_eq!(mesh.rank_of(&mesh.coords(rank).unwrap()), Some(rank));
    }
}

#[test]
fn groups_differ_in_their_axis_only_and_hold_every_rank_once() {
    let mesh = mesh("4x2x8");
    assert_eq!(mesh.groups("pp").next(), Some(vec![0, 8]));
    assert_eq!(mesh.groups("ep").count(), 64);
    for axis in ["dp", "pp", "tp"] {
        let mut all: Vec<u64> = mesh.groups(axis).flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
    }
}

#[test]
fn a_wrong_number_of_ranks_is_named() {
    let refused = mesh("4x2x8").check_ranks(32).unwrap_err();
    assert_eq!(refused.to_string(), "mesh dp=4 pp=2 tp=8 has 64 ranks, but there are 32");
    assert_eq!(mesh("4x2x8").check_ranks(64), Ok(()));
}

#[test]
fn data_ranks_are_those_of_the_data_parallel_axes_alone() {
    for (text, data) in [
        ("4x2x8", 4),
        ("dp_replicate=2,dp_shard=4,ep=2,cp=3", 8),
        ("dp_shard=4,tp=2", 4),
        ("dp=3,dp_replicate=2", 6),
        ("pp=2,tp=8", 1),
    ] {
        assert_eq!(mesh(text).data_ranks(), data, "{text}");
    }
}

#[test]
fn a_placement_on_dp_means_dp_shard_where_the_mesh_has_that() {
    let dp = fqn::AxisName::new("dp").unwrap();
    assert_eq!(mesh("dp_replicate=2,dp_shard=4").cutting(&dp), Some(1));
    assert_eq!(mesh("dp_replicate=2,tp=4").cutting(&dp), None);
    assert_eq!(mesh("4x2").cutting(&dp), Some(0));
}

#[test]
fn json_keeps_the_order_and_checks_what_it_reads() {
    let text = serde_json::to_string(&mesh("tp2,dp3")).unwrap();
    assert_eq!(text, r#"[["tp",2],["dp",3]]"#);
    assert_eq!(serde_json::from_str::<Mesh>(&text).unwrap(), mesh("tp2,dp3"));
    assert!(serde_json::from_str::<Mesh>(r#"[["tp",0]]"#).is_err());
}
