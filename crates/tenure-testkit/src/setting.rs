//! A setting of the whole machine that is restored however this process ends.

use crate::{child, Unavailable};
use rustix::fs::{flock, FlockOperation};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The turn of a setting. A test that changes it, or relies on it, waits until no other test does, in
/// any process: another copy of the suite may run beside this one.
#[derive(Debug)]
pub struct Turn(fs::File);

impl Turn {
    /// Waits for the turn of a file of settings.
    ///
    /// # Panics
    /// In a child that has not reached its body: the test that started it may have the turn.
    pub fn take(path: &str) -> Result<Turn, Unavailable> {
        Turn::wait(path, FlockOperation::LockExclusive)
    }

    /// Waits until no test changes the setting. Other tests may rely on it meanwhile, too.
    ///
    /// # Panics
    /// As [`take`](Turn::take).
    pub fn share(path: &str) -> Result<Turn, Unavailable> {
        Turn::wait(path, FlockOperation::LockShared)
    }

    fn wait(path: &str, lock: FlockOperation) -> Result<Turn, Unavailable> {
        child::assert_in_body("the turn of a setting");
        let unavailable =
            |e| Unavailable::new(format!("the setting {path} of the machine cannot be had: {e}"));
        let file = fs::File::open(path).map_err(unavailable)?;
        flock(&file, lock).map_err(|errno| unavailable(errno.into()))?;
        Ok(Turn(file))
    }
}

/// A changed setting, until it is dropped.
#[derive(Debug)]
pub struct Setting {
    /// Restores it when its standard input ends: also if this process is killed.
    keeper: Option<Child>,
    _turn: Turn,
}

impl Setting {
    /// Waits for the [`Turn`] of a file of settings, and writes the value to it, unless it has the
    /// value already.
    pub fn change(path: &str, value: &str) -> Result<Setting, Unavailable> {
        Setting::change_from(path, |_| value.to_owned())
    }

    /// [`change`](Setting::change) to a value that depends on the present one.
    pub fn change_from(
        path: &str,
        value: impl FnOnce(&str) -> String,
    ) -> Result<Setting, Unavailable> {
        let unavailable =
            |e: std::io::Error| Unavailable::new(format!("{path} is not to be set: {e}"));
        let turn = Turn::take(path)?;
        let before = chosen(&fs::read_to_string(path).map_err(unavailable)?).to_owned();
        let value = value(&before);
        if before == value {
            return Ok(Setting { keeper: None, _turn: turn });
        }
        let mut file = fs::OpenOptions::new().write(true).open(path).map_err(unavailable)?;
        // In a group of its own, so that a signal to this process's group does not reach it. It has the
        // turn, too, until it has restored the setting.
        let keeper = Command::new("/bin/sh")
            .args(["-c", "read -r line; printf %s \"$1\" > \"$0\"", path, &before])
            .stdin(Stdio::piped())
            .stdout(turn.0.try_clone().map_err(unavailable)?)
            .process_group(0)
            .spawn()
            .map_err(unavailable)?;
        let setting = Setting { keeper: Some(keeper), _turn: turn };
        file.write_all(value.as_bytes()).map_err(unavailable)?;
        Ok(setting)
    }
}

/// The value of a file of settings: the word in brackets, if it offers several.
fn chosen(text: &str) -> &str {
    let bracket = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracket.map_or(text.trim(), |(value, _)| value)
}

impl Drop for Setting {
    fn drop(&mut self) {
        let Some(mut keeper) = self.keeper.take() else { return };
        // A forked child may have the pipe, too, so that its end would come late.
        if let Some(mut stdin) = keeper.stdin.take() {
            let _ = stdin.write_all(b"\n");
        }
        let _ = keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_put_back() {
        let file = std::env::temp_dir().join(format!("tenure-setting-{}", std::process::id()));
        let path = file.to_str().unwrap();
        fs::write(&file, "always [madvise] never\n").unwrap();
        let setting = Setting::change(path, "never").unwrap();
        assert!(fs::read_to_string(&file).unwrap().starts_with("never"));
        drop(setting);
        assert!(fs::read_to_string(&file).unwrap().starts_with("madvise"));
        fs::write(&file, "2\n").unwrap();
        drop(Setting::change(path, "2").unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "2\n");
        let more = Setting::change_from(path, |before| format!("{before}1")).unwrap();
        assert!(fs::read_to_string(&file).unwrap().starts_with("21"));
        drop(more);
        fs::remove_file(&file).unwrap();
        assert!(Setting::change(path, "1").is_err());
    }

    #[test]
    fn one_test_at_a_time_changes_a_setting() {
        let file = std::env::temp_dir().join(format!("tenure-turn-{}", std::process::id()));
        let path = file.to_str().unwrap();
        fs::write(&file, "0").unwrap();
        let (own, other) = ("1", "2");
        let setting = Setting::change(path, own).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let _other = Setting::change(path, other).unwrap();
                fs::read_to_string(&file).unwrap()
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(fs::read_to_string(&file).unwrap(), own);
            drop(setting);
            assert_eq!(waits.join().unwrap(), other);
        });
        assert_eq!(fs::read_to_string(&file).unwrap(), "0");
        fs::remove_file(&file).unwrap();
    }
}
