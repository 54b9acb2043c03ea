//! The model catches every mutant of the agent within its budget of seeds.

use super::{OPERATIONS, model::Model};
use kvtide_client::agent::protocol::mutants::{Mutant, select};

/// Number of seeds within which a mutant must be caught.
const SEEDS: u64 = 120;

#[test]
fn every_mutant_is_caught() {
    let survived: Vec<&str> = Mutant::ALL.into_iter().filter(|mutant| !caught(*mutant)).map(Mutant::name).collect();
    assert!(survived.is_empty(), "not caught: {survived:?}");
}

fn caught(mutant: Mutant) -> bool {
    select(Some(mutant));
    let found = (0..SEEDS).find_map(|seed| Some((seed, Model::new(seed).run(OPERATIONS).err()?)));
    select(None);
    if let Some((seed, why)) = &found {
        println!("{}: seed {seed}: {why}", mutant.name());
    }
    found.is_some()
}
