//! Tests grants, unclaimed regions and returns against a plain model.

use super::*;
use proptest::prelude::*;

const REGION: u64 = 1 << 20;
const REGIONS: [u32; 3] = [5, 0, 3];
const WEIGHTS: [u32; 3] = [1, 1, 2];
const QUOTAS: [u64; 2] = [4 * REGION, 7 * REGION + 1];

fn disks() -> Disks {
    let disk = |(regions, weight)| DiskConfig { regions, weight };
    let disks = REGIONS.into_iter().zip(WEIGHTS).map(disk).collect();
    Disks::new(DisksConfig { region_bytes: REGION, disks, quotas_bytes: QUOTAS.to_vec() })
}

/// Disk and region.
type At = (u32, u32);

/// Model of the node.
#[derive(Default)]
struct Model {
    held: BTreeMap<(u32, u32), At>,
    unclaimed: BTreeMap<At, (Option<usize>, u64)>,
    joined: BTreeSet<u32>,
    failed: BTreeSet<u32>,
    lost: BTreeSet<At>,
    quotas: [u64; 2],
}

impl Model {
    fn serves(&self, disk: u32) -> bool {
        !self.failed.contains(&disk)
    }

    fn free(&self, disk: u32) -> Vec<u32> {
        let taken =
            |at: &At| self.held.values().chain(&self.lost).chain(self.unclaimed.keys()).any(|other| other == at);
        (0..REGIONS[disk as usize]).filter(|region| self.serves(disk) && !taken(&(disk, *region))).collect()
    }

    fn bytes_of(&self, domain: usize) -> u64 {
        let held = self.held.keys().filter(|(space, _)| *space as usize % 2 == domain).count();
        let unclaimed = self.unclaimed.values().filter(|(of, _)| *of == Some(domain)).count();
        (held + unclaimed) as u64 * REGION
    }

    /// Return the unclaimed region that must be evicted first, of a domain or of any.
    fn oldest(&self, domain: Option<usize>) -> Option<At> {
        let unclaimed = self.unclaimed.iter().filter(|(_, (of, _))| domain.is_none() || *of == domain);
        unclaimed.min_by_key(|(_, (of, grant))| (of.is_some(), *grant)).map(|(at, _)| *at)
    }

    /// Return the fill level of a disk after one more grant: regions in use over size and speed, as a fraction.
    fn fullness(&self, disk: u32) -> (u64, u64) {
        let all = self.held.values().chain(&self.lost).chain(self.unclaimed.keys());
        let used = all.filter(|at| at.0 == disk).count() as u64;
        (used + 1, u64::from(REGIONS[disk as usize] * WEIGHTS[disk as usize]))
    }

    fn trim(&mut self) -> Vec<At> {
        let mut gone = Vec::new();
        for domain in 0..2 {
            while self.bytes_of(domain) > self.quotas[domain]
                && let Some(at) = self.oldest(Some(domain))
            {
                self.unclaimed.remove(&at);
                gone.push(at);
            }
        }
        gone
    }

