//! README's ten lines of Rust, so that they keep compiling and running.

fn render(path: &str) -> Vec<u8> {
    path.repeat(100).into_bytes()
}

fn serve(page: &[u8]) {
    println!("{} bytes", page.len());
}

fn main() -> tenure::Result<()> {
    let cache = tenure::Cache::<String>::new()?; // no size: it grows while there is room
    let page = cache.get_or_insert_with("/index", || render("/index"))?; // made once
    serve(&page); // the bytes stay while `page` lives

    let mut tiles = tenure::Volatile::new(64 << 20)?; // one buffer, which the kernel may take
    tiles.pin_mut()?.fill(7); // pinned until the end of this line
    if tiles.pin()?.outcome() == tenure::Outcome::Purged {
        tiles.pin_mut()?.fill(7); // some of it is gone: make it again,
        tiles.restored(); // the contents are good again
    }
    assert_eq!(tiles.pin()?[0], 7);
    Ok(())
}
