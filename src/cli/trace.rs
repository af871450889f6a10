//! `lepus trace`: which vhosts of a stopped broker are traced from its next start on.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lepus_shards::topology::Operation;

use crate::stored_topology::{StoredTopology, StoredTopologyError};

#[derive(Debug, Subcommand)]
pub(super) enum TraceCommand {
    /// Trace a vhost: publish what goes in and out of it to its exchange amq.rabbitmq.trace, too.
    On(VhostArgs),
    /// Trace a vhost no longer.
    Off(VhostArgs),
    /// Print the vhosts that are traced, one a line.
    List {
        /// The data directory.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(super) struct VhostArgs {
    /// The vhost.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// The data directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Does what the command says, and gives what there is to print.
pub(super) fn run(command: TraceCommand) -> Result<String, StoredTopologyError> {
    let (VhostArgs { vhost, directory }, on) = match command {
        TraceCommand::On(args) => (args, true),
        TraceCommand::Off(args) => (args, false),
        TraceCommand::List { directory } => return Ok(listed(&StoredTopology::open(&directory, "/")?)),
    };
    let mut stored = StoredTopology::open(&directory, &vhost)?;
    stored.change(&Operation::TraceVhost { vhost: stored.vhost(), on })?;
    Ok(String::new())
}

fn listed(stored: &StoredTopology) -> String {
    let topology = stored.writer().topology();
    let traced = topology.vhosts().filter(|(vhost, _)| topology.is_traced(*vhost));
    // A name may have any character: one that would break the lines is shown by its escape.
    let shown = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    traced.map(|(_, name)| name.chars().map(shown).collect::<String>() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn args(folder: &TestDir, vhost: &str) -> VhostArgs {
        VhostArgs { vhost: vhost.to_owned(), directory: folder.path().to_owned() }
    }

    #[test]
    fn what_is_turned_on_is_listed_until_it_is_turned_off() {
        let folder = TestDir::new();
        let list = || run(TraceCommand::List { directory: folder.path().to_owned() }).unwrap();
        assert_eq!(list(), "");
        for vhost in ["/", "other\n", "/"] {
            assert_eq!(run(TraceCommand::On(args(&folder, vhost))).unwrap(), "");
        }
        assert_eq!(list(), "/\nother\\n\n");
        for vhost in ["/", "never on"] {
            run(TraceCommand::Off(args(&folder, vhost))).unwrap();
        }
        assert_eq!(list(), "other\\n\n");
    }
}
