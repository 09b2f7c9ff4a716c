//! Rust source as words and signs, without comments, strings and lifetimes: enough to find paths.

/// A word or a sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or a keyword.
    Word(String),
    /// `::`
    Colons,
    /// Any other sign; a literal leaves nothing.
    Sign(char),
}

/// A word or a sign, and the line it is on.
#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    pub line: usize,
}

impl Token {
    pub fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    pub fn is(&self, sign: char) -> bool {
        self.kind == Kind::Sign(sign)
    }
}

/// Splits source text into tokens.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer { text: text.chars().collect(), at: 0, line: 1, tokens: Vec::new() };
    while let Some(char) = lexer.peek(0) {
        lexer.step(char);
    }
    lexer.tokens
}

struct Lexer {
    text: Vec<char>,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let char = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(char == '\n');
        Some(char)
    }

    fn push(&mut self, kind: Kind) {
        self.tokens.push(Token { kind, line: self.line });
    }

    fn step(&mut self, char: char) {
        match (char, self.peek(1)) {
            ('/', Some('/')) => while self.next().is_some_and(|char| char != '\n') {},
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.char_or_lifetime(),
            (':', Some(':')) => {
                self.at += 2;
                self.push(Kind::Colons);
            }
            _ if char.is_alphabetic() || char == '_' => self.word(),
            _ if char.is_ascii_digit() => self.number(),
            _ => {
                self.next();
                if !char.is_whitespace() {
                    self.push(Kind::Sign(char));
                }
            }
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while let Some(char) = self.next() {
            match (char, self.peek(0)) {
                ('/', Some('*')) => depth += 1,
                ('*', Some('/')) => depth -= 1,
                _ => continue,
            }
            self.next();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.next();
        while let Some(char) = self.next() {
            match char {
                '\\' => _ = self.next(),
                '"' => return,
                _ => {}
            }
        }
    }

    fn raw_string(&mut self) {
        let mut hashes = 0;
        while self.next().is_some_and(|char| char == '#') {
            hashes += 1;
        }
        while let Some(char) = self.next() {
            if char == '"' && (0..hashes).all(|i| self.peek(i) == Some('#')) {
                self.at += hashes;
                return;
            }
        }
    }

    fn char_or_lifetime(&mut self) {
        self.next();
        match (self.peek(0), self.peek(1)) {
            (Some('\\'), _) => {
                self.next();
                self.next();
                while self.next().is_some_and(|char| char != '\'') {}
            }
            (_, Some('\'')) => {
                self.next();
                self.next();
            }
            _ => self.number(),
        }
    }

    /// Not the dot of `0..n`, nor of `1.max(2)`: they do not affect paths.
    fn number(&mut self) {
        while self.peek(0).is_some_and(|char| char.is_alphanumeric() || char == '_') {
            self.next();
        }
    }

    fn word(&mut self) {
        let begin = self.at;
        while self.peek(0).is_some_and(|char| char.is_alphanumeric() || char == '_') {
            self.at += 1;
        }
        let word: String = self.text[begin..self.at].iter().collect();
        let raw = matches!(word.as_str(), "r" | "br" | "cr");
        match (raw, self.peek(0), self.peek(1)) {
            (true, Some('"'), _) | (true, Some('#'), Some('"' | '#')) => self.raw_string(),
            // `r#type`
            (true, Some('#'), Some(_)) => self.at += 1,
            _ => self.push(Kind::Word(word)),
        }
    }
}
