//! The rows of a benchmark: printed as a table and saved as lines of JSON.
//!
//! `report.py` is the same for the benchmarks in Python, and describes the format.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::{Map, Value, json};

use crate::{Placement, Samples, median};

/// Whether a goal is a ceiling or a floor.
#[derive(Clone, Copy)]
pub enum Goal {
    /// At most this.
    Max(f64),
    /// At least this.
    Min(f64),
    /// No goal: for comparison.
    None,
}

/// One row.
pub struct Row {
    work: String,
    figure: f64,
    unit: &'static str,
    goal: Goal,
    runs: Vec<f64>,
    device: Option<f64>,
    peers: Map<String, Value>,
    latency: Vec<(f64, f64)>,
    device_latency: Vec<(f64, f64)>,
    notes: Vec<String>,
}

impl Row {
    /// A single figure. `work` names the row within its program, so it is there once.
    pub fn new(work: impl Into<String>, figure: f64, unit: &'static str) -> Self {
        Self {
            work: work.into(),
            figure,
            unit,
            goal: Goal::None,
            runs: vec![figure],
            device: None,
            peers: Map::new(),
            latency: Vec::new(),
            device_latency: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The median of repetitions.
    pub fn repeated(work: impl Into<String>, runs: Vec<f64>, unit: &'static str) -> Self {
        Self { runs: runs.clone(), ..Self::new(work, median(runs), unit) }
    }

    /// The p50 of latencies in µs, with the placement and the higher quantiles as notes.
    pub fn latency(work: impl Into<String>, placement: Placement, samples: &mut Samples) -> Self {
        let notes = vec![placement.name().into(), samples.tail()];
        let curve = samples.curve();
        Self { latency: curve, notes, ..Self::new(work, samples.us(0.5), "µs") }
    }

    /// The row under another name.
    pub fn named(self, work: impl Into<String>) -> Self {
        Self { work: work.into(), ..self }
    }

    /// The goal.
    pub fn goal(self, goal: Goal) -> Self {
        Self { goal, ..self }
    }

    /// The p50 of each repetition of a row of latencies; their median is the figure.
    pub fn runs(self, runs: Vec<f64>) -> Self {
        Self { figure: median(runs.clone()), runs, ..self }
    }

    /// What the device does in the same run, in the unit of the row.
    pub fn device(self, figure: f64) -> Self {
        Self { device: Some(figure), ..self }
    }

    /// The latencies of the device in the same run.
    pub fn device_latency(mut self, samples: &mut Samples) -> Self {
        self.device_latency = samples.curve();
        self.note(format!("device p50 {:.0}, {}", samples.us(0.5), samples.tail()))
            .device(samples.us(0.5))
    }

    /// The figure of another product, in the unit of the row.
    pub fn peer(mut self, name: &str, figure: f64) -> Self {
        self.peers.insert(name.into(), json!(figure));
        self
    }

    /// Text after the row.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// The figure.
    pub fn figure(&self) -> f64 {
        self.figure
    }

    fn is_less_better(&self) -> bool {
        match self.goal {
            Goal::Max(_) => true,
            Goal::Min(_) => false,
            Goal::None => ["µs", "ms", "s", "B", "MB", "MiB", "GB", "min"].contains(&self.unit),
        }
    }

    fn line(&self, program: &str) -> String {
        let goal = match self.goal {
            Goal::Max(g) | Goal::Min(g) => Some(g),
            Goal::None => None,
        };
        let better = if self.is_less_better() { "less" } else { "more" };
        json!({
            "program": program,
            "work": self.work,
            "figure": self.figure,
            "unit": self.unit,
            "better": better,
            "goal": goal,
            "runs": self.runs,
            "device": self.device,
            "peers": self.peers,
            "latency": self.latency,
            "device_latency": self.device_latency,
            "notes": self.notes,
        })
        .to_string()
    }

    /// Appends the row to the file `TOPICS_BENCH_OUT`, if there is one.
    pub fn save(&self, program: &str) {
        let Some(path) = std::env::var_os("TOPICS_BENCH_OUT") else { return };
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all((self.line(program) + "\n").as_bytes()).unwrap();
    }
}

/// A table of rows with goals.
pub struct Table {
    program: &'static str,
    missed: Vec<String>,
    works: Vec<String>,
}

impl Table {
    /// Prints the heading.
    pub fn new(program: &'static str, title: &str) -> Self {
        println!("\n{title}\n{:-<118}", "");
        println!("{:<46}{:>12} {:<7}{:>12}  {:<6}notes", "work", "figure", "unit", "goal", "");
        Self { program, missed: Vec::new(), works: Vec::new() }
    }

    /// Prints and saves a row of one figure.
    pub fn row(&mut self, work: &str, figure: f64, unit: &'static str, goal: Goal, notes: &str) {
        let row = Row::new(work, figure, unit).goal(goal);
        self.add(if notes.is_empty() { row } else { row.note(notes) });
    }

    /// Prints and saves a row, and records whether its goal was missed.
    pub fn add(&mut self, row: Row) {
        assert!(!self.works.contains(&row.work), "two rows are called {:?}", row.work);
        let (text, ok) = match row.goal {
            Goal::Max(g) => (format!("≤ {}", short(g)), row.figure <= g),
            Goal::Min(g) => (format!("≥ {}", short(g)), row.figure >= g),
            Goal::None => (String::new(), true),
        };
        let mark = match row.goal {
            Goal::None => "",
            _ if ok => "ok",
            _ => "MISSED",
        };
        let (work, figure, unit) = (&row.work, short(row.figure), row.unit);
        let notes = row.notes.join("; ");
        println!("{work:<46}{figure:>12} {unit:<7}{text:>12}  {mark:<6} {notes}");
        if !ok {
            self.missed.push(format!("{work}: {figure} {unit}, goal {text}"));
        }
        row.save(self.program);
        self.works.push(row.work);
    }

    /// Prints the missed goals.
    pub fn finish(self) {
        if self.missed.is_empty() {
            println!("every goal of this table is met");
        }
        for m in self.missed {
            println!("goal missed: {m}");
        }
    }
}

/// A figure in at most eight characters.
pub fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 1e7 => format!("{:.1} M", v / 1e6),
        a if a >= 1e6 => format!("{:.2} M", v / 1e6),
        a if a >= 1e4 => format!("{:.1} k", v / 1e3),
        a if a >= 100.0 => format!("{v:.0}"),
        _ => format!("{v:.2}"),
    }
}
