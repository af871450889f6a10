//! Brokers side by side: the same workloads against each in turns (A B A B), so that what else the machine does meets
//! all of them; then medians, ratios, and how far the runs lie apart.

pub mod output;
pub mod sets;
pub mod stats;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};

use crate::cli::{Workload, print};
use crate::client::{Broker, Client};
use crate::error::BenchError;
use crate::options::{Context, seconds};
use crate::report::{Better, Report};
use crate::stop::Stop;
use crate::uri::BrokerUri;
use sets::Named;
use stats::Table;

/// What to compare.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// A broker, as NAME=URI; at least two. Ratios are to the first.
    #[arg(long = "uri", value_name = "NAME=URI", required_unless_present = "list", value_parser = target)]
    pub targets: Vec<(String, BrokerUri)>,
    /// A broker's process, as NAME=PID.
    #[arg(long, value_name = "NAME=PID", value_parser = named_pid)]
    pub pid: Vec<(String, u32)>,
    /// A named set of workloads; --list shows them.
    #[arg(long, default_value = "quick")]
    pub set: String,
    /// A workload instead of a set, as NAME=OPTIONS such as 'small=throughput --body 16'; may be given several times.
    #[arg(long, value_name = "NAME=OPTIONS")]
    pub workload: Vec<String>,
    /// Show the sets and their workloads, and run nothing.
    #[arg(long)]
    pub list: bool,
    /// How often each workload runs against each broker.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// How long each run takes, whatever its workload says.
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// A directory on the disk that the brokers use, for workloads that need one.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print CSV, one line for each figure and broker, instead of a table.
    #[arg(long)]
    pub csv: bool,
    /// Write bars of the figures that matter most.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// No progress on the terminal.
    #[arg(long, short)]
    pub quiet: bool,
}

fn target(text: &str) -> Result<(String, BrokerUri), String> {
    let (name, uri) = text.split_once('=').ok_or("the form is NAME=URI")?;
    let uri: BrokerUri = uri.parse().map_err(|error: BenchError| error.to_string())?;
    match name.is_empty() {
        true => Err("the form is NAME=URI".to_owned()),
        false => Ok((name.to_owned(), uri)),
    }
}

fn named_pid(text: &str) -> Result<(String, u32), String> {
    let (name, pid) = text.split_once('=').ok_or("the form is NAME=PID")?;
    let pid = pid.parse().map_err(|_| format!("'{pid}' is not a process id"))?;
    Ok((name.to_owned(), pid))
}

/// A broker that takes part.
#[derive(Clone, Debug)]
pub struct Target {
    /// On the command line.
    pub name: String,
    /// Where it is.
    pub uri: BrokerUri,
    /// Its process, if known.
    pub pid: Option<u32>,
    /// What it says that it is.
    pub broker: Broker,
}

/// One line of a workload's options, as the command line reads it.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct Line {
    #[command(subcommand)]
    workload: Workload,
}