    fn check_grant(
        &mut self,
        space: u32,
        wanted: Option<u32>,
        answer: Result<(DiskGrant, Option<Evicted>), NoDisk>,
    ) -> Result<(), TestCaseError> {
        let domain = space as usize % 2;
        let any_free = (0..3).any(|disk| !self.free(disk).is_empty());
        let (held, quota) = (self.bytes_of(domain), self.quotas[domain]);
        let expected = match () {
            () if !self.joined.contains(&space) => Err(NoDisk::Unknown),
            () if held > quota => Err(NoDisk::Full),
            () if held + REGION > quota => self.oldest(Some(domain)).ok_or(NoDisk::Full).map(Some),
            () if any_free => Ok(None),
            () => self.oldest(None).ok_or(NoDisk::Full).map(Some),
        };
        let got = answer.map(|(_, evicted)| evicted.map(|Evicted { disk, region }| (disk, region)));
        prop_assert_eq!(got, expected);
        let Ok((grant, evicted)) = answer else { return Ok(()) };
        if let Some(evicted) = evicted {
            self.unclaimed.remove(&(evicted.disk, evicted.region));
        }
        let roomy: Vec<u32> = (0..3).filter(|disk| !self.free(*disk).is_empty()).collect();
        prop_assert!(self.free(grant.disk).first() == Some(&grant.region), "not free, or not the lowest: {:?}", grant);
        if let Some(wanted) = wanted.filter(|wanted| roomy.contains(wanted)) {
            prop_assert_eq!(grant.disk, wanted, "it had room");
        } else {
            let (used, size) = self.fullness(grant.disk);
            for other in roomy {
                let (used_there, size_there) = self.fullness(other);
                prop_assert!(used * size_there <= used_there * size, "disk {} is emptier: {:?}", other, grant);
            }
        }
        prop_assert_eq!(u64::from(grant.slots), REGION / (1000 + u64::from(space)));
        self.hold(space, grant)
    }

    fn hold(&mut self, space: u32, grant: DiskGrant) -> Result<(), TestCaseError> {
        let lower = (0..grant.slab).all(|slab| self.held.contains_key(&(space, slab)));
        prop_assert!(lower, "not the lowest id");
        prop_assert!(self.held.insert((space, grant.slab), (grant.disk, grant.region)).is_none());
        prop_assert!(self.bytes_of(space as usize % 2) <= self.quotas[space as usize % 2]);
        Ok(())
    }
}

proptest! {
    #[test]
    fn a_region_is_one_spaces_alone(
        ops in prop::collection::vec((0u8..14, 0u32..4, 0u32..7), 1..300)
    ) {
        let mut node = disks();
        let mut model = Model { quotas: QUOTAS, ..Model::default() };
        for (step, (op, space, n)) in (0u64..).zip(ops) {
            let domain = space as usize % 2;
            match op {
                0 => prop_assert_eq!(
                    node.join(space, domain, 1000 + u64::from(space)).is_ok(), model.joined.insert(space)
                ),
                1 if n == 0 => {
                    let gone: Vec<_> = model.held.iter().filter(|(key, _)| key.0 == space).map(|(_, at)| *at).collect();
                    model.held.retain(|key, _| key.0 != space);
                    prop_assert_eq!(node.leave(space) as usize, gone.len());
                    model.joined.remove(&space);
                    model.lost.extend(gone);
                }
                3 if n == 0 => {
                    let there: Vec<_> = model.held.iter().filter(|(_, at)| at.0 == space).map(|(key, _)| *key).collect();
                    model.unclaimed.retain(|at, _| at.0 != space);
                    model.failed.insert(space);
                    let mut told = node.fail(space);
                    told.sort_unstable();
                    prop_assert_eq!(told, there);
                }
                4 if n == 0 => {
                    model.quotas = [u64::from(space) * 2 * REGION, 6 * REGION];
                    let gone: Vec<At> = node.set_quotas(model.quotas.to_vec()).iter().map(|e| (e.disk, e.region)).collect();
                    prop_assert_eq!(gone, model.trim());
                }
                5 | 6 => {
                    let owner = [Some(0), Some(1), None][n as usize % 3];
                    let free = space < 3 && model.free(space).contains(&n);
                    prop_assert_eq!(node.add_unclaimed(space, n, owner, step % 50), free);
                    if free {
                        // Every grant has its own number, so two unclaimed regions never have the same age.
                        node.drop_unclaimed(space, n);
                        prop_assert!(node.add_unclaimed(space, n, owner, step));
                        model.unclaimed.insert((space, n), (owner, step));
                        let gone: Vec<At> = node.trim().iter().map(|e| (e.disk, e.region)).collect();
                        prop_assert_eq!(gone, model.trim());
                    }
                }
                7 => {
                    let claimed = model.unclaimed.get_mut(&(space, n)).is_some_and(|(owner, _)| *owner.get_or_insert(1) == 1);
                    prop_assert_eq!(node.assign_domain(space, n, 1), claimed);
                    let gone: Vec<At> = node.trim().iter().map(|e| (e.disk, e.region)).collect();
                    prop_assert_eq!(gone, model.trim());
                }
                8 => {
                    let (disk, region) = (n % 3, n);
                    let mine = model.joined.contains(&space)
                        && model.unclaimed.get(&(disk, region)).is_some_and(|(owner, _)| *owner == Some(domain));
                    let grant = node.adopt(space, disk, region);
                    prop_assert_eq!(grant.is_some(), mine);
                    if let Some(grant) = grant {
                        prop_assert_eq!((grant.disk, grant.region), (disk, region));
                        model.unclaimed.remove(&(disk, region));
                        model.hold(space, grant)?;
                    }
                }
                9 => prop_assert_eq!(node.drop_unclaimed(space, n), model.unclaimed.remove(&(space, n)).is_some()),
                10 | 11 => {
                    let wanted = (n < 4).then_some(n);
                    let answer = node.grant(space, wanted);
                    model.check_grant(space, wanted, answer)?;
                }
                _ => prop_assert_eq!(node.take_back(space, n), model.held.remove(&(space, n))),
            }
            for (status, disk) in node.status().zip(0u32..) {
                let on = |at: &&At| at.0 == disk;
                prop_assert_eq!(status.granted as usize, model.held.values().filter(on).count());
                prop_assert_eq!(status.unclaimed as usize, model.unclaimed.keys().filter(on).count());
                prop_assert_eq!(status.lost as usize, model.lost.iter().filter(on).count());
            }
        }
    }
}

