//! A file system that is really full: 8 MiB in memory, mounted for the test. Where mounting is not permitted, the test
//! says so and checks nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::{Place, fixture, names};

/// A mounted file system; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    /// `None`, with the reason printed, where it can't be had.
    fn mount(at: PathBuf, size: &str) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&at).output();
        match mount {
            Ok(output) if output.status.success() => return Some(Self(at)),
            Ok(output) => println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim()),
            Err(error) => println!("skipped: mount can't be run: {error}"),
        }
        None
    }

    fn grow(&self, size: &str) {
        let options = format!("remount,size={size}");
        let status = Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.0).status());
    }
}

/// One tensor of 32 MiB in each of two files.
fn large(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("config.json"), "{\"model_type\": \"none\"}").unwrap();
    let bytes = 32 << 20;
    let mut map = serde_json::Map::new();
    for (at, file) in
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].iter().enumerate()
    {
        let name = format!("layers.{at}.w");
        let header = format!(
            "{{\"{name}\":{{\"dtype\":\"BF16\",\"shape\":[4096,4096],\"data_offsets\":[0,{bytes}]}}}}"
        );
        let mut content = (header.len() as u64).to_le_bytes().to_vec();
        content.extend(header.as_bytes());
        content.resize(content.len() + bytes, u8::try_from(at).unwrap() + 1);
        std::fs::write(folder.join(file), content).unwrap();
        map.insert(name, (*file).into());
    }
    let index = serde_json::json!({"metadata": {"total_size": 2 * bytes}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn a_full_disk_is_74_with_nothing_half_visible_and_older_targets_whole() {
    let place = Place::new();
    let Some(disk) = Disk::mount(place.path("disk"), "8m") else { return };
    large(&place.path("large"));
    let small = fixture("torch_dcp/fsdp2_tp2");
    place.done(&["convert", &small, "disk/root"]);
    place.done(&["convert", &small, "disk/older", "--as", "torch-dcp"]);
    let older = names(&place.path("disk"));
    for format in ["torch-dcp", "hf", "safetensors", "pt"] {
        let target = format!("disk/new-{format}");
        let args = ["convert", "large", &target, "--as", format, "--config", "large"];
        let args = if format == "hf" { &args[..] } else { &args[..5] };
        place.run(args).refused(74, &["disk/", "No space left"]);
        assert!(!place.path(&target).exists(), "{format}: a target is visible");
        for left in names(&place.path("disk")).iter().filter(|name| !older.contains(name)) {
            assert!(left.starts_with('.'), "{format}: {left} is left in sight");
            let left = place.path("disk").join(left);
            if left.is_dir() {
                std::fs::remove_dir_all(left).unwrap();
            } else {
                std::fs::remove_file(left).unwrap();
            }
        }
    }
    place.done(&["diff", &small, "disk/older"]);
    place.done(&["verify", "disk/older"]);

    let into_root = ["convert", "large", "disk/root", "--to", "1x1x1", "--place", "**=dp:0"];
    place.run(&into_root).refused(74, &["disk/", "No space left"]);
    place.done(&["diff", &small, "disk/root@latest"]);
    place.done(&["verify", "disk/root"]);
    disk.grow("200m");
    assert_eq!(place.json(&into_root)["result"]["target"], "disk/root@seq:2");
    place.done(&["diff", "large", "disk/root@latest"]);
    place.done(&["diff", &small, "disk/root@seq:1"]);
}

#[test]
fn garbage_is_collected_on_a_full_disk_though_no_record_fits_before() {
    let place = Place::new();
    let Some(disk) = Disk::mount(place.path("disk"), "8m") else { return };
    let small = fixture("torch_dcp/fsdp2_tp2");
    for step in ["1", "2", "3"] {
        place.done(&["convert", &small, "disk/root", "--step", step]);
    }
    let folder = |step: &str| {
        names(&place.path("disk/root"))
            .into_iter()
            .any(|name| name.starts_with(&format!("step-0000000{step}")))
    };
    place.done(&["forget", "disk/root", "--keep-last", "2"]);
    place.done(&["gc", "disk/root"]);
    place.done(&["forget", "disk/root", "--keep-last", "1"]);
    // Not a byte is free.
    let fill = place.path("disk/fill");
    let full = std::fs::write(&fill, vec![1; 16 << 20]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert!(std::fs::write(place.path("disk/more"), b"x").is_err());
    let tried = place.json(&["gc", "disk/root", "--grace", "0s", "--dry-run"]);
    assert_eq!(tried["result"]["report"]["as_of_last_record"], false, "an empty object has room: {tried}");
    // The first was condemned before, and goes; that makes room for the record that condemns the second.
    let done = place.json(&["gc", "disk/root", "--grace", "0s"]);
    assert_eq!(done["result"]["report"]["deleted"].as_array().unwrap().len(), 2, "{done}");
    assert_eq!([folder("1"), folder("2"), folder("3")], [false, false, true]);
    std::fs::remove_file(fill).unwrap();
    place.done(&["verify", "disk/root"]);
    drop(disk);
}
