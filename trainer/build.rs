//! Compiles the C++ shim (`cpp/`) against the libtorch that `torch-sys` found, and lets binaries find it at run time.

use std::{
    env,
    path::{Path, PathBuf},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let lib = env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from);
    let lib =
        lib.ok_or("torch-sys did not say where libtorch is; `cargo xtask setup --libtorch` installs it")?;
    let lib = lib.canonicalize()?;
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    println!("cargo:rerun-if-changed=cpp");
    let mut sources: Vec<_> = std::fs::read_dir("cpp")?.flatten().map(|entry| entry.path()).collect();
    sources.retain(|path| path.extension().is_some_and(|ext| ext == "cpp"));
    sources.sort();
    if !sources.is_empty() {
        compile(&lib.join("../include").canonicalize()?, &sources);
    }
    Ok(())
}

fn compile(include: &Path, sources: &[PathBuf]) {
    cc::Build::new()
        .cpp(true)
        .pic(true)
        .warnings(false)
        .std("c++20")
        .define("USE_C10D_GLOO", None)
        .include("cpp/stubs")
        .include(include)
        .include(include.join("torch/csrc/api/include"))
        .opt_level(1)
        .files(sources)
        .compile("ckpt_torch_shim");
}
