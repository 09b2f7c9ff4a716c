//! How a program's output looks must not depend on who started the tests.

/// What changes the output of the programs, besides their arguments.
const VARIABLES: [&str; 7] =
    ["CI", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR"];

/// Removes the variables. [`plain_output!`](crate::plain_output) calls it.
#[allow(unsafe_code, reason = "changes the environment while there is one thread")]
pub extern "C" fn forget() {
    for variable in VARIABLES {
        // SAFETY: the loader runs it before `main`, when no other thread reads the environment.
        unsafe { std::env::remove_var(variable) };
    }
}

/// In a test program: its children inherit no colours, no width and no `CI` from its caller.
#[macro_export]
macro_rules! plain_output {
    () => {
        $crate::before_main!($crate::look::forget);
    };
}
