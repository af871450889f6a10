//! The command line: flags to configuration, errors to one line and an exit code.
//!
//! Runs on the main thread. Exit codes: 0 done, 1 the broker (or a load run) failed while it ran, 2 it did not start
//! or the command line is wrong, 130 a load run was interrupted.

mod policy;
mod trace;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use lepus_bench::BenchError;
use lepus_bench::cli::BenchArgs;
use thiserror::Error;

use self::policy::PolicyCommand;
use self::trace::TraceCommand;
use crate::boot::{self, BootError, ServerPlan, Supervisor};
use crate::check_store::{CheckError, check_store};
use crate::config::{Assignment, Config, ConfigError, FILE_VARIABLE, Sources};
use crate::doctor::{self, Action, DoctorError};
use crate::policies::PolicyError;
use crate::stored_topology::StoredTopologyError;

/// An AMQP 0-9-1 broker for dedicated Linux servers.
#[derive(Debug, Parser)]
#[command(name = "lepus", version, disable_help_subcommand = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the broker until SIGTERM or SIGINT.
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Check a configuration, or print the default one.
    Config(ConfigArgs),
    /// Examine this host for a broker: what keeps it from running well, why, and what changes that. Limits are
    /// those of the doctor itself, so run it as the broker is run. Exits with 1 if something stops the broker or
    /// endangers its data.
    Doctor(DoctorArgs),
    /// Read everything that a stopped broker has left in its data directory, and say what is there. Exits
    /// with 1 if something is damaged.
    CheckStore {
        /// The data directory.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Policies of a stopped broker: what is asked of queues and exchanges by their names.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Tracing of a stopped broker's vhosts: what goes in and out is published once more, for whoever looks.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Put load on a broker, Lepus or another, and say what it does and what it costs.
    Bench(BenchArgs),
}

const SERVE_HELP: &str = "\
Every key of the configuration can be set in three ways. The later ones win:
  in the file            [amqp]
                         heartbeat_s = 30
  in the environment     LEPUS_AMQP_HEARTBEAT_S=30
  by a flag              --set amqp.heartbeat_s=30
`lepus config --print-default` prints all keys with what they mean and accept.

The first SIGTERM or SIGINT drains: no more connections are accepted, open ones are closed with 320, and
the process exits with 0 within 10 s. A second one ends it at once.
SIGUSR1 makes each shard log where its time goes.";

#[derive(Debug, Default, Args)]
struct ServeArgs {
    /// Configuration file (TOML). Without it, LEPUS_CONFIG names one, or there is none.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for everything that outlives the process [default: ./lepus-data].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Address to accept AMQP connections on; may be given several times [default: 127.0.0.1:5672].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<String>,
    /// Number of shards [default: one for each CPU].
    #[arg(long, value_name = "N", conflicts_with = "cpus", allow_hyphen_values = true)]
    shards: Option<String>,
    /// CPUs to run shards on, one on each: 0-3,8.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    cpus: Option<String>,
    /// Set any key of the configuration; may be given several times. Lists are separated by commas.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ConfigArgs {
    /// Check a configuration file: say `ok`, or what is wrong with it and where.
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Print the default configuration, with what each key means and accepts.
    #[arg(long)]
    print_default: bool,
}

#[derive(Debug, Args)]
struct DoctorArgs {
    /// For programs.
    #[arg(long, conflicts_with = "fix")]
    json: bool,
    /// Change what can be changed by a command, until the next boot; needs --yes, or --dry-run.
    #[arg(long)]
    fix: bool,
    /// Only print a shell script of the changes.
    #[arg(long, requires = "fix")]
    dry_run: bool,
    /// Do change this host.
    #[arg(long, requires = "fix")]
    yes: bool,
    /// Print a file to install: unit, sysctl, udev, limits or tmpfiles. Its first line says where it belongs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "fix"])]
    print: Option<String>,
    /// The broker that is to run here.
    #[command(flatten, next_help_heading = "The broker that is to run here")]
    serve: ServeArgs,
}

