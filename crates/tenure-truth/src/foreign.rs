//! Memory that tenure does not know: mapped, filled, checked and unmapped all the time, so that
//! advice at a wrong address, or too late, is found.

use crate::model::{self, Found};
use crate::rng::Rng;
use crate::sys::{self, page_bytes};
use crate::{doing, wrong};

/// The mappings of one thread.
#[derive(Default)]
pub struct Foreign {
    mappings: Vec<Mapping>,
}

struct Mapping {
    at: usize,
    pages: usize,
    salt: u64,
}

const MOST: usize = 10;

impl Foreign {
    /// Maps, or checks and unmaps.
    pub fn step(&mut self, rng: &mut Rng) {
        doing!("foreign memory");
        if self.mappings.len() < MOST && rng.once_in(2) {
            let sizes = [1, 3, 16, 64, 160, 512, 513, 700, 1030];
            let pages = sizes[rng.below(sizes.len())];
            let Some(at) = sys::map(pages * page_bytes(), false) else { return };
            let salt = rng.draw();
            for page in written(pages) {
                model::write_page(at + page * page_bytes(), salt, page, 1);
            }
            self.mappings.push(Mapping { at, pages, salt });
        } else if !self.mappings.is_empty() {
            let which = rng.below(self.mappings.len());
            let mapping = &self.mappings[which];
            mapping.check();
            if rng.once_in(2) {
                sys::unmap(mapping.at, mapping.pages * page_bytes());
                self.mappings.swap_remove(which);
            }
        }
    }

    /// Checks everything.
    pub fn check(&self) {
        self.mappings.iter().for_each(Mapping::check);
    }
}

/// The pages of a mapping that hold data: both ends and some between.
fn written(pages: usize) -> impl Iterator<Item = usize> {
    (0..pages).filter(move |page| *page < 8 || page + 8 >= pages || page % 16 == 0)
}

impl Mapping {
    fn check(&self) {
        // This takes memory that was given up by mistake; the rest stays.
        sys::reclaim(self.at, self.pages * page_bytes());
        for page in written(self.pages) {
            let found = model::look(self.at + page * page_bytes(), self.salt, page, 1);
            if found != Found::Expected {
                let (at, pages) = (self.at, self.pages);
                wrong!("page {page} of {pages} of foreign memory at {at:#x}: {found:?}");
                return;
            }
        }
    }
}
