//! The configuration as commented TOML.

use std::fmt::Write as _;

use super::keys::{Config, KEYS};
use super::values::Shown;

impl Config {
    /// TOML with every key, what it is for and what it accepts; it parses back to the same
    /// configuration. Keys without a value are commented out.
    pub fn to_commented_toml(&self) -> String {
        let mut text = String::from(
            "# Configuration of lepus. Flags win over LEPUS_... environment variables, those over this file.\n",
        );
        let mut section = None;
        for key in KEYS {
            if key.section() != section {
                section = key.section();
                text.extend(section.map(|name| format!("\n[{name}]\n")));
            }
            text.push('\n');
            for line in key.doc {
                text.push_str(&format!("#{line}\n"));
            }
            let name = key.name_in_section();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# Accepts {}. Environment: {}", key.accepts, key.variable());
            let _ = match (key.show)(self) {
                Shown::Set(value) => writeln!(text, "{name} = {value}"),
                Shown::Unset { example } => writeln!(text, "# {name} = {example}"),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{CpuList, Sources};
    use crate::test_dir::TestDir;

    fn parse(text: &str) -> Config {
        let dir = TestDir::new();
        let path = dir.path().join("lepus.toml");
        fs::write(&path, text).unwrap();
        Config::load(&Sources { file: Some(&path), ..Sources::default() }).unwrap()
    }

    #[test]
    fn the_printed_default_parses_back_to_the_default() {
        let text = Config::default().to_commented_toml();
        assert_eq!(parse(&text), Config::default());
        for key in KEYS {
            assert!(text.contains(&key.variable()), "{}", key.name);
        }
    }

    #[test]
    fn a_changed_configuration_parses_back_to_itself() {
        let config = Config {
            cpus: Some(CpuList(vec![0, 1, 2, 5])),
            default_pass: "quo\"ted \\ and\nbroken # = é".to_owned(),
            loopback_users: vec![],
            ..Config::default()
        };
        assert_eq!(parse(&config.to_commented_toml()), config);
    }

    #[test]
    fn what_is_commented_out_is_right_when_it_is_put_in() {
        let text = Config::default().to_commented_toml();
        let with = |line: &str| parse(&text.replace(&format!("# {line}"), line));
        assert_eq!(with("shards = 2").shards, Some(2));
        assert_eq!(with("cpus = \"0-3,8\"").cpus, Some(CpuList(vec![0, 1, 2, 3, 8])));
    }
}
