//! A checkpoint of blobs that take several parts, through `ckpt reshard` from a folder into each kind of store, within it and out again.

use std::{fs, io::Write, path::Path};

use dcp::store::Root;
use serde_json::Value;
use stores::{Azurite, BUCKET, Gcs, Moto};

use super::cli::Place;

const ROWS: usize = 2048;
const COLUMNS: usize = 1280;
const NAMES: [&str; 4] = ["a.weight", "b.weight", "c.weight", "d.weight"];

/// Four matrices of 10 MiB.
fn write_safetensors(file: &Path) {
    let bytes = ROWS * COLUMNS * 4;
    let of = |(at, name): (usize, &&str)| {
        let span = [at * bytes, (at + 1) * bytes];
        (
            (*name).to_owned(),
            serde_json::json!({"dtype": "F32", "shape": [ROWS, COLUMNS], "data_offsets": span}),
        )
    };
    let header = Value::Object(NAMES.iter().enumerate().map(of).collect()).to_string();
    let mut file = fs::File::create(file).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let values = (0..ROWS * COLUMNS * NAMES.len()).map(|at| (at as f32).sqrt().to_le_bytes());
    file.write_all(&values.flatten().collect::<Vec<u8>>()).unwrap();
}

/// Blobs of a root and how large they are, largest first.
fn blobs(place: &Place, root: &str) -> Vec<u64> {
    let root = Root::open(root, &super::stores(place.environment.clone())).unwrap();
    let mut sizes: Vec<u64> = root
        .list(None)
        .unwrap()
        .iter()
        .filter(|it| it.path.as_ref().contains("/data/"))
        .map(|it| it.size)
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

fn there_and_back(place: &Place, bucket: &str) {
    write_safetensors(&place.folder.path().join("model.safetensors"));
    place.json(&["convert", "model.safetensors", "rows", "--to", "2x1x1", "--place", "*.weight=dp:0"]);
    let (within, columns) = (format!("{bucket}/trips/rows"), format!("{bucket}/trips/columns"));
    let to_columns = ["--to", "1x1x4", "--place", "*.weight=tp:1", "--verify"];
    let trips: [(&str, &str, &[&str]); 4] = [
        ("rows", &within, &["--to", "1x1x1", "--verify"]),
        (&within, &columns, &to_columns),
        ("rows", &columns, &["--to", "1x1x2", "--place", "*.weight=tp:1"]),
        (&columns, "back", &["--to", "2x1x1", "--place", "*.weight=dp:0", "--verify"]),
    ];
    for (source, target, options) in trips {
        let done = place.json(&[&["reshard", source, target], options].concat());
        let report = &done["result"]["report"];
        assert_eq!((report["proven"].as_u64(), report["passes"].as_u64()), (Some(4), Some(1)), "{done}");
        let [read, needed] = ["bytes_read", "bytes_needed"].map(|key| report[key].as_u64().unwrap());
        assert_eq!(needed, (ROWS * COLUMNS * 4 * NAMES.len()) as u64, "{done}");
        assert!(read as f64 <= needed as f64 * 1.02, "{source} to {target}: {read} of {needed}");
    }
    assert!(
        blobs(place, &within).first().is_some_and(|size| *size > 32 << 20),
        "one upload of several parts"
    );
    assert_eq!(place.json(&["diff", "rows", "back"])["result"]["same"], true);
    assert_eq!(place.json(&["diff", "model.safetensors", &within])["result"]["same"], true);
}

#[test]
fn a_checkpoint_goes_through_s3_on_other_meshes_and_back() {
    let server = Moto::start().unwrap_or_else(|error| panic!("{error}"));
    let place = Place::with(server.environment(), server);
    there_and_back(&place, &format!("s3://{BUCKET}"));
}

#[test]
fn a_checkpoint_goes_through_azure_on_other_meshes_and_back() {
    let server = Azurite::start().unwrap_or_else(|error| panic!("{error}"));
    let place = Place::with(server.environment(), server);
    there_and_back(&place, &format!("az://{BUCKET}"));
}

#[test]
fn a_checkpoint_goes_through_gcs_on_other_meshes_and_back() {
    let server = Gcs::start().unwrap();
    let place = Place::with(server.environment(), server);
    there_and_back(&place, &format!("gs://{BUCKET}"));
}
