//! Starts a child, follows its journal, and waits for its end.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::child::Task;
use super::event::{End, Event};
use super::judge::Judge;

/// The parent's reaction to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Follow,
    /// SIGKILL.
    Kill,
    /// SIGKILL for a child whose file system was shut down at this time, monotonic ns. Its later
    /// acks count as not received: without power there would be none.
    Cut(u64),
    /// Lets a waiting child continue.
    Release,
}

/// A running child.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    events: Receiver<Result<Event, String>>,
    errors: PathBuf,
}

/// The time without output after which a child counts as hanging, which fails. Longer than
/// [`LIMIT`](super::client::LIMIT), within which a child itself reports what it waits for.
#[must_use]
pub fn silence_timeout() -> Duration {
    Duration::from_secs(crate::harness::setting("TOPICS_WATCHDOG", 600))
}

impl Child {
    /// Starts this program again with a task. Ignores SIGXFSZ, so that a file-size limit is an
    /// error instead of a fatal signal.
    pub fn start(task: &Task) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let life = task.life;
        let errors = std::env::temp_dir().join(format!(
            "topics-realfs-{}-{:x}-{life}.stderr",
            std::process::id(),
            task.seed
        ));
        let stderr = File::create(&errors).map_err(|e| e.to_string())?;
        let mut process = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(program)
            .args(task.args())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|e| format!("the child does not start: {e}"))?;
        let (send, events) = channel();
        let out = process.stdout.take().ok_or("the child has no standard output")?;
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let event = line.map_err(|e| e.to_string());
                let event = event.and_then(|l| l.parse().map_err(|e| format!("{l:?}: {e}")));
                if send.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, events, errors })
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        // A child that has already ended is not an error.
        let _ = self.process.kill();
    }

    /// Follows the child to its end, and passes its events to the judge.
    pub fn follow(mut self, judge: &mut Judge, mut on: impl FnMut(&Event) -> Action) {
        let mut last = "nothing".to_owned();
        let trace = std::env::var("TOPICS_TRACE").is_ok();
        let (mut killed, mut cut) = (false, None);
        loop {
            match self.events.recv_timeout(silence_timeout()) {
                Ok(Ok(event)) => {
                    if let Event::Note(text) = &event {
                        last.clone_from(text);
                    }
                    if trace {
                        println!("    {event}");
                    }
                    match event {
                        Event::Acked { at, .. } if cut.is_some_and(|cut| at >= cut) => continue,
                        _ => judge.hear(&event),
                    }
                    match on(&event) {
                        Action::Follow => {}
                        Action::Kill => {
                            self.kill();
                            killed = true;
                        }
                        Action::Cut(at) => {
                            self.kill();
                            (killed, cut) = (true, Some(at));
                        }
                        Action::Release => {
                            let input = self.process.stdin.as_mut();
                            let _ = input.map(|i| i.write_all(b"go on\n"));
                        }
                    }
                }
                Ok(Err(text)) => judge.problem(format!("journal: {text}")),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    judge.problem(format!(
                        "hangs: {:?} of silence after {last:?}",
                        silence_timeout()
                    ));
                    self.stacks();
                    self.kill();
                    killed = true;
                }
            }
        }
        let status = self.wait(judge, &last);
        let clean = self.judge_end(judge, status, killed, &last);
        judge.hear(&Event::End(match (clean, cut) {
            (_, Some(_)) => End::PowerCut,
            (true, None) => End::Clean,
            (false, None) => End::Kill,
        }));
    }

    /// The child has closed its standard output and must exit.
    fn wait(&mut self, judge: &mut Judge, last: &str) -> Option<ExitStatus> {
        let deadline = Instant::now() + silence_timeout();
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => {
                    judge.problem(format!("does not exit after {last:?}"));
                    self.kill();
                    return self.process.wait().ok();
                }
            }
        }
    }

    /// Checks its exit status and error output; returns whether it ended without a signal.
    fn judge_end(
        &self,
        judge: &mut Judge,
        status: Option<ExitStatus>,
        killed: bool,
        last: &str,
    ) -> bool {
        let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let _ = std::fs::remove_file(&self.errors);
        let lines: Vec<&str> = errors.lines().collect();
        for (i, line) in lines.iter().enumerate().filter(|(_, l)| l.contains("panicked")) {
            let text = lines.get(i + 1).unwrap_or(&"");
            judge.problem(format!("panic: {line} {text}"));
        }
        let clean = status.is_some_and(|s| s.success());
        if !clean && !killed {
            let how = status.map(|s| (s.code(), s.signal()));
            let text: String = lines.join(" | ").chars().take(300).collect();
            judge.problem(format!("ends with {how:?} after {last:?}: {text}"));
        }
        clean
    }

    /// Prints the thread stacks of a hanging child if a debugger is installed.
    fn stacks(&self) {
        let pid = self.process.id().to_string();
        let args = ["-p", &pid, "-batch", "-ex", "thread apply all backtrace 24"];
        if let Ok(out) = Command::new("gdb").args(args).output() {
            let text = String::from_utf8_lossy(&out.stdout);
            let ours = |l: &&str| l.starts_with("Thread") || l.contains("topics_");
            text.lines().filter(ours).for_each(|l| println!("    {l}"));
        }
    }
}
