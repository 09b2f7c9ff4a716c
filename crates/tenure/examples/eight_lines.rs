//! README's eight lines of Rust, so that they keep compiling and running.

fn render(path: &str) -> Vec<u8> {
    path.repeat(100).into_bytes()
}

fn serve(page: &[u8]) {
    println!("{} bytes", page.len());
}

fn main() -> tenure::Result<()> {
    let cache = tenure::Cache::<String>::new()?; // no size: it grows while there is room
    let page = cache.get_or_insert_with("/index", || render("/index"))?; // made once
    serve(&page); // pinned while `page` lives

    let mut tiles = tenure::Volatile::new(64 << 20)?; // one buffer of your own
    tiles.pin_mut()?.fill(7); // not taken while pinned; from here on it may be
    let tiles = tiles.pin()?;
    if tiles.outcome() == tenure::Outcome::Purged { /* make it again: tiles.lost() says what */ }
    assert_eq!(tiles[0], 7);
    Ok(())
}
