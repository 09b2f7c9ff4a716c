//! Every exported function is one call of the wrapper, which keeps panics in and cancellation out.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use syn::{Attribute, Expr, Item, ItemFn, Stmt};
use tenure_testkit::build::libraries_of;
use tenure_testkit::skip;

/// The functions of `src/report.rs` that an exported function may call. It may call no other.
const WRAPPERS: [&str; 3] = ["status", "pointer", "value"];

fn is_no_mangle(attribute: &Attribute) -> bool {
    // `#[unsafe(no_mangle)]`
    let inside = attribute.parse_args::<syn::Ident>();
    attribute.path().is_ident("unsafe") && inside.is_ok_and(|inside| inside == "no_mangle")
}

/// The argument of the wrapper. `None`: the body is not exactly one call of it.
fn wrapper_call(function: &ItemFn) -> Option<String> {
    let [Stmt::Expr(Expr::Call(call), _)] = function.block.stmts.as_slice() else { return None };
    let Expr::Path(path) = &*call.func else { return None };
    if !WRAPPERS.iter().any(|name| path.path.is_ident(name)) {
        return None;
    }
    match call.args.first()? {
        Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Str(name) => Some(name.value()),
            _ => None,
        },
        _ => None,
    }
}

fn exported_functions(file: &Path) -> Vec<ItemFn> {
    let source = std::fs::read_to_string(file).unwrap();
    let items = syn::parse_file(&source).unwrap().items;
    let functions = items.into_iter().filter_map(|item| match item {
        Item::Fn(function) => Some(function),
        _ => None,
    });
    functions.filter(|function| function.attrs.iter().any(is_no_mangle)).collect()
}

#[test]
fn every_exported_function_is_one_call_of_the_wrapper_under_its_own_name() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut count = 0;
    for entry in std::fs::read_dir(sources).unwrap() {
        for function in exported_functions(&entry.unwrap().path()) {
            let name = function.sig.ident.to_string();
            let said = wrapper_call(&function);
            assert_eq!(said.as_deref(), Some(&*name), "{name} is to be one call of {WRAPPERS:?}");
            count += 1;
        }
    }
    assert!(count > 70, "only {count} functions were found");
}

/// The start of each function that has a table for unwinding (an LSDA), by `readelf`.
fn functions_with_table(frames: &str) -> BTreeMap<u64, bool> {
    let (mut tables, mut functions) = (BTreeMap::new(), BTreeMap::new());
    let mut common = "";
    for line in frames.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [at, _, _, "CIE", ..] => common = at,
            ["Augmentation:", kind] => {
                tables.insert(common, kind.contains('L'));
            }
            [_, _, _, "FDE", cie, pc, ..] => {
                let start = pc.trim_start_matches("pc=").split("..").next().unwrap();
                let start = u64::from_str_radix(start, 16).unwrap();
                functions.insert(start, tables[cie.trim_start_matches("cie=")]);
            }
            _ => {}
        }
    }
    functions
}

fn output(program: &str, arguments: &[&str], file: &Path) -> Result<String, String> {
    match Command::new(program).args(arguments).arg(file).output() {
        Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) => Err(format!("no {program}: {error}")),
    }
}

/// If a function with such a table is unwound at an instruction that the table does not name, Rust
/// aborts the process. A thread with the asynchronous type of cancellation may be unwound at any
/// instruction.
#[test]
fn no_exported_function_has_a_table_for_unwinding() {
    let library = libraries_of("tenure-capi", &["libtenure.so"]).join("libtenure.so");
    let frames = output("readelf", &["--debug-dump=frames"], &library);
    let symbols = output("nm", &["-D", "--defined-only"], &library);
    let (frames, symbols) = match (frames, symbols) {
        (Ok(frames), Ok(symbols)) => (frames, symbols),
        (Err(reason), _) | (_, Err(reason)) => skip!("{reason}"),
    };
    let functions = functions_with_table(&frames);
    let mut count = 0;
    for line in symbols.lines().filter(|line| line.contains(" T tenure_")) {
        let (at, name) = line.split_once(" T ").unwrap();
        let has_table = functions.get(&u64::from_str_radix(at, 16).unwrap());
        assert_eq!(has_table, Some(&false), "{name}: has something to drop, or may unwind");
        count += 1;
    }
    assert!(count > 70, "only {count} functions were found");
}
