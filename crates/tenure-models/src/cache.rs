//! The core's `cache`, as far as it is modelled.

#[path = "../../tenure/src/cache/array.rs"]
mod array;
#[path = "../../tenure/src/cache/epoch.rs"]
mod epoch;
#[path = "../../tenure/src/cache/harvest.rs"]
mod harvest;
#[path = "../../tenure/src/cache/harvesting.rs"]
mod harvesting;
#[path = "../../tenure/src/cache/life.rs"]
mod life;
#[path = "../../tenure/src/cache/listener.rs"]
mod listener;
#[path = "../../tenure/src/cache/place.rs"]
mod place;
#[path = "../../tenure/src/cache/put_off.rs"]
mod put_off;
#[path = "../../tenure/src/cache/removed.rs"]
mod removed;
#[path = "../../tenure/src/cache/table.rs"]
mod table;
#[path = "../../tenure/src/cache/tasks.rs"]
mod tasks;
#[path = "../../tenure/src/cache/vacated.rs"]
mod vacated;

#[path = "models/epoch.rs"]
mod epoch_models;
#[path = "models/life.rs"]
mod life_models;
#[path = "models/reuse.rs"]
mod reuse_models;
#[path = "models/table.rs"]
mod table_models;
#[path = "models/tasks.rs"]
mod tasks_models;
