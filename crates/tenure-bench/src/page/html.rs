//! Text as HTML that is well-formed XML as well.

use std::fmt::{self, Display, Formatter, Write};

/// Text in which nothing is markup. A character that XML cannot express becomes a replacement
/// character.
pub(super) struct Text<T>(pub T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        write!(Escaping(to), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| match c {
            '&' => self.0.write_str("&amp;"),
            '<' => self.0.write_str("&lt;"),
            '>' => self.0.write_str("&gt;"),
            '"' => self.0.write_str("&quot;"),
            '\'' => self.0.write_str("&#39;"),
            '\n' | '\t' => self.0.write_char(c),
            // Also characters that change the direction of the text.
            '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                self.0.write_char('\u{fffd}')
            }
            c if c.is_control() => self.0.write_char('\u{fffd}'),
            c => self.0.write_char(c),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_markup() {
        let text = Text("<script>alert('&\"')</script>\u{0}\u{1b}[31m\u{202e}").to_string();
        assert_eq!(
            text,
            "&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;\u{fffd}\u{fffd}[31m\u{fffd}"
        );
        assert_eq!(Text(format_args!("{:.1} < {}", 1.0, 2)).to_string(), "1.0 &lt; 2");
    }
}
