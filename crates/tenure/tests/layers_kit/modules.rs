//! A crate's modules, read from its files: the paths that each names, and the module of each path.

use super::lexer::{tokens, Kind, Token};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// A module's path inside its crate; the root's is empty.
pub type Name = Vec<String>;

/// A path as it is written.
#[derive(Clone, Debug)]
struct Written {
    parts: Vec<String>,
    line: usize,
}

/// The contents of a module.
#[derive(Debug, Default)]
struct Module {
    /// The file that contains it, as a module's name: an inline module belongs to its file.
    file: Name,
    children: BTreeSet<String>,
    /// Its functions and macros, and the functions of its types.
    functions: BTreeSet<String>,
    /// The names that `use` imports.
    names: HashMap<String, Written>,
    imports: Vec<Written>,
    reexports: Vec<Written>,
    paths: Vec<Written>,
}

/// One module uses something of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge {
    pub from: Name,
    pub to: Name,
    pub file: PathBuf,
    pub line: usize,
    pub text: String,
    /// It only passes a name on. Modules that use the name depend on the defining module.
    pub reexport: bool,
}

/// A crate, from one root file on. Code for tests and for the model checker is left out.
#[derive(Debug, Default)]
pub struct Crate {
    modules: BTreeMap<Name, Module>,
    files: BTreeMap<Name, PathBuf>,
    /// Paths into other crates: `libc::mmap`.
    foreign: Vec<(Name, Written)>,
}

impl Crate {
    /// Reads the file and all modules below it.
    pub fn read(root: &Path) -> Crate {
        let mut all = Crate::default();
        let directory = root.parent().expect("a root file lies in a directory").to_path_buf();
        all.read_file(root.to_path_buf(), &directory, Vec::new());
        all.find_foreign();
        all
    }

    fn read_file(&mut self, file: PathBuf, directory: &Path, name: Name) {
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let below = self.add(&text, &name);
        self.files.insert(name.clone(), file);
        for child in below {
            let path = directory.join(child.iter().skip(name.len()).collect::<PathBuf>());
            let mut name = name.clone();
            name.extend(child.into_iter().skip(name.len()));
            let flat = path.with_extension("rs");
            let file = if flat.exists() { flat } else { path.join("mod.rs") };
            self.read_file(file, &path, name);
        }
    }

    /// Adds a file's modules; returns the names of those that are in files of their own.
    pub fn add(&mut self, text: &str, name: &[String]) -> Vec<Name> {
        let tokens = tokens(text);
        let mut reader =
            Reader { tokens: &tokens, at: 0, file: name, below: Vec::new(), into: self };
        reader.module(name.to_vec());
        reader.below
    }

    fn find_foreign(&mut self) {
        for (name, module) in &self.modules {
            for written in module.paths.iter().chain(&module.imports) {
                if self.module_of(name, &written.parts, 0).is_none() {
                    self.foreign.push((module.file.clone(), written.clone()));
                }
            }
        }
    }

    /// The paths of other crates that modules name: module, file, line, path.
    pub fn foreign(&self) -> impl Iterator<Item = (&Name, &Path, usize, &[String])> {
        self.foreign.iter().map(|(name, written)| {
            (name, self.files[name].as_path(), written.line, written.parts.as_slice())
        })
    }

