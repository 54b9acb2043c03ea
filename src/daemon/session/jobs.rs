//! Jobs that an agent has received and not yet reported as ended; the agent's reports are checked against them.
//!
//! A fixed open-addressed table (linear probing, holes closed on removal): ids are chosen by the core and sparse, and nothing may
//! allocate while jobs are in flight.

/// Marks a free place; no job has this id (asserted).
const FREE: u32 = u32::MAX;

/// Jobs in flight: id → data needed when the job ends.
#[derive(Debug)]
pub(crate) struct JobsInFlight<T> {
    places: Box<[(u32, T)]>,
    len: usize,
    max: usize,
}

impl<T: Copy + Default> JobsInFlight<T> {
    /// Create a table for `max` jobs.
    pub fn new(max: u32) -> JobsInFlight<T> {
        let places = (max as usize * 2).next_power_of_two();
        JobsInFlight { places: vec![(FREE, T::default()); places].into_boxed_slice(), len: 0, max: max as usize }
    }

    /// Return the number of jobs in flight.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Add a job. Return false if the table is full or the id is in use: a bug of the core.
    #[must_use]
    pub fn insert(&mut self, id: u32, job: T) -> bool {
        if id == FREE || self.len == self.max {
            return false;
        }
        let place = self.place_of(id);
        if self.places[place].0 == id {
            return false;
        }
        self.places[place] = (id, job);
        self.len += 1;
        true
    }

    /// Remove a job and return its data; `None` if the agent has no such job.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let mut hole = self.place_of(id);
        if id == FREE || self.places[hole].0 != id {
            return None;
        }
        let job = self.places[hole].1;
        let mask = self.places.len() - 1;
        let mut next = (hole + 1) & mask;
        while self.places[next].0 != FREE {
            let home = self.home(self.places[next].0);
            // The entry may move into the hole unless its home lies behind the hole.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.places[hole].0 = FREE;
        self.len -= 1;
        Some(job)
    }

    fn home(&self, id: u32) -> usize {
        // Fibonacci hashing (Knuth, vol. 3, 6.4): consecutive ids spread evenly.
        (id.wrapping_mul(0x9e37_79b9) >> 8) as usize & (self.places.len() - 1)
    }

    /// Return the place of the id, or where it would be inserted.
    fn place_of(&self, id: u32) -> usize {
        let mut place = self.home(id);
        while self.places[place].0 != FREE && self.places[place].0 != id {
            place = (place + 1) & (self.places.len() - 1);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_map_under_random_traffic() {
        let (mut table, mut model) = (JobsInFlight::new(16), HashMap::new());
        let mut random = 1u64;
        for _ in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = (random >> 33) as u32 % 40;
            if random >> 63 == 0 {
                let fits = model.len() < 16 && !model.contains_key(&id);
                assert_eq!(table.insert(id, id * 3), fits);
                if fits {
                    model.insert(id, id * 3);
                }
            } else {
                assert_eq!(table.remove(id), model.remove(&id));
            }
            assert_eq!(table.len(), model.len());
        }
    }

    #[test]
    fn the_id_that_marks_free_places_is_no_job() {
        let mut table = JobsInFlight::<u32>::new(4);
        assert!(!table.insert(FREE, 1));
        assert_eq!(table.remove(FREE), None);
    }
}
