//! A connection between two launchers: one thread reads what comes, one says from time to time that this end still lives.
//!
//! Invariant: every connection ends with one [`Event::Gone`], after whatever was heard by it.

use std::{
    io::{self, BufReader, Write as _},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use super::words::{self, Word};

/// What came by a connection.
#[derive(Debug)]
pub(super) enum Event {
    /// A line.
    Said(u64, Word),
    /// It is over, and why.
    Gone(u64, String),
}

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    to: Arc<Mutex<TcpStream>>,
    /// Ends the beats when it is dropped.
    _beats: Sender<()>,
}

/// Beats within the time after which silence counts.
const BEATS: u32 = 4;

impl Link {
    /// Takes over a connection, to be known by `id`; what comes goes to `events`.
    pub(super) fn begin(
        stream: TcpStream,
        id: u64,
        silence: Duration,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(silence))?;
        stream.set_write_timeout(Some(silence))?;
        let mut from = BufReader::new(stream.try_clone()?);
        thread::spawn(move || {
            let why = loop {
                match words::read(&mut from) {
                    Ok(Some(word)) => {
                        if events.send(Event::Said(id, word)).is_err() {
                            return;
                        }
                    }
                    Ok(None) => break "its connection closed".to_owned(),
                    Err(error) => break reason(&error, silence),
                }
            };
            // Whoever listened may have ended.
            let _ = events.send(Event::Gone(id, why));
        });
        let to = Arc::new(Mutex::new(stream));
        let (stop, stopped) = mpsc::channel();
        let beating = Arc::clone(&to);
        thread::spawn(move || {
            while stopped.recv_timeout(silence / BEATS) == Err(RecvTimeoutError::Timeout) {
                if write(&beating, &Word::Beat).is_err() {
                    break;
                }
            }
        });
        Ok(Self { to, _beats: stop })
    }

    /// Says a word. A failure shows as [`Event::Gone`] too.
    pub(super) fn say(&self, word: &Word) {
        // The other end may be gone; whoever reads is told.
        let _ = write(&self.to, word);
    }

    /// Says no more, but goes on to listen: so that what was said arrives before the connection ends.
    pub(super) fn fall_silent(&self) {
        let _ = self.to.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Write);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.to.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
    }
}

fn write(to: &Mutex<TcpStream>, word: &Word) -> io::Result<()> {
    let line = words::line(word)?;
    to.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
}

fn reason(error: &io::Error, silence: Duration) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing was heard from it for {:.1} s", silence.as_secs_f64())
        }
        io::ErrorKind::InvalidData => format!("what it said is no word of a launcher's ({error})"),
        _ => format!("its connection failed ({error})"),
    }
}
