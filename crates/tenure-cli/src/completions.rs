//! `tenure completions`: a shell's completions, from the definitions of the flags.

use clap_complete::Shell;
use std::io::{self, Write};

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
pub fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    io::stdout().lock().write_all(&text)?;
    Ok(())
}