impl CompareArgs {
    /// Runs, and writes what came out. Whether a signal ended it.
    ///
    /// # Errors
    /// When options make no sense, a broker is not there, or a file cannot be written.
    pub fn run(&self, stop: &Stop) -> Result<bool, BenchError> {
        if self.list {
            print(&sets::list());
            return Ok(false);
        }
        let workloads = self.workloads()?;
        let targets = self.connect()?;
        // All options are checked before the first run, which may be an hour before the last.
        for named in &workloads {
            for target in &targets {
                self.parse(named, target)?;
            }
        }
        let mut table = Table::new(&targets, self.rounds);
        'all: for round in 0..self.rounds {
            for named in &workloads {
                for (number, target) in targets.iter().enumerate() {
                    if stop.is_set() {
                        break 'all;
                    }
                    self.say(&format!(
                        "round {} of {}: {} on {}",
                        round + 1,
                        self.rounds,
                        named.name,
                        target.name
                    ));
                    let context = Context { stop: stop.clone(), quiet: self.quiet };
                    match self.parse(named, target)?.run(&context) {
                        // A run that was cut short is not compared.
                        Ok(report) if report.interrupted => break 'all,
                        Ok(report) => {
                            table.add(&named.name, number, round, &compared(&report), &report.notes)
                        }
                        Err(BenchError::Interrupted) => break 'all,
                        // Others go on: a broker may not have what one workload needs.
                        Err(error) => table.fail(&named.name, number, &error.to_string()),
                    }
                }
            }
        }
        if let Some(path) = &self.plot {
            std::fs::write(path, output::svg(&table)).map_err(BenchError::file(path))?;
        }
        print(&match (self.json, self.csv) {
            (true, _) => format!("{}\n", output::json(&table)),
            (_, true) => output::csv(&table),
            _ => output::text(&table),
        });
        Ok(stop.is_set())
    }

    fn workloads(&self) -> Result<Vec<Named>, BenchError> {
        if !self.workload.is_empty() {
            return self.workload.iter().map(|text| Named::parse(text)).collect();
        }
        let mut all = sets::find(&self.set)?;
        // A set is of use without a process or a directory as well.
        all.retain(|named| {
            let lacks = match named.needs() {
                sets::Needs::Nothing => None,
                sets::Needs::Directory => self.directory.is_none().then_some("--directory"),
                sets::Needs::Process => {
                    (self.pid.len() < self.targets.len()).then_some("--pid for each broker")
                }
            };
            if let Some(lacks) = lacks {
                self.say(&format!("{} is left out: it needs {lacks}", named.name));
            }
            lacks.is_none()
        });
        Ok(all)
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("lepus bench compare: {text}");
        }
    }

    fn connect(&self) -> Result<Vec<Target>, BenchError> {
        let wrong = |text: String| Err(BenchError::Options(text));
        if self.targets.len() < 2 {
            return wrong("a comparison needs two brokers at least: give --uri NAME=URI twice".to_owned());
        }
        for (number, (name, _)) in self.targets.iter().enumerate() {
            if self.targets[..number].iter().any(|(other, _)| other == name) {
                return wrong(format!("two brokers are named '{name}'"));
            }
        }
        if let Some((name, _)) =
            self.pid.iter().find(|(name, _)| !self.targets.iter().any(|(other, _)| other == name))
        {
            return wrong(format!("--pid names '{name}', which is no --uri"));
        }
        self.targets
            .iter()
            .map(|(name, uri)| {
                let client = Client::connect(uri)?;
                let broker = client.broker.clone();
                client.close();
                let pid = self.pid.iter().find(|(of, _)| of == name).map(|(_, pid)| *pid);
                Ok(Target { name: name.clone(), uri: uri.clone(), pid, broker })
            })
            .collect()
    }

    /// A workload against one broker.
    fn parse(&self, named: &Named, target: &Target) -> Result<Workload, BenchError> {
        let mut words = named.words.clone();
        if named.has_broker() {
            // The shown form has no password.
            let BrokerUri { user, password, .. } = &target.uri;
            let login = format!("amqp://{}:{}@", escaped(user), escaped(password));
            words.extend(["--uri".to_owned(), target.uri.to_string().replacen("amqp://", &login, 1)]);
            if let Some(pid) = target.pid {
                words.extend(["--pid".to_owned(), pid.to_string()]);
            }
        }
        if let (Some(time), true) = (self.seconds, named.has_seconds()) {
            words.extend(["--seconds".to_owned(), time.as_secs_f64().to_string()]);
        }
        if let (Some(directory), sets::Needs::Directory) = (&self.directory, named.needs()) {
            words.extend(["--directory".to_owned(), directory.display().to_string()]);
        }
        match Line::try_parse_from(&words) {
            Ok(line) => Ok(line.workload),
            Err(error) => {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                Err(BenchError::Options(format!("workload {}: {first}", named.name)))
            }
        }
    }
}

/// Percent-encodes what has a meaning in a URI.
fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    text.bytes().map(escape).collect()
}

/// The figures that say how good a broker is.
fn compared(report: &Report) -> Vec<crate::report::Figure> {
    report.figures.iter().filter(|figure| figure.better != Better::Neither).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        args: CompareArgs,
    }

    fn args(words: &[&str]) -> CompareArgs {
        Whole::try_parse_from([&["compare"], words].concat()).unwrap().args
    }

    fn a_target() -> Target {
        let uri = "amqp://u:p%40%3a@h:1/v%2fw".parse().unwrap();
        Target { name: "a".into(), uri, pid: Some(7), broker: Broker::default() }
    }

    #[test]
    fn every_workload_of_every_set_is_one_that_the_command_line_takes() {
        let compare = args(&["--uri", "a=amqp://h", "--seconds", "0.5", "--directory", "/tmp"]);
        for set in sets::names() {
            for named in sets::find(set).unwrap() {
                compare.parse(&named, &a_target()).unwrap();
            }
        }
    }

    #[test]
    fn a_workload_gets_the_broker_its_process_and_the_time() {
        let compare = args(&["--uri", "a=amqp://h", "--seconds", "0.5"]);
        let named = Named::parse("x=throughput --body 20 --seconds 9").unwrap();
        let Workload::Throughput { args, .. } = compare.parse(&named, &a_target()).unwrap() else { panic!() };
        assert_eq!(args.broker.uri, a_target().uri);
        assert_eq!((args.broker.pid, args.seconds), (Some(7), Duration::from_millis(500)));
        assert_eq!(args.body, "20".parse().unwrap());
    }

    #[test]
    fn names_that_do_not_fit_are_refused_before_anything_runs() {
        for words in [
            &["--uri", "a=amqp://h"][..],
            &["--uri", "a=amqp://h", "--uri", "a=amqp://i"],
            &["--uri", "a=amqp://h", "--uri", "b=amqp://i", "--pid", "c=1"],
        ] {
            assert!(args(words).connect().unwrap_err().is_usage(), "{words:?}");
        }
        assert!(Named::parse("no-options").is_err());
        let compare = args(&["--uri", "a=amqp://h"]);
        let unknown = Named::parse("x=throughput --no-such").unwrap();
        assert!(compare.parse(&unknown, &a_target()).unwrap_err().is_usage());
    }
}
