//! A setting of the machine that is restored however this process ends.

use crate::Unavailable;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A changed setting, until it is dropped.
#[derive(Debug)]
pub struct Setting {
    /// Restores it when its standard input ends: also if this process is killed.
    keeper: Option<Child>,
}

impl Setting {
    /// Writes the value to a file of settings, unless the file has it already.
    pub fn change(path: &str, value: &str) -> Result<Setting, Unavailable> {
        let unavailable =
            |e: std::io::Error| Unavailable::new(format!("{path} is not to be set: {e}"));
        let before = chosen(&fs::read_to_string(path).map_err(unavailable)?).to_owned();
        if before == value {
            return Ok(Setting { keeper: None });
        }
        // In a group of its own, so that a signal to this process's group does not reach it.
        let keeper = Command::new("/bin/sh")
            .args(["-c", "read -r line; printf %s \"$1\" > \"$0\"", path, &before])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(unavailable)?;
        let setting = Setting { keeper: Some(keeper) };
        fs::OpenOptions::new()
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(value.as_bytes()))
            .map_err(unavailable)?;
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
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
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
        fs::remove_file(&file).unwrap();
        assert!(Setting::change(path, "1").is_err());
    }
}
