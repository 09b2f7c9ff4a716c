//! README's ten lines of Rust, so that they keep compiling and running.

fn render(path: &str) -> Vec<u8> {
    path.repeat(100).into_bytes()
}

fn serve(page: &[u8]) {
    println!("{} bytes", page.len());
}

fn draw(tiles: &[u8]) {
    println!("the first of {} bytes is {}", tiles.len(), tiles[0]);
}

fn main() -> tenure::Result<()> {
    let cache = tenure::Cache::<String>::new()?; // keys: `String`, values: bytes; grows while there is room
    let page = cache.get_or_insert_with("/index", || render("/index"))?; // made once
    serve(&page); // the bytes stay while `page` lives

    let mut tiles = tenure::Volatile::new(64 << 20)?; // one buffer, which the kernel may take
    tiles.pin_mut()?.fill(7); // pinned until the end of this line
    let mut pinned = tiles.pin_mut()?; // later: pinned while `pinned` lives
    if pinned.outcome() == tenure::Outcome::Purged {
        pinned.fill(7); // some of it is gone: make it again,
        pinned.restored(); // and say so
    }
    draw(&pinned);
    Ok(())
}
