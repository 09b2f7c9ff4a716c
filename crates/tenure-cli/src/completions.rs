//! `tenure completions`: a shell's completions, from the definitions of the flags.

use clap_complete::Shell;
use std::io::{self, Write};

const NAME: &str = "tenure";

const HELP: &str = "\
Examples:
  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  tenure completions zsh > ~/.zfunc/_tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish";

/// Print the completions of this command for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Runs the command.
pub fn run(args: &Args, command: clap::Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut shown(&command), NAME, &mut text);
    io::stdout().lock().write_all(&text)?;
    Ok(())
}

/// The command without its hidden commands, which clap would complete.
fn shown(command: &clap::Command) -> clap::Command {
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    clap::Command::new(NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(subcommands)
}