/// What ends the command with an error.
#[derive(Debug, Error)]
enum CliError {
    #[error("{0}; see `lepus --help`")]
    Usage(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Trace(#[from] StoredTopologyError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    #[error("{} is damaged in {damage} places", path.display())]
    Damaged { path: PathBuf, damage: usize },
}

/// Does what the command line says. `server` runs the shards, see [`boot::serve`].
pub fn run<E: Display>(
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    server: impl FnOnce(ServerPlan) -> Result<(), E>,
) -> ExitCode {
    let command_line = match CommandLine::try_parse_from(arguments) {
        Ok(command_line) => command_line,
        // Help and version are asked for: they go to standard output, and it may be closed.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&CliError::Usage(usage_line(&error))),
    };
    let result = match command_line.command {
        Command::Bench(args) => match lepus_bench::cli::run(&args) {
            // After a signal it is not 0, though there are figures.
            Ok(code) => return ExitCode::from(code),
            Err(error) => Err(error.into()),
        },
        Command::Serve(args) => serve(&args, environment.into_iter().collect(), server),
        Command::Config(ConfigArgs { check: Some(path), .. }) => check(&path),
        Command::Config(ConfigArgs { check: None, .. }) => {
            print(&Config::default().to_commented_toml());
            Ok(())
        }
        Command::Doctor(args) => examine(&args, environment.into_iter().collect()),
        Command::CheckStore { directory } => check_data(directory),
        Command::Policy(command) => policy::run(command).map(|text| print(&text)).map_err(CliError::from),
        Command::Trace(command) => trace::run(command).map(|text| print(&text)).map_err(CliError::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn serve<E: Display>(
    args: &ServeArgs,
    environment: Vec<(OsString, OsString)>,
    server: impl FnOnce(ServerPlan) -> Result<(), E>,
) -> Result<(), CliError> {
    let config = configure(args, environment.clone())?;
    start_logging(&config);
    Ok(boot::serve(&config, &Supervisor::of_environment(&environment), server)?)
}

fn configure(args: &ServeArgs, environment: Vec<(OsString, OsString)>) -> Result<Config, ConfigError> {
    let named = environment.iter().find(|(name, _)| name == FILE_VARIABLE).map(|(_, path)| Path::new(path));
    let file = args.config.as_deref().or(named);
    let flags = assignments(args)?;
    Config::load(&Sources { file, environment: environment.clone(), flags })
}

/// What the flags set, `--set` first: a flag of its own is the more explicit one.
fn assignments(args: &ServeArgs) -> Result<Vec<Assignment>, ConfigError> {
    let mut assignments =
        args.set.iter().map(|text| Assignment::from_set(text)).collect::<Result<Vec<_>, _>>()?;
    let listen = (!args.listen.is_empty()).then(|| args.listen.join(","));
    let flags =
        [("data_dir", &args.data_dir), ("listen", &listen), ("shards", &args.shards), ("cpus", &args.cpus)];
    for (key, value) in flags {
        if let Some(value) = value {
            let flag = format!("--{}", key.replace('_', "-"));
            assignments.push(Assignment { flag, key: key.to_owned(), value: value.clone() });
        }
    }
    Ok(assignments)
}

fn check(path: &Path) -> Result<(), CliError> {
    Config::load(&Sources { file: Some(path), ..Sources::default() })?;
    print(&format!("{}: ok\n", path.display()));
    Ok(())
}

fn examine(args: &DoctorArgs, environment: Vec<(OsString, OsString)>) -> Result<(), CliError> {
    if let Some(name) = &args.print {
        print(doctor::print_file(name)?);
        return Ok(());
    }
    let action = Action::of_flags(args.json, args.fix, args.dry_run, args.yes)?;
    let (text, verdict) = doctor::doctor(&configure(&args.serve, environment)?, action);
    print(&text);
    Ok(verdict?)
}

fn check_data(path: PathBuf) -> Result<(), CliError> {
    let findings = check_store(&path)?;
    print(&findings.text);
    match findings.damage {
        0 => Ok(()),
        damage => Err(CliError::Damaged { path, damage }),
    }
}

/// Logs go to standard error; standard output is for the answers that programs wait for.
fn start_logging(config: &Config) {
    // A test or an embedding program may have set up logging of its own: that one stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(config.log_level.filter())
        .with_writer(|| StandardError)
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .try_init();
}

/// Standard error, as long as somebody reads it: a log that nobody gets is no reason to end.
struct StandardError;

impl io::Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(io::stderr().write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whoever reads may have gone (`| head`): that is no error.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn fail(error: &CliError) -> ExitCode {
    let _ = writeln!(io::stderr().lock(), "lepus: {}", one_line(&error.to_string()));
    ExitCode::from(exit_code(error))
}

fn exit_code(error: &CliError) -> u8 {
    match error {
        CliError::Boot(error) => error.exit_code(),
        CliError::Bench(error) if error.is_usage() => 2,
        CliError::Bench(BenchError::Interrupted) => lepus_bench::stop::INTERRUPTED_EXIT,
        CliError::Damaged { .. } | CliError::Bench(_) => 1,
        CliError::Doctor(DoctorError::Unfit | DoctorError::NotChanged { .. }) => 1,
        CliError::Doctor(_) => 2,
        CliError::Usage(_) | CliError::Config(_) | CliError::Check(_) => 2,
        CliError::Policy(_) | CliError::Trace(_) => 2,
    }
}

/// Texts of other libraries within ours may have several lines.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Of a multi-line complaint about the command line, what is wrong and the suggestion.
fn usage_line(error: &clap::Error) -> String {
    if matches!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand) {
        return "no command given".to_owned();
    }
    let text = error.to_string();
    let before_usage = text.split("\n\nUsage:").next().unwrap_or(&text);
    let before_usage = before_usage.split("\n\nFor more information").next().unwrap_or(before_usage);
    let line = one_line(before_usage).replace(" tip:", ";");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
