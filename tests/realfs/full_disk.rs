//! One run on a small tmpfs: fill it, end the process, open it again, free space, go on.

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
    /// One of both, and the next process finds a disk without any space.
    StillFull,
}

impl Ending {
    pub const ALL: [Self; 3] = [Self::Close, Self::Kill, Self::StillFull];

    /// Its name in the environment and in the output.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Kill => "kill",
            Self::StillFull => "still_full",
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
            Ending::Close => false,
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
        let mode = if self.ending == Ending::StillFull { Mode::Full } else { Mode::Reopen };
        let mut filler = None;
        if mode == Mode::Full {
            filler = Some(disk.fill()?);
        }
        Child::start(&self.task(disk, mode, 2))?.follow(judge, |event| match event {
            Event::Note(text) if text == MAKE_ROOM => {
                // A removal that fails shows: nothing goes on.
                let _ = filler.take().map(std::fs::remove_file);
                Action::Release
            }
            _ => Action::Follow,
        });
        // What the second process did is there for a third.
        Child::start(&self.task(disk, Mode::Look, 3))?.follow(judge, |_| Action::Follow);
        Ok(())
    }
}
