//! `lepus policy`: flags to policies, and the list of them as text.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use lepus_shards::topology::{ApplyTo, Policy, PolicyOf};

use crate::policies::{PolicyError, StoredPolicies, definition, definition_text};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Set a policy, in place of the one of this name if there is one.
    Set(SetArgs),
    /// Remove a policy.
    Clear {
        #[command(flatten)]
        of: OfArgs,
        /// The data directory.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// The policy's name.
        name: String,
    },
    /// Print all policies: vhost, kind, name, pattern, apply-to, definition and priority, with tabs between.
    List {
        /// The data directory.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(super) struct SetArgs {
    #[command(flatten)]
    of: OfArgs,
    /// Of several policies that fit, the one with the highest priority counts.
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    priority: i64,
    /// What it is for: all, queues, classic_queues, quorum_queues, streams or exchanges.
    #[arg(long, value_name = "WHAT", default_value = "all", value_parser = apply_to)]
    apply_to: ApplyTo,
    /// The data directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// The policy's name.
    name: String,
    /// Regular expression for the names of what it is for.
    #[arg(allow_hyphen_values = true)]
    pattern: String,
    /// What it asks for, a JSON object: {"max-length": 1000, "overflow": "reject-publish"}.
    definition: String,
}

#[derive(Debug, Args)]
pub(super) struct OfArgs {
    /// The vhost.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// An operator policy: it bounds what policies and clients ask for.
    #[arg(long)]
    operator: bool,
}

impl OfArgs {
    fn of(&self) -> PolicyOf {
        if self.operator { PolicyOf::Operator } else { PolicyOf::User }
    }
}

fn apply_to(name: &str) -> Result<ApplyTo, String> {
    ApplyTo::from_name(name).ok_or_else(|| {
        "should be one of: queues, classic_queues, quorum_queues, streams, exchanges, or all".to_owned()
    })
}

/// Does what the command says, and gives what there is to print.
pub(super) fn run(command: PolicyCommand) -> Result<String, PolicyError> {
    match command {
        PolicyCommand::Set(SetArgs {
            of,
            priority,
            apply_to,
            directory,
            name,
            pattern,
            definition: text,
        }) => {
            let definition = definition(&text)?;
            let policy = Policy { name, pattern, apply_to, priority, definition };
            StoredPolicies::open(&directory, &of.vhost)?.set(of.of(), policy)?;
            Ok(String::new())
        }
        PolicyCommand::Clear { of, directory, name } => {
            StoredPolicies::open(&directory, &of.vhost)?.clear(of.of(), &name)?;
            Ok(String::new())
        }
        PolicyCommand::List { directory } => Ok(listed(&StoredPolicies::open(&directory, "/")?)),
    }
}

fn listed(stored: &StoredPolicies) -> String {
    let mut text = "vhost\tkind\tname\tpattern\tapply-to\tdefinition\tpriority\n".to_owned();
    for (vhost, of, policy) in stored.all() {
        let kind = if of == PolicyOf::User { "policy" } else { "operator policy" };
        let Policy { name, pattern, apply_to, priority, definition } = policy;
        let definition = definition_text(definition);
        // Names may have any character: one that would break the table is shown by its escape.
        let [vhost, name, pattern] = [vhost, name, pattern].map(|part| {
            part.chars().fold(String::new(), |mut shown, character| {
                match character.is_control() {
                    true => shown.extend(character.escape_default()),
                    false => shown.push(character),
                }
                shown
            })
        });
        let _ = writeln!(
            text,
            "{vhost}\t{kind}\t{name}\t{pattern}\t{}\t{definition}\t{priority}",
            apply_to.name()
        );
    }
    text
}
