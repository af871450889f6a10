use std::fs;

use clap::CommandFactory as _;

use super::*;
use crate::test_dir::TestDir;

fn serve_args(flags: &[&str]) -> ServeArgs {
    let arguments = ["lepus", "serve"].iter().chain(flags);
    match CommandLine::try_parse_from(arguments).unwrap().command {
        Command::Serve(args) => args,
        Command::Config(_)
        | Command::Doctor(_)
        | Command::CheckStore { .. }
        | Command::Policy(_)
        | Command::Trace(_)
        | Command::Bench(_) => {
            unreachable!("serve was given")
        }
    }
}

fn config(flags: &[&str], variables: &[(&str, &str)]) -> Result<Config, String> {
    let environment = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    configure(&serve_args(flags), environment).map_err(|error| error.to_string())
}

fn usage(arguments: &[&str]) -> String {
    let error = CommandLine::try_parse_from(arguments).unwrap_err();
    let line = CliError::Usage(usage_line(&error)).to_string();
    assert!(!line.contains('\n'), "one line: {line}");
    line
}

/// Runs a command that must not get as far as starting a server.
fn run_without_server(arguments: &[&str]) -> ExitCode {
    let arguments = arguments.iter().map(OsString::from);
    run(arguments, [], |_| -> Result<(), String> { unreachable!("nothing may be served") })
}

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn a_load_run_with_wrong_options_is_a_usage_error() {
    assert!(usage(&["lepus", "bench", "throughput", "--no-such"]).contains("--no-such"));
    assert!(usage(&["lepus", "bench", "latency", "--rate", "0"]).contains("rate above 0"));
    let code = run_without_server(&["lepus", "bench", "idle"]);
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(2)));
}

#[test]
fn flags_become_configuration() {
    let flags = [
        "--data-dir",
        "/srv/x",
        "--listen",
        "127.0.0.1:1",
        "--listen",
        "[::1]:2",
        "--shards",
        "3",
        "--set",
        "amqp.heartbeat_s=7",
        "--set",
        "auth.loopback_users=",
    ];
    let config = config(&flags, &[]).unwrap();
    assert_eq!(config.data_dir, Path::new("/srv/x"));
    assert_eq!(config.listen, ["127.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]);
    assert_eq!((config.shards, config.heartbeat_s), (Some(3), 7));
    assert!(config.loopback_users.is_empty());
}

#[test]
fn a_flag_of_its_own_wins_over_set() {
    assert_eq!(config(&["--shards", "3", "--set", "shards=4"], &[]).unwrap().shards, Some(3));
}

#[test]
fn the_file_is_named_by_flag_or_by_variable() {
    let dir = TestDir::new();
    let paths = ["a", "b"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    fs::write(&paths[0], "shards = 1").unwrap();
    fs::write(&paths[1], "shards = 2").unwrap();
    assert_eq!(config(&[], &[("LEPUS_CONFIG", &paths[0])]).unwrap().shards, Some(1));
    assert_eq!(config(&["--config", &paths[1]], &[("LEPUS_CONFIG", &paths[0])]).unwrap().shards, Some(2));
}

#[test]
fn a_bad_flag_is_named_as_it_was_written() {
    let error = config(&["--listen", "5672"], &[]).unwrap_err();
    assert!(
        error.starts_with("--listen: `listen` is 5672, but must be one or more of ADDRESS:PORT"),
        "{error}"
    );
    let error = config(&["--shards", "-1"], &[]).unwrap_err();
    assert!(error.starts_with("--shards: `shards` is -1, but must be an integer from 1"), "{error}");
}

#[test]
fn a_wrong_command_line_is_one_line_with_a_suggestion() {
    let line = usage(&["lepus", "serv"]);
    assert!(
        line.contains("'serv'") && line.contains("'serve'") && line.ends_with("see `lepus --help`"),
        "{line}"
    );
    let line = usage(&["lepus", "serve", "--shard", "2"]);
    assert!(line.contains("'--shard'") && line.contains("'--shards'"), "{line}");
    let line = usage(&["lepus", "serve", "--shards", "2", "--cpus", "0"]);
    assert!(line.contains("--shards") && line.contains("--cpus"), "{line}");
    assert!(usage(&["lepus"]).contains("no command"));
    assert!(usage(&["lepus", "config"]).contains("--check"));
}

#[test]
fn help_explains_configuration_and_signals() {
    let error = CommandLine::try_parse_from(["lepus", "serve", "--help"]).unwrap_err();
    let text = error.to_string();
    for word in ["--listen", "--set", "LEPUS_", "--print-default", "SIGTERM", "127.0.0.1:5672"] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
}

#[test]
fn exit_codes_tell_asked_for_from_wrong() {
    let dir = TestDir::new();
    let good = dir.path().join("good.toml");
    let bad = dir.path().join("bad.toml");
    fs::write(&good, "shards = 1\n").unwrap();
    fs::write(&bad, "shard = 1\n").unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let code = |arguments: &[&str]| format!("{:?}", run_without_server(arguments));
    let (success, wrong) = (format!("{:?}", ExitCode::SUCCESS), format!("{:?}", ExitCode::from(2)));
    assert_eq!(code(&["lepus", "--help"]), success);
    assert_eq!(code(&["lepus", "config", "--print-default"]), success);
    assert_eq!(code(&["lepus", "config", "--check", &path(&good)]), success);
    assert_eq!(code(&["lepus", "config", "--check", &path(&bad)]), wrong);
    assert_eq!(code(&["lepus", "serve", "--config", &path(&bad)]), wrong);
    assert_eq!(code(&["lepus", "serve", "--set", "x"]), wrong);
    assert_eq!(code(&["lepus", "serve", "--what"]), wrong);
    let taken = dir.path().join("file");
    fs::write(&taken, "").unwrap();
    assert_eq!(code(&["lepus", "serve", "--listen", "127.0.0.1:0", "--data-dir", &path(&taken)]), wrong);
}
