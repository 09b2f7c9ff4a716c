//! The options that the caller wrote, against those that come from the environment.

/// Returns whether an option, as in `--large`, is on the command line, before a `--`.
pub fn is_given(option: &str) -> bool {
    let arguments = std::env::args_os().take_while(|argument| argument != "--");
    arguments.into_iter().any(|argument| {
        argument.to_str().is_some_and(|given| given.split('=').next() == Some(option))
    })
}
