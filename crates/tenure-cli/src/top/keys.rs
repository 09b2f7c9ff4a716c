//! The action of a key: htop's keys where htop has one.

use super::columns::Column;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// An action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Quit,
    /// The shell stops and continues the program.
    Suspend,
    /// Up or down by so many rows.
    Move(isize),
    First,
    Last,
    SortBy(Column),
    NextColumn(bool),
    Invert,
    ToggleAll,
    /// Into the ranges of the selected process.
    Enter,
    /// Out of them, or of the help.
    Back,
    Help,
    Redraw,
}

/// A page of rows.
const PAGE: isize = 10;

/// `None`: no action.
pub fn action(key: KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c') if control => Action::Quit,
        KeyCode::Char('z') if control => Action::Suspend,
        KeyCode::Char('l') if control => Action::Redraw,
        KeyCode::Char('q') | KeyCode::F(10) => Action::Quit,
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::PageUp => Action::Move(-PAGE),
        KeyCode::PageDown => Action::Move(PAGE),
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Char('>' | '.') | KeyCode::F(6) => Action::NextColumn(true),
        KeyCode::Char('<' | ',') => Action::NextColumn(false),
        KeyCode::Char('I') => Action::Invert,
        KeyCode::Char('M') => Action::SortBy(Column::Resident),
        KeyCode::Char('P') => Action::SortBy(Column::Purges),
        KeyCode::Char('F') => Action::SortBy(Column::Faults),
        KeyCode::Char('N') => Action::SortBy(Column::Pid),
        KeyCode::Char('a') => Action::ToggleAll,
        KeyCode::Enter => Action::Enter,
        KeyCode::Esc | KeyCode::Backspace => Action::Back,
        KeyCode::Char('h' | '?') | KeyCode::F(1) => Action::Help,
        _ => return None,
    })
}