#[test]
fn disks_fill_by_size_and_speed() {
    let mut node = disks();
    assert!(node.join(1, 1, 4096).is_ok());
    let order: Vec<u32> = (0..7).map(|_| node.grant(1, None).unwrap().0.disk).collect();
    // Five regions of weight 1 against three of weight 2: shares of 1/5 and 1/6.
    assert_eq!(order, [2, 0, 2, 0, 2, 0, 0]);
}

#[test]
fn unclaimed_regions_go_oldest_first_and_those_of_unknown_domains_before() {
    let mut node = disks();
    assert!(node.join(1, 1, 4096).is_ok());
    let unclaimed = [(0, 0, Some(0), 7), (0, 1, Some(1), 3), (0, 2, None, 9), (2, 1, None, 8), (2, 2, Some(1), 2)];
    for (disk, region, domain, grant) in unclaimed {
        assert!(node.add_unclaimed(disk, region, domain, grant));
    }
    let evicted = |node: &mut Disks| node.grant(1, None).unwrap().1.map(|gone| (gone.disk, gone.region));
    assert_eq!((0..3).map(|_| evicted(&mut node)).collect::<Vec<_>>(), [None; 3]);
    assert_eq!(evicted(&mut node), Some((2, 1)));
    assert_eq!(evicted(&mut node), Some((0, 2)));
    assert_eq!(evicted(&mut node), Some((2, 2)), "the domain has seven: its oldest is evicted");
    assert_eq!(evicted(&mut node), Some((0, 1)));
    assert_eq!(node.grant(1, None), Err(NoDisk::Full), "the rest belongs to another domain, and the quota is used up");
    assert!(node.adopt(1, 0, 0).is_none(), "unclaimed, of another domain");
}

#[test]
fn a_block_larger_than_a_region_is_refused_with_both_sizes() {
    let error = disks().join(1, 0, REGION + 4096).unwrap_err();
    assert_eq!(error, NoSlot::TooLarge { slot_bytes: REGION + 4096, region_bytes: REGION });
    assert_eq!(error.to_string(), "a block of 1052672 bytes does not fit into a slab of 1048576 bytes on NVMe");
    assert!(disks().join(1, 2, 4096).is_err(), "no such domain");
}
