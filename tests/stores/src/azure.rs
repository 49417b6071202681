//! Azure: Azurite, the emulator of its makers.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::process::Process;

const WHAT: &str = "the Azure server (Azurite)";
/// Set by `cargo xtask test` to the folder with Azurite's `node_modules`.
const VARIABLE: &str = "CKPT_AZURE_SERVER";
/// The account that every Azurite has, and its key: published by its makers, no secret.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running Azure server.
#[derive(Debug)]
pub struct Azurite(Process);

impl Azurite {
    /// Starts one, with the container [`BUCKET`](crate::BUCKET) in it. It checks signatures.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start() -> Result<Self> {
        let folder = env::var_os(VARIABLE).ok_or(Error::NotInstalled { what: WHAT, variable: VARIABLE })?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/azure.js");
        let mut command = Command::new("node");
        command.arg(script).args([
            Path::new(&folder),
            Path::new(ACCOUNT),
            Path::new(KEY),
            Path::new(crate::BUCKET),
        ]);
        Process::start(WHAT, &mut command).map(Self)
    }

    /// The variables that a client needs.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}/{ACCOUNT}", self.0.port());
        let pairs = [
            ("AZURE_STORAGE_ENDPOINT", endpoint.as_str()),
            ("AZURE_ALLOW_HTTP", "true"),
            ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT),
            ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    /// Ends it, as a machine ends that loses its power.
    pub fn end(&mut self) {
        self.0.end();
    }
}
