//! Functions that run before a test program's `main`, while it has one thread.

/// Has the loader call an `extern "C" fn()` before `main`, in the program that names it.
#[macro_export]
macro_rules! before_main {
    ($function:path) => {
        const _: () = {
            #[used]
            #[allow(unsafe_code, reason = "places a pointer where the loader looks for it")]
            // SAFETY: the loader calls functions of this type there, once, before `main`.
            #[unsafe(link_section = ".init_array")]
            static CALLED: extern "C" fn() = $function;
        };
    };
}
