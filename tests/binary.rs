//! The binary alone: what it prints, and that it accepts it. Being a test of the package `lepus`, it also makes
//! cargo build the binary that the whole-broker tests start.

use std::fs;
use std::process::{Command, Output};

fn lepus(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lepus"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LEPUS_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the binary starts")
}

#[test]
fn the_default_configuration_is_accepted() {
    let printed = lepus(&["config", "--print-default"]);
    assert!(printed.status.success(), "{printed:?}");
    let folder = std::env::temp_dir().join(format!("lepus-binary-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary directory can be written");
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
