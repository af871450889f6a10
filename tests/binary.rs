//! The binary alone: what it prints, and that it accepts it. Being a test of the package `lepus`, it also makes
//! cargo build the binary that the whole-broker tests start.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn lepus(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lepus"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEPUS_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the binary starts")
}

/// An empty directory of this test's own.
fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("lepus-binary-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary directory can be written");
    folder
}

/// The doctor's answer for a broker that keeps its data there.
fn doctor(folder: &Path, arguments: &[&str]) -> Output {
    let data = folder.to_str().expect("the path is text");
    lepus(&[&["doctor", "--data-dir", data][..], arguments].concat())
}

#[test]
fn the_default_configuration_is_accepted() {
    let printed = lepus(&["config", "--print-default"]);
    assert!(printed.status.success(), "{printed:?}");
    let folder = folder("config");
    let file = folder.join("default.toml");
    fs::write(&file, &printed.stdout).expect("the folder is ours");
    let checked = lepus(&["config", "--check", file.to_str().expect("the path is text")]);
    fs::remove_dir_all(&folder).expect("the folder is ours");
    assert!(checked.status.success(), "{checked:?}");
    assert!(printed.stdout.len() > 200, "the default says little: {printed:?}");
}

#[test]
fn it_says_its_version() {
    let said = lepus(&["--version"]);
    assert!(said.status.success());
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), concat!("lepus ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_doctor_judges_this_host_and_leaves_nothing_on_it() {
    let folder = folder("doctor");
    let (table, json) = (doctor(&folder, &[]), doctor(&folder, &["--json"]));
    // No machine has a CPU of that number.
    let unfit = doctor(&folder, &["--cpus", "16000", "--json"]);
    let left = fs::read_dir(&folder).expect("the folder is ours").count();
    fs::remove_dir_all(&folder).expect("the folder is ours");
    assert_eq!(left, 0);
    assert!(String::from_utf8_lossy(&table.stdout).contains("synchronous write"), "{table:?}");
    for said in [&json, &unfit] {
        let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("it is JSON");
        assert_eq!(said.status.code(), Some(if report["fit"] == true { 0 } else { 1 }), "{said:?}");
    }
    assert_eq!(unfit.status.code(), Some(1));
    assert_eq!(table.status.code(), json.status.code());
}

#[test]
fn the_doctor_changes_nothing_that_was_not_asked_for_in_so_many_words() {
    let folder = folder("fix");
    let (bare, dry) = (doctor(&folder, &["--fix"]), doctor(&folder, &["--fix", "--dry-run"]));
    let alone = [doctor(&folder, &["--dry-run"]), doctor(&folder, &["--yes"])];
    fs::remove_dir_all(&folder).expect("the folder is ours");
    assert_eq!(bare.status.code(), Some(2));
    assert!(bare.stdout.is_empty() && String::from_utf8_lossy(&bare.stderr).contains("--yes"), "{bare:?}");
    assert!(dry.status.success() && dry.stdout.starts_with(b"#!/bin/sh\n"), "{dry:?}");
    for said in alone {
        assert_eq!(said.status.code(), Some(2), "means nothing without --fix: {said:?}");
    }
}

#[test]
fn the_doctor_prints_the_files_to_install() {
    for (name, line) in [("unit", "Type=notify"), ("sysctl", "vm.swappiness = 1"), ("udev", "ACTION==")] {
        let said = lepus(&["doctor", "--print", name]);
        assert!(said.status.success(), "{said:?}");
        assert!(String::from_utf8_lossy(&said.stdout).contains(line), "{said:?}");
    }
    assert_eq!(lepus(&["doctor", "--print", "everything"]).status.code(), Some(2));
}
