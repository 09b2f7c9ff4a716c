//! `tenure man-pages`: a manual page for each command, from the definitions of the flags.

use clap::Command;
use clap_mangen::Man;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use tenure_command::call::failed_at;

/// The command's hidden name.
pub const NAME: &str = "man-pages";

/// Write the manual pages of this command into a directory, for a package.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory.
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, mut command: Command) -> anyhow::Result<()> {
    command.build();
    std::fs::create_dir_all(&args.dir).map_err(|error| failed_at(&args.dir, "mkdir", error))?;
    Ok(write_pages(&command, &args.dir)?)
}

/// The page of a command, and those of its subcommands.
fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    let page = Man::new(command.clone()).manual("tenure");
    let file = dir.join(page.get_filename());
    std::fs::write(&file, render(command, &page)?)
        .map_err(|error| failed_at(&file, "open", error))?;
    let subcommands = command.get_subcommands();
    for subcommand in subcommands.filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        write_pages(subcommand, dir)?;
    }
    Ok(())
}

fn render(command: &Command, page: &Man) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let more = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    text.extend(sections(&more).bytes());
    Ok(text)
}

/// The text after the help, in sections: the text above the examples is notes.
fn sections(text: &str) -> String {
    let mut roff = String::new();
    let mut last = "";
    for paragraph in text.split("\n\n") {
        let (heading, body) = match paragraph {
            p if p.starts_with("Examples:") => {
                ("EXAMPLES", p.trim_start_matches("Examples:").trim_start_matches('\n'))
            }
            p if p.starts_with("Exit code") => ("EXIT STATUS", p),
            p => ("NOTES", p),
        };
        if body.is_empty() {
            continue;
        }
        let command = if heading == last { ".PP".to_owned() } else { format!(".SH \"{heading}\"") };
        let (begin, end) = if heading == "EXAMPLES" { (".nf\n", ".fi\n") } else { ("", "") };
        let _ = write!(
            roff,
            "{command}\n{begin}{}{end}",
            body.lines().map(escaped).collect::<String>()
        );
        last = heading;
    }
    roff
}

/// A line without anything that roff would read as a request or an escape.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    let first = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
    format!("{first}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_the_rest_flows() {
        let text = "A note.\n\nAnother\n.note.\n\nExamples:\n  tenure run -- ls\n\nExit codes: 0.";
        assert_eq!(
            sections(text),
            ".SH \"NOTES\"\nA note.\n.PP\nAnother\n\\&.note.\n.SH \"EXAMPLES\"\n.nf\n  tenure run \\-\\- ls\n.fi\n\
             .SH \"EXIT STATUS\"\nExit codes: 0.\n"
        );
    }
}