    /// All uses of one module by another.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = BTreeSet::new();
        for (name, module) in &self.modules {
            let mut add = |written: &Written, reexport| {
                let Some(to) = self.module_of(name, &written.parts, 0) else { return };
                let to = self.modules[&to].file.clone();
                if to != module.file {
                    edges.insert(Edge {
                        from: module.file.clone(),
                        to,
                        file: self.files.get(&module.file).cloned().unwrap_or_default(),
                        line: written.line,
                        text: written.parts.join("::"),
                        reexport,
                    });
                }
            };
            module.imports.iter().chain(&module.paths).for_each(|written| add(written, false));
            module.reexports.iter().for_each(|written| add(written, true));
        }
        edges.into_iter().collect()
    }

    /// Returns the module that defines a path's target. `None`: the path leads out of the crate.
    fn module_of(&self, from: &[String], parts: &[String], depth: u32) -> Option<Name> {
        if depth > 16 {
            return None;
        }
        let module = self.modules.get(from)?;
        let (first, rest) = parts.split_first()?;
        match first.as_str() {
            "crate" => self.descend(Vec::new(), rest, depth),
            "self" => self.descend(from.to_vec(), rest, depth),
            "super" => {
                let (_, parent) = from.split_last()?;
                let rest: Vec<_> = match rest.first().map(String::as_str) {
                    Some("super") => rest.to_vec(),
                    _ => [&["self".to_owned()], rest].concat(),
                };
                self.module_of(parent, &rest, depth + 1)
            }
            _ if module.children.contains(first) => self.descend(from.to_vec(), parts, depth),
            _ => {
                let brought = module.names.get(first)?;
                // `use rustix::fs;` names the crate, not itself.
                if brought.parts.first() == Some(first) {
                    return None;
                }
                let path = [brought.parts.as_slice(), rest].concat();
                self.module_of(from, &path, depth + 1)
            }
        }
    }

    fn descend(&self, mut at: Name, parts: &[String], depth: u32) -> Option<Name> {
        for (i, part) in parts.iter().enumerate() {
            let module = self.modules.get(&at)?;
            let is_function = i + 1 == parts.len() && module.functions.contains(part);
            if module.children.contains(part) {
                at.push(part.clone());
            } else if is_function {
                // An imported module may have this name, too.
                break;
            } else if let Some(brought) = module.names.get(part) {
                let path = [brought.parts.as_slice(), &parts[i + 1..]].concat();
                return self.module_of(&at, &path, depth + 1);
            } else {
                break;
            }
        }
        self.modules.contains_key(&at).then_some(at)
    }
}

/// Reads one file's tokens.
struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    file: &'a [String],
    below: Vec<Name>,
    into: &'a mut Crate,
}

