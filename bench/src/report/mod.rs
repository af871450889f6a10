//! What a workload gave, in one form for all of them, so that every output and every comparison takes any workload.

pub mod csv;
pub mod figures;
pub mod hgrm;
pub mod json;
pub mod plot;
pub mod table;

use serde::Serialize;

use crate::client::Broker;
use crate::engine::histograms::Histograms;
use crate::engine::progress::Sample;
use crate::uri::BrokerUri;
pub use figures::{Better, Figure, Unit};

/// What a workload gave.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Its name on the command line.
    pub workload: &'static str,
    /// The broker, unless the workload has none.
    pub broker: Option<Place>,
    /// What it was asked for, as JSON.
    pub options: serde_json::Value,
    /// Single numbers.
    pub figures: Vec<Figure>,
    /// Latencies in nanoseconds.
    pub histograms: Histograms,
    /// Rates over time.
    pub samples: Vec<Sample>,
    /// Runs that the workload consists of, such as the steps of a sweep.
    pub steps: Vec<Step>,
    /// What whoever reads the figures has to know.
    pub notes: Vec<String>,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

/// A broker and where it is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Place {
    /// Without the password.
    pub uri: String,
    /// What it says that it is.
    #[serde(flatten)]
    pub broker: Broker,
}

/// One of the runs that a workload consists of.
#[derive(Clone, Debug)]
pub struct Step {
    /// What is special about it.
    pub name: String,
    /// Its numbers.
    pub figures: Vec<Figure>,
}

impl Report {
    /// Nothing yet.
    pub fn new(workload: &'static str, options: &impl Serialize) -> Report {
        let options = serde_json::to_value(options).expect("options are plain data");
        Report { workload, options, ..Report::default() }
    }

    /// Of this broker.
    pub fn of(mut self, uri: &BrokerUri, broker: Broker) -> Report {
        self.broker = Some(Place { uri: uri.to_string(), broker });
        self
    }

    /// Adds a number.
    pub fn push(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// One of the numbers.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}
