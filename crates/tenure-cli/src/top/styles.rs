//! How parts of the screen differ from the rest.

use ratatui::style::{Modifier, Style};

pub(super) const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
pub(super) const SELECTED: Style =
    Style::new().add_modifier(Modifier::BOLD.union(Modifier::UNDERLINED));
pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