impl Reader<'_> {
    fn word(&self, ahead: usize) -> Option<&str> {
        self.tokens.get(self.at + ahead)?.word()
    }

    fn is(&self, ahead: usize, sign: char) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.is(sign))
    }

    fn colons(&self, ahead: usize) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.kind == Kind::Colons)
    }

    fn line(&self) -> usize {
        self.tokens[self.at].line
    }

    /// Reads to the closing brace of a module, or to the end of the file.
    fn module(&mut self, name: Name) {
        let file = self.file.to_vec();
        self.into.modules.entry(name.clone()).or_default().file = file;
        let mut depth = 0;
        let mut public = false;
        while self.at < self.tokens.len() {
            if self.is(0, '#') && (self.is(1, '[') || (self.is(1, '!') && self.is(2, '['))) {
                if self.attribute() {
                    self.skip_item();
                }
                continue;
            }
            match self.word(0) {
                Some("pub") => {
                    public = true;
                    self.visibility();
                    continue;
                }
                Some("mod") if self.word(1).is_some() => self.child(&name),
                Some("fn") if self.word(1).is_some() => {
                    let function = self.word(1).unwrap_or_default().to_owned();
                    self.into.modules.entry(name.clone()).or_default().functions.insert(function);
                    self.at += 2;
                }
                // A macro is named like a function, once `pub(crate) use` has given it a path.
                Some("macro_rules") if self.is(1, '!') && self.word(2).is_some() => {
                    let defined = self.word(2).unwrap_or_default().to_owned();
                    self.into.modules.entry(name.clone()).or_default().functions.insert(defined);
                    self.at += 3;
                }
                Some("use") => {
                    self.at += 1;
                    self.tree(&name, &[], public);
                }
                Some(_) => self.path(&name),
                None => {
                    depth += i32::from(self.is(0, '{')) - i32::from(self.is(0, '}'));
                    self.at += 1;
                    if depth < 0 {
                        return;
                    }
                }
            }
            public = false;
        }
    }

    /// `pub`, `pub(crate)`, `pub(in a::b)`: these use nothing.
    fn visibility(&mut self) {
        self.at += 1;
        let scope = matches!(self.word(1), Some("crate" | "super" | "self" | "in"));
        if self.is(0, '(') && scope {
            self.skip_group();
        }
    }

    /// Skips an attribute. `true`: the item after it is for tests or for the model checker only.
    fn attribute(&mut self) -> bool {
        self.at += if self.is(1, '!') { 2 } else { 1 };
        let begin = self.at;
        self.skip_group();
        let words: Vec<_> = self.tokens[begin..self.at].iter().filter_map(Token::word).collect();
        assert!(words.first() != Some(&"path"), "a #[path] module is not followed");
        words.first() == Some(&"cfg")
            && !words.contains(&"not")
            && words.iter().any(|word| matches!(*word, "test" | "loom"))
    }

    /// Skips from an opening bracket to behind the closing one.
    fn skip_group(&mut self) {
        let mut depth = 0;
        while let Some(token) = self.tokens.get(self.at) {
            let Token { kind, .. } = token;
            self.at += 1;
            match kind {
                Kind::Sign('(' | '[' | '{') => depth += 1,
                Kind::Sign(')' | ']' | '}') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Skips an item, its other attributes included.
    fn skip_item(&mut self) {
        let mut import = false;
        while self.at < self.tokens.len() {
            import |= self.word(0) == Some("use");
            if self.is(0, ';') || self.is(0, ',') {
                self.at += 1;
                return;
            }
            if self.is(0, '}') {
                return;
            }
            if self.is(0, '{') && !import {
                return self.skip_group();
            }
            if self.is(0, '(') || self.is(0, '[') || self.is(0, '{') {
                self.skip_group();
            } else {
                self.at += 1;
            }
        }
    }

    fn child(&mut self, name: &[String]) {
        let child = self.word(1).unwrap_or_default().to_owned();
        let path = [name, std::slice::from_ref(&child)].concat();
        let inline = self.is(2, '{');
        self.at += 3;
        if let Some(module) = self.into.modules.get_mut(name) {
            module.children.insert(child);
        }
        match inline {
            true => self.module(path),
            false => self.below.push(path),
        }
    }

    /// One branch of a `use`; stops behind its end.
    fn tree(&mut self, name: &[String], before: &[String], public: bool) {
        let mut parts = before.to_vec();
        let line = self.line();
        // `use ::libc;`
        if self.colons(0) {
            self.at += 1;
        }
        let mut alias = None;
        while let Some(word) = self.word(0).map(str::to_owned) {
            self.at += 1;
            if word == "as" {
                alias = self.word(0).map(str::to_owned);
                self.at += 1;
                break;
            }
            if word != "self" || parts.is_empty() {
                parts.push(word);
            }
            if !self.colons(0) {
                if self.word(0) == Some("as") {
                    continue;
                }
                break;
            }
            self.at += 1;
        }
        if self.is(0, '{') {
            self.at += 1;
            while !self.is(0, '}') {
                self.tree(name, &parts, public);
                if self.is(0, ',') {
                    self.at += 1;
                }
            }
            self.at += 1;
            return;
        }
        let glob = self.is(0, '*');
        self.at += usize::from(glob);
        let module = self.into.modules.entry(name.to_vec()).or_default();
        let written = Written { parts, line };
        if !glob {
            let here = alias.or_else(|| written.parts.last().cloned()).unwrap_or_default();
            module.names.insert(here, written.clone());
        }
        match public {
            true => module.reexports.push(written),
            false => module.imports.push(written),
        }
    }

    /// A path in code: `fork::look`, `crate::pool::add_to`. One word alone is nothing.
    fn path(&mut self, name: &[String]) {
        let line = self.line();
        let behind_colons = self.at > 0 && self.tokens[self.at - 1].kind == Kind::Colons;
        let mut parts = vec![self.word(0).unwrap_or_default().to_owned()];
        self.at += 1;
        while self.colons(0) && self.word(1).is_some() {
            parts.push(self.word(1).unwrap_or_default().to_owned());
            self.at += 2;
        }
        if parts.len() > 1 && !behind_colons {
            let module = self.into.modules.entry(name.to_vec()).or_default();
            module.paths.push(Written { parts, line });
        }
    }
}
