//! How much memory this process holds, as the kernel counts it.

use std::fs;

/// Resident bytes now, and the most there ever were; zeros where the system does not say.
#[must_use]
pub fn resident() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    (bytes("VmRSS:").unwrap_or(0), bytes("VmHWM:").unwrap_or(0))
}
