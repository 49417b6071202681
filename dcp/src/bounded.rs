//! [`Bounded`]: text of values of others, for people, that ends where it gets too long.

use std::fmt::{self, Write};

/// Text that refuses to grow beyond a bound, which also ends the walk over what is shown.
pub(crate) struct Bounded {
    out: String,
    left: usize,
}

impl Bounded {
    /// Writes what `show` does, at most so many characters of it, and a mark where it was cut.
    pub(crate) fn show(
        f: &mut fmt::Formatter<'_>,
        most: usize,
        show: impl FnOnce(&mut Self) -> fmt::Result,
    ) -> fmt::Result {
        let mut text = Self { out: String::new(), left: most };
        let cut = show(&mut text).is_err();
        f.write_str(&text.out)?;
        if cut { f.write_str("…") } else { Ok(()) }
    }
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.out.push(c);
        }
        Ok(())
    }
}
