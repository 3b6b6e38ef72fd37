//! Chooses among the free slots of a node: on as few NUMA nodes as possible, then close together on the PCI bus, then with adjacent
//! indexes.

use super::candidate::SlotView;

/// Up to this many free slots, every combination is considered (at most 12,870). Beyond that, only runs of neighbors in the order of NUMA
/// nodes and buses, which still finds a single NUMA node whenever one has room.
const EXHAUSTIVE: usize = 16;

/// Cost of a combination, most important component first.
type Cost = (NumaNodes, Switches, LeftOver, Span, FirstIndex);
type NumaNodes = usize;
type Switches = usize;
/// Free slots that remain on the NUMA nodes in use; the fewer, the more contiguous room remains elsewhere.
type LeftOver = usize;
type Span = u32;
type FirstIndex = u32;

/// Whether a single NUMA node has `count` free slots.
pub(super) fn fits_on_one_numa_node<'a>(free: impl Iterator<Item = &'a SlotView>, count: usize) -> bool {
    let mut found: Vec<(i32, usize)> = Vec::new();
    for slot in free {
        let place = found.iter().position(|(numa, _)| *numa == slot.numa).unwrap_or(found.len());
        match found.get_mut(place) {
            Some((_, slots)) => *slots += 1,
            None => found.push((slot.numa, 1)),
        }
    }
    found.iter().any(|(_, slots)| *slots >= count)
}

/// The best `count` of these slots, sorted by index; all of them if there are fewer.
pub(super) fn choose<'a>(free: impl Iterator<Item = &'a SlotView>, count: usize) -> Vec<&'a SlotView> {
    let mut free: Vec<&SlotView> = free.collect();
    free.sort_unstable_by_key(|slot| (slot.numa, slot.near, slot.index, slot.id));
    let room: Vec<usize> = free.iter().map(|slot| free.iter().filter(|other| other.numa == slot.numa).count()).collect();
    let mut best: Option<(Cost, Vec<usize>)> = None;
    let mut places = Vec::with_capacity(count);
    let mut look_at = |choice: &mut dyn Iterator<Item = usize>| {
        places.clear();
        places.extend(choice);
        let cost = cost(&free, &room, &places);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, places.clone()));
        }
    };
    match free.len() {
        all if all <= count => look_at(&mut (0..all)),
        all if all <= EXHAUSTIVE => {
            for choice in choices(all, count) {
                look_at(&mut (0..all).filter(|place| choice >> place & 1 == 1));
            }
        }
        all => (0..=all - count).for_each(|first| look_at(&mut (first..first + count))),
    }
    let mut chosen: Vec<&SlotView> =
        best.map_or_else(Vec::new, |(_, places)| places.into_iter().map(|place| free[place]).collect());
    chosen.sort_unstable_by_key(|slot| (slot.index, slot.id));
    chosen
}

/// All combinations of `count` out of `all`, as bit sets, in ascending order.
fn choices(all: usize, count: usize) -> impl Iterator<Item = u32> {
    let first = (1_u32 << count) - 1;
    // Next larger number with the same number of set bits: the top bit of the lowest run of ones moves up, the rest of the run moves to the
    // bottom.
    let next = |choice: &u32| {
        let lowest = choice & choice.wrapping_neg();
        let raised = choice + lowest;
        Some(((raised ^ choice) / lowest) >> 2 | raised)
    };
    std::iter::successors(Some(first), next).take_while(move |choice| choice >> all == 0)
}

/// Cost of the combination `places`. They are indexes into `free`, in its order, which groups slots that are close to each other. `room`
/// has, for each slot, the number of free slots on its NUMA node.
fn cost(free: &[&SlotView], room: &[usize], places: &[usize]) -> Cost {
    let (mut numa_nodes, mut switches, mut on_them) = (0, 0, 0);
    let (mut first, mut last) = (u32::MAX, 0);
    let mut before: Option<&SlotView> = None;
    for place in places {
        let slot = free[*place];
        if before.is_none_or(|before| before.numa != slot.numa) {
            numa_nodes += 1;
            on_them += room[*place];
        }
        if before.is_none_or(|before| (before.numa, before.near) != (slot.numa, slot.near)) {
            switches += 1;
        }
        (first, last) = (first.min(slot.index), last.max(slot.index));
        before = Some(slot);
    }
    (numa_nodes, switches, on_them - places.len(), last.saturating_sub(first), first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_comes_once() {
        let found: Vec<u32> = choices(5, 3).collect();
        assert_eq!(found.len(), 10);
        assert!(found.is_sorted() && found.iter().all(|choice| choice.count_ones() == 3 && *choice < 32), "{found:?}");
        assert_eq!(choices(16, 8).count(), 12_870);
        assert_eq!(choices(16, 16).count(), 1);
    }
}
