//! One run on a small tmpfs: fill it, end the process, open it again, free space, go on.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::child::{MAKE_ROOM, Mode, Task};
use super::event::Event;
use super::judge::Judge;
use super::mount::Mounted;
use super::process::{Action, Child};
use super::scenario::{Scale, Scenario};
use crate::run::Dice;

/// How the process on the full disk ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A close, or a drop.
    Close,
    /// SIGKILL.
    Kill,
    /// One of both, and the next process finds a disk without any space, beside what the directory has
    /// allocated for that.
    StillFull,
    /// A close, and nothing is left: no free byte, no reserve, no unused end of a log file, as in a copy
    /// of the directory that just fits.
    NoByte,
}

impl Ending {
    /// The endings that every scenario has.
    pub const ALL: [Self; 3] = [Self::Close, Self::Kill, Self::StillFull];

    /// Its name in the environment and in the output.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Kill => "kill",
            Self::StillFull => "still_full",
            Self::NoByte => "no_byte",
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub scenario: Scenario,
    pub ending: Ending,
    pub bytes: u64,
    pub seed: u64,
    pub scale: Scale,
}

impl Case {
    fn task(&self, disk: &Mounted, mode: Mode, life: u64) -> Task {
        Task {
            mode,
            scenario: self.scenario,
            dir: disk.disk().join("data"),
            seed: self.seed,
            life,
            dropped: life == 1 && self.seed & 32 != 0,
            scale: self.scale,
        }
    }

    /// Runs it on a disk that was mounted for it; the judge knows what went wrong.
    pub fn run(&self, disk: &Mounted) -> Judge {
        let mut judge = Judge::new(self.scenario.routes(self.seed));
        if let Err(e) = self.lives(disk, &mut judge) {
            judge.problem(e);
        }
        judge
    }

    fn lives(&self, disk: &Mounted, judge: &mut Judge) -> Result<(), String> {
        let mut dice = Dice::new(!self.seed);
        let kill = match self.ending {
            Ending::Close | Ending::NoByte => false,
            Ending::Kill => true,
            Ending::StillFull => dice.below(2) == 0,
        };
        // Killed somewhere after the first refusal.
        let mut lines = kill.then(|| dice.below(20 * self.scale.refusals));
        let mut refused = false;
        Child::start(&self.task(disk, Mode::Load, 1))?.follow(judge, |event| {
            refused |= matches!(event, Event::Refused { certain: false, .. });
            match &mut lines {
                Some(0) => Action::Kill,
                Some(n) if refused => {
                    *n -= 1;
                    Action::Follow
                }
                _ => Action::Follow,
            }
        });
        if !refused {
            judge.problem("nothing was refused: this tests nothing".into());
        }
        let mode = match self.ending {
            Ending::Close | Ending::Kill => Mode::Reopen,
            Ending::StillFull => Mode::Full,
            Ending::NoByte => Mode::NoByte,
        };
        let mut filler = None;
        let mut life = 1;
        if mode == Mode::NoByte {
            // An open uses what files that nothing names took: the last one finds none of them.
            for _ in 0..2 {
                self.fill_to_the_last_byte(disk)?;
                life += 1;
                let killed = |event: &Event| match event {
                    Event::Note(text) if text == MAKE_ROOM => Action::Kill,
                    _ => Action::Follow,
                };
                Child::start(&self.task(disk, Mode::Full, life))?.follow(judge, killed);
            }
            filler = Some(self.fill_to_the_last_byte(disk)?);
        } else if mode == Mode::Full {
            filler = Some(disk.fill()?);
        }
        life += 1;
        Child::start(&self.task(disk, mode, life))?.follow(judge, |event| match event {
            Event::Note(text) if text == MAKE_ROOM => {
                // A removal that fails shows: nothing goes on.
                let _ = filler.take().map(std::fs::remove_file);
                Action::Release
            }
            _ => Action::Follow,
        });
        // What the second process did is there for a third.
        Child::start(&self.task(disk, Mode::Look, life + 1))?.follow(judge, |_| Action::Follow);
        Ok(())
    }

    fn fill_to_the_last_byte(&self, disk: &Mounted) -> Result<PathBuf, String> {
        let dir = self.task(disk, Mode::NoByte, 0).dir;
        strip(&dir).map_err(|e| format!("strip {}: {e}", dir.display()))?;
        disk.fill()
    }
}

/// Takes away what a directory has allocated and not used: its reserve, and the ends of its log files.
fn strip(dir: &Path) -> io::Result<()> {
    let cut = |path: &Path, len| OpenOptions::new().write(true).open(path)?.set_len(len);
    cut(&dir.join("meta/reserve"), 0)?;
    for shard in fs::read_dir(dir.join("wal"))? {
        for file in fs::read_dir(shard?.path())? {
            let path = file?.path();
            if path.extension().is_some_and(|e| e == "log") {
                let bytes = fs::read(&path)?;
                // The last frame ends with a checksum of 8 bytes, which may end with zeros.
                let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 8);
                cut(&path, used.min(bytes.len()) as u64)?;
            }
        }
    }
    Ok(())
}
