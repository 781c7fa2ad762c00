//! The queue between the threads that log and the thread that writes.

use super::LogFormat;
use super::fields::Fields;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant, SystemTime};
use tracing_subscriber::fmt::MakeWriter;

/// The maximum number of lines in the queue.
const LINES: usize = 2048;
/// The pause before another attempt to enqueue a flush in a full queue.
const RETRY: Duration = Duration::from_millis(5);

enum Message {
    Line(Vec<u8>),
    /// Answered when all lines before it are written.
    Flush(mpsc::Sender<()>),
}

/// The sending end of the queue. Clones share the queue.
#[derive(Clone, Debug)]
pub(super) struct LogQueue {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl LogQueue {
    /// Starts the thread that writes to `out`.
    pub(super) fn start(out: impl Write + Send + 'static, format: LogFormat) -> io::Result<LogQueue> {
        let (sender, receiver) = mpsc::sync_channel(LINES);
        let queue = LogQueue { sender, dropped: Arc::default() };
        let dropped = queue.dropped.clone();
        std::thread::Builder::new()
            .name("log".into())
            .spawn(move || write_lines(&receiver, &dropped, format, out))?;
        Ok(queue)
    }

    /// Waits until all lines so far are written, but no longer than `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (done, written) = mpsc::channel();
        while self.sender.try_send(Message::Flush(done.clone())).is_err() {
            if Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(RETRY);
        }
        _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

impl Write for LogQueue {
    /// Enqueues a line, or drops it if the queue is full. Never blocks.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.sender.try_send(Message::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogQueue {
    type Writer = LogQueue;

    fn make_writer(&self) -> LogQueue {
        self.clone()
    }
}

/// Writes the lines of the queue. Errors are ignored: they could only be reported through the same output.
fn write_lines(receiver: &Receiver<Message>, dropped: &AtomicU64, format: LogFormat, mut out: impl Write) {
    let mut next = receiver.recv().ok();
    while let Some(message) = next {
        match message {
            Message::Line(line) => _ = out.write_all(&line),
            Message::Flush(done) => {
                write_dropped(dropped, format, &mut out);
                _ = out.flush().map(|()| done.send(()));
            }
        }
        next = receiver.try_recv().ok().or_else(|| {
            // The queue is empty: the reader has caught up.
            write_dropped(dropped, format, &mut out);
            receiver.recv().ok()
        });
    }
}

fn write_dropped(dropped: &AtomicU64, format: LogFormat, out: &mut impl Write) {
    let count = dropped.swap(0, Relaxed);
    if count > 0 {
        _ = out.write_all(dropped_line(count, format).as_bytes());
    }
}

fn dropped_line(count: u64, format: LogFormat) -> String {
    let message = "log lines were dropped because nothing read them";
    match format {
        LogFormat::Text => {
            let fields = Fields { message: message.to_owned(), others: vec![("count", count.into())] };
            super::text::warning(SystemTime::now(), &fields)
        }
        LogFormat::Json => {
            let ts = super::json::milliseconds(SystemTime::now());
            let line = serde_json::json!({ "ts": ts, "level": "warn", "msg": message, "count": count });
            format!("{line}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    /// A time limit that the tests do not reach.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// More lines than a pipe and the queue hold together.
    const MANY: usize = LINES + 4096;
    const LINE: &[u8; 64] = b"a line of sixty-four bytes, so that a pipe is full after 1024.\n\n";

    #[test]
    fn a_full_pipe_blocks_no_logging_thread_and_dropped_lines_are_counted() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let (reader, writer) = io::pipe().expect("a pipe");
            let mut queue = LogQueue::start(writer, format).expect("a thread");
            // This loop would not end if writing a line blocked until it is read.
            for _ in 0..MANY {
                queue.write_all(LINE).expect("never fails");
            }
            queue.flush(Duration::from_millis(1));
            let dropped = queue.dropped.load(Relaxed);
            assert!(dropped > 0, "{MANY} lines fit into a pipe and a queue of {LINES}");
            let reading =
                std::thread::spawn(|| BufReader::new(reader).lines().map_while(Result::ok).collect());
            queue.flush(PATIENCE);
            // Later lines are written again.
            queue.write_all(b"after\n").expect("never fails");
            queue.flush(PATIENCE);
            drop(queue);
            let lines: Vec<String> = reading.join().expect("a thread that reads");
            assert!(lines.iter().any(|line| line == "after"));
            let reports: Vec<_> =
                lines.iter().filter(|line| line.contains("log lines were dropped")).collect();
            let wanted = match format {
                LogFormat::Text => format!("count={dropped}"),
                LogFormat::Json => format!("\"count\":{dropped}"),
            };
            assert!(
                matches!(reports[..], [line] if line.contains(&wanted)),
                "not {wanted} once: {reports:?}"
            );
        }
    }

    #[test]
    fn flush_waits_for_the_last_line() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut queue = LogQueue::start(writer, LogFormat::Text).expect("a thread");
        queue.write_all(b"first\nlast\n").expect("never fails");
        queue.flush(PATIENCE);
        let mut lines = BufReader::new(reader).lines();
        assert_eq!(lines.nth(1).expect("a line").expect("text"), "last");
    }
}
