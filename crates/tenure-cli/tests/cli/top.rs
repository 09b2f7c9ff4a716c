//! `tenure top`: its plain text, and the state of the terminal after it.

use crate::kit::{self, parts, text};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;
use tenure::Volatile;
use tenure_testkit::{in_child, skip, this_test};

fn top(arguments: &[&str]) -> Command {
    let mut command = kit::tenure();
    command.arg("top").args(arguments);
    command
}

#[test]
fn plain_text_has_the_program_s_figures_and_rates() {
    in_child(this_test!(), &[], || {
        let own = std::process::id().to_string();
        let mut buffer = Volatile::new(8 << 20).unwrap();
        buffer.pin_mut().unwrap().fill(1);
        let pin = buffer.pin().unwrap();
        let mut command = top(&["-b", "-n", "2", "-d", "1", "--pid", &own]);
        let command = command.env("COLUMNS", "80").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(pin);
        while child.try_wait().unwrap().is_none() {
            buffer.purge_now().unwrap();
            // What was lost has no data until it is written, and is not purged again.
            buffer.pin_mut().unwrap().fill(1);
            std::thread::sleep(Duration::from_millis(10));
        }
        let (code, out, errors) = parts(&child.wait_with_output().unwrap());
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
        let rows: Vec<Vec<&str>> = out
            .lines()
            .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
            .filter(|words| words.first() == Some(&own.as_str()))
            .collect();
        assert_eq!(rows.len(), 2, "{out}");
        let headings = out.lines().filter(|line| line.trim_start().starts_with("PID NAME"));
        assert_eq!(headings.count(), 2, "{out}");
        // The last three of ten columns are rates: purges, refills, page faults.
        let rate = |row: &[&str], back: usize| row[row.len() - back].parse::<u64>().unwrap();
        let most = rows.iter().map(|row| rate(row, 3)).max().unwrap();
        // A turn takes 10 ms at least, and half a second on the busiest machine.
        assert!((1..2000).contains(&most), "{out}");
        assert!(rows.iter().any(|row| rate(row, 1) > 0), "{out}");
    });
}

/// Terminals without a size have it.
#[test]
fn columns_of_0_count_as_unset() {
    let own = std::process::id().to_string();
    let done =
        top(&["-b", "-n", "1", "-d", "0.1", "--pid", &own]).env("COLUMNS", "0").output().unwrap();
    assert!(text(&done.stdout).contains(&own), "{}", text(&done.stdout));
    let done = kit::tenure().args(["inspect", "--self"]).env("COLUMNS", "0").output().unwrap();
    assert!(text(&done.stdout).contains("tenure\n"), "{}", text(&done.stdout));
}

#[test]
fn a_process_that_is_not_there_is_an_error() {
    let (code, out, errors) = parts(&top(&["-b", "-n", "1", "--pid", "4194305"]).output().unwrap());
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(errors, "tenure: there is no process 4194305\n");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let done = top(&[]).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("--batch"), "{}", text(&done.stderr));
    for wrong in [&["-d", "0"][..], &["-n", "0"], &["--sort", "colour"], &["--sort", "history"]] {
        assert_eq!(top(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_terminal_that_cannot_draw_is_refused() {
    let own = env!("CARGO_BIN_EXE_tenure");
    for term in ["export TERM=dumb", "unset TERM"] {
        let mut command = Command::new("script");
        command.args(["-qec", &format!("{term}; {own} top"), "/dev/null"]).stdin(Stdio::null());
        // Where it is set, clap by itself would send colours to any terminal.
        command.env("CI", "true");
        let Ok(done) = command.output() else { skip!("there is no script(1)") };
        let shown = text(&done.stdout);
        assert!(shown.contains("--batch") && !shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(done.status.code(), Some(2), "{shown}");
    }
    let mut command = Command::new("script");
    command.args(["-qec", &format!("stty rows 0 cols 0; {own} top -d 0.1"), "/dev/null"]);
    let mut child =
        command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Without input the terminal stays.
    let _input = child.stdin.take();
    let done = child.wait_with_output().unwrap();
    assert!(text(&done.stdout).contains("has no size: set it"), "{}", text(&done.stdout));
    assert_eq!(done.status.code(), Some(1));
}

/// Runs it on a separate terminal. Returns its output there, and how `script` ended.
fn on_a_terminal(end: impl FnOnce(&mut dyn Write, u32)) -> Option<(String, Option<i32>)> {
    let own = env!("CARGO_BIN_EXE_tenure");
    // exec replaces the shell, so that the shell's process number is the program's.
    // The tests may run where SIGHUP is ignored (nohup), and then tenure ignores it, too.
    let with = "env --default-signal=HUP";
    let line = format!("stty rows 24 cols 80; echo number $$; exec {with} {own} top -d 0.1");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.env("TERM", "xterm-256color").spawn().ok()?;
    let mut out = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    // The last line of the screen.
    while !text(&seen).contains("q quit") {
        match out.read(&mut buffer).unwrap() {
            0 => panic!("it ended: {}", text(&seen)),
            got => seen.extend(&buffer[..got]),
        }
    }
    let number =
        text(&seen).split("number ").nth(1).unwrap().split_whitespace().next().unwrap().parse();
    let mut keys = child.stdin.take().unwrap();
    end(&mut keys, number.unwrap());
    out.read_to_end(&mut seen).unwrap();
    drop(keys);
    Some((text(&seen), child.wait().unwrap().code()))
}

/// Returns whether the process runs; a zombie does not.
fn runs(number: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn it_ends_with_its_terminal() {
    // At several moments between two updates.
    for wait in (0..10).map(|n| Duration::from_millis(13 * n)) {
        let mut number = 0;
        let ended = on_a_terminal(|_, own| {
            number = own;
            std::thread::sleep(wait);
            let stat = std::fs::read_to_string(format!("/proc/{own}/stat")).unwrap();
            let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse();
            // script has the other end of the terminal.
            kit::signal(parent.unwrap(), rustix::process::Signal::KILL);
        });
        if ended.is_none() {
            skip!("there is no script(1)");
        }
        kit::until("it ends", || !runs(number));
    }
}

#[test]
fn a_key_or_a_signal_ends_it_and_the_terminal_is_as_it_was() {
    let key = |key: &'static [u8]| {
        on_a_terminal(move |keys, _| {
            keys.write_all(key).unwrap();
            keys.flush().unwrap();
        })
    };
    let by_signal = on_a_terminal(|_, number| kit::signal(number, rustix::process::Signal::TERM));
    let by_hangup = on_a_terminal(|_, number| kit::signal(number, rustix::process::Signal::HUP));
    let ends = [key(b"q"), key(b"a<>Ih \x1b[21~"), key(b"\x03"), by_signal, by_hangup];
    for (number, end) in ends.into_iter().enumerate() {
        let Some((screen, code)) = end else { skip!("there is no script(1)") };
        assert_eq!(code, Some(0), "{number}: {screen:?}");
        assert!(screen.contains("top:") && screen.contains("pressure"), "{screen:?}");
        let tail = &screen[screen.rfind("\x1b[?1049h").expect("a screen of its own")..];
        assert!(tail.contains("\x1b[?1049l"), "{number}: {tail:?}");
        let shown = tail.rfind("\x1b[?25h");
        assert!(shown > tail.rfind("\x1b[?25l"), "{number}: the cursor is hidden: {tail:?}");
    }
}
