//! cache
/// Cache.
#[derive(Debug)]
pub struct Cache<K>(std::marker::PhantomData<K>);
