//! The caches with which tenure's hit ratio is compared. They store weights and no bytes. Each has
//! one shard, if that can be chosen, because shards cost hits.

use super::caching::{Caching, Sizes};

/// Plain LRU, as a known reference.
pub(super) struct Lru {
    sizes: Sizes,
    /// The neighbours of each key towards the newest and towards the oldest; the last entry is the
    /// list's head. A key that is not in the list is its own neighbour.
    links: Vec<(u32, u32)>,
    left: u64,
}

impl Lru {
    pub fn new(bytes: u64, sizes: &Sizes) -> Lru {
        let links = (0..=sizes.len() as u32).map(|at| (at, at)).collect();
        Lru { sizes: sizes.clone(), links, left: bytes }
    }

    fn unlink(&mut self, key: u32) {
        let (newer, older) = self.links[key as usize];
        self.links[newer as usize].1 = older;
        self.links[older as usize].0 = newer;
        self.links[key as usize] = (key, key);
    }

    fn link(&mut self, key: u32) {
        let head = self.sizes.len() as u32;
        let newest = self.links[head as usize].1;
        self.links[key as usize] = (head, newest);
        self.links[newest as usize].0 = key;
        self.links[head as usize].1 = key;
    }
}

impl Caching for Lru {
    fn request(&mut self, key: u32) -> bool {
        let head = self.sizes.len() as u32;
        let is_there = self.links[key as usize].0 != key;
        if is_there {
            self.unlink(key);
            self.link(key);
            return true;
        }
        let size = u64::from(self.sizes[key as usize]);
        while self.left < size {
            let oldest = self.links[head as usize].0;
            if oldest == head {
                return false;
            }
            self.unlink(oldest);
            self.left += u64::from(self.sizes[oldest as usize]);
        }
        self.left -= size;
        self.link(key);
        false
    }
}

#[cfg(feature = "peers")]
pub(super) use of_crates::{FoyerFifo, FoyerLfu, FoyerLru, FoyerS3Fifo, Moka, QuickCache};

#[cfg(feature = "peers")]
mod of_crates {
    use super::super::caching::{Caching, Sizes};
    use foyer_memory::{EvictionConfig, FifoConfig, LfuConfig, LruConfig, S3FifoConfig};

    /// moka: W-TinyLFU.
    pub struct Moka(moka::sync::Cache<u32, ()>);

    impl Moka {
        pub fn new(bytes: u64, sizes: &Sizes) -> Self {
            let sizes = sizes.clone();
            let weigher = move |key: &u32, (): &()| sizes[*key as usize];
            Moka(moka::sync::Cache::builder().max_capacity(bytes).weigher(weigher).build())
        }
    }

    impl Caching for Moka {
        fn request(&mut self, key: u32) -> bool {
            let hit = self.0.get(&key).is_some();
            if !hit {
                self.0.insert(key, ());
            }
            hit
        }
    }

    #[derive(Clone)]
    pub struct Weights(Sizes);

    impl quick_cache::Weighter<u32, ()> for Weights {
        fn weight(&self, key: &u32, (): &()) -> u64 {
            self.0[*key as usize].into()
        }
    }

    /// quick_cache: S3-FIFO's relative with two clocks.
    pub struct QuickCache(quick_cache::sync::Cache<u32, (), Weights>);

    impl QuickCache {
        pub fn new(bytes: u64, sizes: &Sizes) -> Self {
            let all: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
            let items = (sizes.len() as u64 * bytes / all.max(1)).max(1) as usize;
            let options = quick_cache::OptionsBuilder::new()
                .shards(1)
                .estimated_items_capacity(items)
                .weight_capacity(bytes)
                .build()
                .expect("both are given");
            let (hasher, lifecycle) = Default::default();
            let weights = Weights(sizes.clone());
            QuickCache(quick_cache::sync::Cache::with_options(options, weights, hasher, lifecycle))
        }
    }

    impl Caching for QuickCache {
        fn request(&mut self, key: u32) -> bool {
            let hit = self.0.get(&key).is_some();
            if !hit {
                self.0.insert(key, ());
            }
            hit
        }
    }

    struct Foyer(foyer_memory::Cache<u32, ()>);

    impl Foyer {
        fn new(bytes: u64, sizes: &Sizes, policy: impl Into<EvictionConfig>) -> Self {
            let sizes = sizes.clone();
            let weighter = move |key: &u32, (): &()| sizes[*key as usize] as usize;
            let cache = foyer_memory::CacheBuilder::new(bytes as usize)
                .with_shards(1)
                .with_weighter(weighter)
                .with_eviction_config(policy)
                .build();
            Foyer(cache)
        }

        fn request(&mut self, key: u32) -> bool {
            let hit = self.0.get(&key).is_some();
            if !hit {
                self.0.insert(key, ());
            }
            hit
        }
    }

    macro_rules! foyers {
        ($($name:ident $config:ty),*) => {$(
            pub struct $name(Foyer);
            impl $name {
                pub fn new(bytes: u64, sizes: &Sizes) -> Self {
                    $name(Foyer::new(bytes, sizes, <$config>::default()))
                }
            }
            impl Caching for $name {
                fn request(&mut self, key: u32) -> bool {
                    self.0.request(key)
                }
            }
        )*};
    }

    foyers!(FoyerFifo FifoConfig, FoyerLru LruConfig, FoyerLfu LfuConfig, FoyerS3Fifo S3FifoConfig);
}
