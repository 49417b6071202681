//! S3: moto's server.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::BUCKET;
use crate::error::{Error, Result};
use crate::process::Process;

const WHAT: &str = "the S3 server (moto)";
/// Set by `cargo xtask test` to the Python that has moto.
const VARIABLE: &str = "CKPT_S3_SERVER";

/// A running S3 server.
#[derive(Debug)]
pub struct Moto(Process);

impl Moto {
    /// Starts one with [`BUCKET`] in it. It believes everybody.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::with("open")
    }

    /// Starts one that knows nobody: every key is a wrong one.
    ///
    /// # Errors
    /// As [`Moto::start`].
    pub fn start_strict() -> Result<Self> {
        Self::with("strict")
    }

    fn with(mode: &str) -> Result<Self> {
        let python = env::var_os(VARIABLE).ok_or(Error::NotInstalled { what: WHAT, variable: VARIABLE })?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/s3.py");
        let mut command = Command::new(python);
        command
            .env_remove("PYTHONPATH")
            .env("PYTHONNOUSERSITE", "1")
            .arg("-u")
            .arg(script)
            .args([BUCKET, mode]);
        Process::start(WHAT, &mut command).map(Self)
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.0.port())
    }

    /// The variables that a client needs.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = self.endpoint();
        let pairs = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "someone"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    /// Ends it, as a machine ends that loses its power.
    pub fn end(&mut self) {
        self.0.end();
    }
}
