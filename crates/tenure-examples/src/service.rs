//! The service: pictures by number, drawn once, then from the cache. It exists twice: on tenure's
//! cache, and on moka's.

use crate::{allocated, picture};
use axum::extract::{Path, State};
use axum::http::header::{HeaderName, CONTENT_TYPE};
use axum::http::StatusCode;
use axum::routing::get;
use axum::Router;
use bytes::Bytes;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many pictures were drawn.
static DRAWN: AtomicU64 = AtomicU64::new(0);

fn draw(number: u64) -> Vec<u8> {
    DRAWN.fetch_add(1, Ordering::Relaxed);
    picture::draw(number)
}

/// No size: the cache uses the memory that is left.
type Elastic = tenure::Cache<u64>;

async fn from_tenure(
    State(cache): State<Elastic>,
    Path(number): Path<u64>,
) -> Result<Bytes, StatusCode> {
    let value = cache.get_or_insert_async(&number, async { draw(number) }).await;
    // The response's body is the cache's own memory, pinned until it is sent.
    value
        .map(|value| Bytes::from_owner(value.into_owned()))
        .map_err(|_| StatusCode::INSUFFICIENT_STORAGE)
}

/// For Prometheus: tenure's figures of the process, and those of the cache.
async fn metrics(State(cache): State<Elastic>) -> ([(HeaderName, &'static str); 1], String) {
    let mut metrics = tenure::metrics::Metrics::new();
    metrics.add(&[], &tenure::stats());
    metrics.add_cache(&[("cache", "pictures")], &cache.stats());
    ([(CONTENT_TYPE, tenure::metrics::CONTENT_TYPE)], metrics.render())
}

type Fixed = moka::future::Cache<u64, Bytes>;

async fn from_moka(State(cache): State<Fixed>, Path(number): Path<u64>) -> Bytes {
    cache.get_with(number, async { Bytes::from(draw(number)) }).await
}

/// Drawn pictures, and bytes requested from the allocator.
async fn counters() -> String {
    format!("{} {}", DRAWN.load(Ordering::Relaxed), allocated::bytes())
}

/// The cache of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// tenure's.
    Tenure,
    /// moka's, with room for so many bytes of pictures.
    Moka(u64),
}

/// Serves on a free port of this machine, which is printed, until the process is ended.
///
/// # Errors
/// The cache or the socket cannot be made.
pub fn serve(kind: Kind) -> Result<(), Box<dyn std::error::Error>> {
    let router = match kind {
        Kind::Tenure => Router::new()
            .route("/picture/{number}", get(from_tenure))
            .route("/metrics", get(metrics))
            .with_state(Elastic::new()?),
        Kind::Moka(bytes) => {
            let cache = Fixed::builder()
                .max_capacity(bytes)
                .weigher(|_, picture: &Bytes| picture.len() as u32)
                .build();
            Router::new().route("/picture/{number}", get(from_moka)).with_state(cache)
        }
    };
    let router = router.route("/counters", get(counters));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        axum::serve(listener, router).await?;
        Ok(())
    })
}
