//! Patterns: what matches, what is captured, what is no pattern.

use proptest::prelude::*;

use super::*;

fn matches(pattern: &str, name: &str) -> bool {
    Pattern::new(pattern).unwrap().matches(name)
}

#[test]
fn a_star_stays_within_its_segment_and_two_cross_any_number() {
    assert!(matches("layers.*.wq.weight", "layers.12.wq.weight"));
    assert!(!matches("layers.*.wq.weight", "layers.12.attention.wq.weight"));
    assert!(matches("layers.**.weight", "layers.12.attention.wq.weight"));
    assert!(matches("layers.**.weight", "layers.weight"));
    assert!(matches("**", "a.b.c"));
    assert!(matches("**.a.**.b", "a.x.a.b.b"));
    assert!(matches("*_proj*.weight", "q_proj_1.weight"));
    assert!(!matches("a*a", "a"));
    assert!(!matches("layers.*", "layers"));
}

#[test]
fn alternatives_may_hold_dots_and_index_sets_hold_ranges() {
    let pattern = Pattern::new("layers.{0..3,7}.{attention.wq,mlp}.weight").unwrap();
    assert!(pattern.matches("layers.7.mlp.weight"));
    assert!(pattern.matches("layers.0.attention.wq.weight"));
    assert!(!pattern.matches("layers.4.mlp.weight"));
    assert!(!pattern.matches("layers.03.mlp.weight"));
}

#[test]
fn captures_fill_a_template() {
    let pattern = Pattern::new("model.layers.{layer}.{**rest}").unwrap();
    let captures = pattern.captures("model.layers.12.self_attn.q_proj.weight").unwrap();
    assert_eq!(captures.index("layer"), Some(12));
    let template = Template::new("blocks.{layer}.{rest}").unwrap();
    assert_eq!(template.fill(&captures).as_deref(), Some("blocks.12.self_attn.q_proj.weight"));
    assert_eq!(Template::new("{nope}").unwrap().fill(&captures), None);
    assert!(pattern.captures("model.layers.x.w").is_none());
    assert!(pattern.captures("model.layers.3").is_none());
}

#[test]
fn a_failed_try_leaves_no_capture_behind() {
    let pattern = Pattern::new("**.{module}.{part}.weight").unwrap();
    let captures = pattern.captures("a.b.c.d.weight").unwrap();
    assert_eq!((captures.get("module"), captures.get("part")), (Some("c"), Some("d")));
}

#[test]
fn what_is_no_pattern_is_refused_with_the_reason() {
    for (text, reason) in [
        ("a..b", "empty segment"),
        ("a.{b", "unbalanced"),
        ("a.b}", "unbalanced"),
        ("a.x{b}", "must fill a whole segment"),
        ("a.{B}", "not lower-case"),
        ("{a}.{a}", "appears twice"),
        ("a.**b", "`**`"),
        ("{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", "multiply"),
    ] {
        let refused = Pattern::new(text).unwrap_err().to_string();
        assert!(refused.contains(reason), "{text}: {refused}");
    }
}

/// Plain recursive definition of what a glob matches.
fn reference(pattern: &[&str], name: &[&str]) -> bool {
    fn segment(p: &[u8], t: &[u8]) -> bool {
        match p.split_first() {
            None => t.is_empty(),
            Some((b'*', rest)) => (0..=t.len()).any(|k| segment(rest, &t[k..])),
            Some((c, rest)) => t.first() == Some(c) && segment(rest, &t[1..]),
        }
    }
    match pattern.split_first() {
        None => name.is_empty(),
        Some((&"**", rest)) => (0..=name.len()).any(|k| reference(rest, &name[k..])),
        Some((p, rest)) => {
            name.first().is_some_and(|t| segment(p.as_bytes(), t.as_bytes())) && reference(rest, &name[1..])
        }
    }
}

proptest! {
    #[test]
    fn matching_agrees_with_the_plain_definition(
        pattern in prop::collection::vec("(\\*\\*|[ab*]{1,3})", 1..5),
        name in prop::collection::vec("[ab]{1,3}", 1..6),
    ) {
        // A run of stars inside a segment is refused or means `**`; both are covered elsewhere.
        let segments: Vec<String> =
            pattern.iter().map(|s| if s == "**" { s.clone() } else { s.replace("**", "*").replace("**", "*") }).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let names: Vec<&str> = name.iter().map(String::as_str).collect();
        let made = Pattern::new(&segments.join(".")).unwrap();
        prop_assert_eq!(made.matches(&names.join(".")), reference(&segments, &names));
    }

    #[test]
    fn no_text_makes_the_parser_fall_over(text in ".{0,40}", name in "[a-c0-9.]{0,20}") {
        if let Ok(pattern) = Pattern::new(&text) {
            let _ = pattern.matches(&name);
        }
        let _ = Template::new(&text);
    }
}
