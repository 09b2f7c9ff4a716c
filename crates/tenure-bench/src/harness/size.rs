//! Sizes in titles.

/// `len` in the largest unit that divides it.
pub(crate) fn size_name(len: usize) -> String {
    match len {
        len if len % (1 << 30) == 0 => format!("{} GiB", len >> 30),
        len if len % (1 << 20) == 0 => format!("{} MiB", len >> 20),
        len => format!("{} KiB", len >> 10),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_have_names() {
        let names = [4 << 10, 2 << 20, 1 << 30, 1 << 20 | 4 << 10].map(super::size_name);
        assert_eq!(names, ["4 KiB", "2 MiB", "1 GiB", "1028 KiB"]);
    }
}
