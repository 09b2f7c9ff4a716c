//! Test programs whose tests mostly wait.

/// Sets libtest's count of threads, unless the caller has set it: two for each processor, but one
/// where that leaves less than a GiB of free memory to each test.
/// [`two_for_each_processor!`](crate::two_for_each_processor) calls it.
#[allow(unsafe_code, reason = "changes the environment while there is one thread")]
pub extern "C" fn set() {
    const COUNT: &str = "RUST_TEST_THREADS";
    if let (None, Ok(processors)) = (std::env::var_os(COUNT), std::thread::available_parallelism())
    {
        let processors = processors.get();
        let gibs = free_kib().map_or(processors, |kib| kib as usize >> 20);
        let count = (2 * processors).min(gibs).max(processors);
        // SAFETY: the loader runs it before `main`, when no other thread reads the environment.
        unsafe { std::env::set_var(COUNT, count.to_string()) };
    }
}

fn free_kib() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// In a test program whose tests wait for children, timers and the kernel for a third of their
/// time and more: two of them run for each processor. `--test-threads` still decides.
#[macro_export]
macro_rules! two_for_each_processor {
    () => {
        $crate::before_main!($crate::at_once::set);
    };
}
