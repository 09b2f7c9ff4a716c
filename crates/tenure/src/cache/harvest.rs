//! Harvests of a table: drop what was taken out of it and no reader can read any more.

use super::array::Array;
use super::harvesting::Harvesting;
use super::removed::{Keys, Retired};
use super::table::{arrays, Table, Writer};
use crate::sync::Guard;
use std::ptr::null_mut;

impl<K> Table<K> {
    /// Drops removed keys, and frees arrays, that no reader can read any more. Runs the program's
    /// code, so the caller holds no lock. The outer harvest takes what a key's drop leaves here:
    /// see [`Harvesting`].
    #[inline]
    pub fn harvest(&self) {
        if self.epoch.pending() {
            self.harvest_now();
        }
    }

    #[cold]
    fn harvest_now(&self) {
        if let Some(harvesting) = Harvesting::begin(&self.harvests) {
            self.harvest_under_way();
            harvesting.end();
        }
    }

    /// Calls the listener for what was put off when a thread was too deep in harvests.
    pub fn tell_put_off(&self) {
        let Some(listener) = self.listener.as_ref().filter(|listener| listener.has_put_off())
        else {
            return;
        };
        if let Some(harvesting) = Harvesting::begin(&self.harvests) {
            listener.tell_put_off();
            harvesting.end();
        }
    }

    /// Harvests before the table ends. Keys that are still in the table are not reported.
    pub fn harvest_last(&self) {
        let Some(listener) = &self.listener else { return };
        let Some(harvesting) = Harvesting::last(&self.harvests) else { return };
        if self.epoch.pending() {
            self.harvest_under_way();
        }
        listener.tell_put_off();
        harvesting.end();
    }

    fn harvest_under_way(&self) {
        // The keys come out onto the stack, which has no room for 16 large ones.
        match size_of::<K>() {
            0..=256 => self.harvest_by::<16>(),
            _ => self.harvest_by::<1>(),
        }
    }

    #[inline(never)]
    fn harvest_by<const KEYS: usize>(&self) {
        loop {
            let mut keys = Keys::<K, KEYS>::new();
            let mut writer = self.writer.lock();
            self.unite(&mut writer);
            self.pass(&mut writer);
            let retired = Retired(std::mem::replace(&mut writer.ready, null_mut()));
            for array in arrays(self.current(&writer)) {
                while keys.has_room() {
                    let Some((key, cause)) = array.take_ready() else { break };
                    keys.push(key, cause);
                }
            }
            self.epoch.set_pending(self.has_more(&writer));
            drop(writer);
            // Under no lock.
            if let Some(listener) = &self.listener {
                retired.tell(listener);
                keys.tell(listener);
                self.harvests.tell_put_off(listener);
            }
            if keys.len == 0 && retired.0.is_null() {
                return;
            }
            // Dropped here: first the arrays, then the keys.
        }
    }

    fn has_more(&self, writer: &Guard<'_, Writer<K>>) -> bool {
        let newest = self.current(writer);
        arrays(newest).any(Array::has_dead)
            || newest.is_some_and(|newest| newest.older().is_some())
            || !writer.retired.is_null()
            || !writer.waiting.is_null()
    }
}
