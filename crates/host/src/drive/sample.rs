//! Canaries on a drive, and checking its blocks. Everything bypasses the page cache, so that the answers come from the drive.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use sha2::{Digest as _, Sha256};

/// Number of canaries on a drive.
pub(super) const CANARIES: usize = 64;
/// Number of further blocks that are checked.
pub(super) const SAMPLES: usize = 256;
/// Alignment of buffers and blocks: no drive needs more.
pub(super) const ALIGNMENT: usize = 4096;

/// How far a block may be from its place if that is taken.
const NEAR: u64 = 16;

/// Aligned memory for direct I/O.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// Returns zeros.
    pub(super) fn zeros(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        // The allocation does not move when the vector does.
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { bytes, start, length }
    }

    pub(super) fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

/// Positions of canaries and samples, in bytes from the start of the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) canaries: Vec<u64>,
    pub(super) samples: Vec<u64>,
}

impl Plan {
    /// Plans blocks all over a drive of `size` bytes. Canaries are at the first and the last block, and at a random one in every
    /// part between. Samples are at the places of partition tables and file systems, and again at a random one in every part. The
    /// same seed gives the same blocks.
    pub(super) fn new(size: u64, seed: &[u8; 32]) -> Self {
        let block = ALIGNMENT as u64;
        let count = size / block;
        if count == 0 {
            return Self { canaries: Vec::new(), samples: Vec::new() };
        }
        // A drive may end within one of our blocks, so the last one is counted from the end, and nothing else may overlap it.
        let (first, last) = (0, size - block);
        let mut taken = BTreeSet::from([0]);
        // The block itself, or the next free one if it is taken.
        let mut take = |index: u64| {
            let near = index..index.saturating_add(NEAR).min(count - 1);
            near.into_iter().find(|index| taken.insert(*index)).map(|index| index * block)
        };

        let mut canaries = vec![first];
        canaries.extend(by_chance(count, CANARIES - 2, seed, "canary").filter_map(&mut take));
        if last - first >= block {
            canaries.push(last);
        }
        // Partition tables for both sector sizes, their copies at the end, labels of file systems, and the first partition.
        let tables = (1..=5).chain([16]).chain(256..=259).chain(count.saturating_sub(6)..count);
        let mut samples: Vec<u64> = tables.filter_map(&mut take).collect();
        let more = SAMPLES.saturating_sub(samples.len());
        samples.extend(by_chance(count, more, seed, "sample").filter_map(&mut take));
        samples.sort_unstable();
        Self { canaries, samples }
    }
}

/// Returns a random block from each of this many equal parts.
fn by_chance(count: u64, parts: usize, seed: &[u8; 32], what: &'static str) -> impl Iterator<Item = u64> {
    let (seed, parts) = (*seed, parts as u128);
    (0..parts).filter_map(move |part| {
        let edge = |part: u128| u64::try_from(u128::from(count) * part / parts).unwrap_or(count);
        let (from, to) = (edge(part), edge(part + 1));
        let digest = Sha256::new().chain_update(seed).chain_update(what).chain_update(part.to_le_bytes()).finalize();
        let chance = digest.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
        (to > from).then(|| from + chance % (to - from))
    })
}

/// The content of the drive before the wipe.
pub(super) struct Before {
    plan: Plan,
    /// The content of each written canary.
    canaries: Vec<[u8; ALIGNMENT]>,
    samples: Vec<[u8; ALIGNMENT]>,
}

/// Writing the canaries failed.
#[derive(Debug)]
pub(super) struct NotMarked {
    /// Number of canaries that may have been written.
    pub(super) written: u32,
    pub(super) error: std::io::Error,
}

/// Reads the samples, then writes the canaries: random bytes, so that nothing else can look like them.
pub(super) fn mark(drive: &File, plan: Plan) -> Result<Before, NotMarked> {
    let mut block = Aligned::zeros(ALIGNMENT);
    let samples = plan.samples.iter().map(|offset| read(drive, *offset, &mut block)).collect::<Result<_, _>>();
    let samples = samples.map_err(|error| NotMarked { written: 0, error })?;
    let mut before = Before { plan, canaries: Vec::new(), samples };
    for offset in before.plan.canaries.clone() {
        let written = u32::try_from(before.canaries.len()).unwrap_or(u32::MAX);
        let mut canary = [0; ALIGNMENT];
        getrandom::fill(&mut canary).map_err(|error| NotMarked { written, error: std::io::Error::other(error.to_string()) })?;
        block.get_mut().copy_from_slice(&canary);
        let result = drive.write_all_at(block.get(), offset).and_then(|()| read(drive, offset, &mut block));
        let after = result.map_err(|error| NotMarked { written: written + 1, error })?;
        if after != canary {
            let error = std::io::Error::other("the drive does not keep what is written to it");
            return Err(NotMarked { written: written + 1, error });
        }
        before.canaries.push(canary);
    }
    let written = u32::try_from(before.canaries.len()).unwrap_or(u32::MAX);
    drive.sync_all().map_err(|error| NotMarked { written, error })?;
    Ok(before)
}

/// The expected content of a clean block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clean {
    /// Zeros.
    Zeros,
    /// Zeros, ones, or anything but the earlier content: after its own erasure a drive may show anything.
    Changed,
}

impl Clean {
    fn accepts(self, before: &[u8; ALIGNMENT], after: &[u8; ALIGNMENT]) -> bool {
        let filled = |byte: u8| after.iter().all(|b| *b == byte);
        match self {
            Self::Zeros => filled(0),
            Self::Changed => filled(0) || filled(0xff) || after != before,
        }
    }
}

/// The content after the wipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct After {
    pub(super) canaries_written: u32,
    pub(super) canaries_gone: u32,
    pub(super) samples: u32,
    pub(super) samples_clean: u32,
}

/// Reads every canary and sample again. A block that cannot be read is not clean.
pub(super) fn verify(drive: &File, before: &Before, clean: Clean) -> After {
    let mut block = Aligned::zeros(ALIGNMENT);
    let mut count = |offsets: &[u64], contents: &[[u8; ALIGNMENT]], must_change: bool| {
        let is_clean = |offset: &u64, content: &[u8; ALIGNMENT]| match read(drive, *offset, &mut block) {
            Ok(after) => clean.accepts(content, &after) && !(must_change && after == *content),
            Err(_) => false,
        };
        let mut is_clean = is_clean;
        let good = offsets.iter().zip(contents).filter(|(offset, content)| is_clean(offset, content)).count();
        (u32::try_from(contents.len()).unwrap_or(u32::MAX), u32::try_from(good).unwrap_or(0))
    };
    let (canaries_written, canaries_gone) = count(&before.plan.canaries, &before.canaries, true);
    let (samples, samples_clean) = count(&before.plan.samples, &before.samples, false);
    After { canaries_written, canaries_gone, samples, samples_clean }
}

fn read(drive: &File, offset: u64, block: &mut Aligned) -> std::io::Result<[u8; ALIGNMENT]> {
    drive.read_exact_at(block.get_mut(), offset)?;
    let mut bytes = [0; ALIGNMENT];
    bytes.copy_from_slice(block.get());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn a_large_drive_is_marked_at_both_ends_and_everywhere_between() {
        let size = 3_840_755_982_336;
        let plan = Plan::new(size, &[7; 32]);
        assert_eq!((plan.canaries.len(), plan.samples.len()), (CANARIES, SAMPLES));
        assert_eq!((plan.canaries[0], plan.canaries[CANARIES - 1]), (0, size - 4096));
        let widest = plan.canaries.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest < Some(size / 31), "no part is left out");
        for table in [4096, 2 * 4096, 65_536, 1 << 20, size - 5 * 4096] {
            assert!(plan.samples.contains(&table) || plan.canaries.contains(&table), "{table}");
        }
        assert_eq!(plan, Plan::new(size, &[7; 32]), "the same seed, the same blocks");
        assert_ne!(plan, Plan::new(size, &[8; 32]));
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_never_leave_the_drive(sectors in 0_u64..100_000, seed in any::<[u8; 32]>()) {
            let size = sectors * 512;
            let plan = Plan::new(size, &seed);
            let mut all: Vec<u64> = plan.canaries.iter().chain(&plan.samples).copied().collect();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 4096));
            prop_assert!(all.iter().all(|offset| offset % 512 == 0 && offset + 4096 <= size));
            prop_assert!(plan.canaries.len() <= CANARIES && plan.samples.len() <= SAMPLES);
            prop_assert_eq!(plan.canaries.is_empty(), size < 4096);
        }
    }

    #[test]
    fn only_zeros_are_zeros_and_an_erasure_may_leave_anything_new() {
        let (zeros, ones, data, other) = ([0; ALIGNMENT], [0xff; ALIGNMENT], [7; ALIGNMENT], [9; ALIGNMENT]);
        for (before, after, as_zeros, as_changed) in [
            (&data, &zeros, true, true),
            (&data, &other, false, true),
            (&data, &ones, false, true),
            (&data, &data, false, false),
            (&zeros, &zeros, true, true),
            (&ones, &ones, false, true),
        ] {
            assert_eq!(Clean::Zeros.accepts(before, after), as_zeros);
            assert_eq!(Clean::Changed.accepts(before, after), as_changed);
        }
    }

    #[test]
    fn marks_that_stay_are_noticed() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("drive");
        let file = File::options().create_new(true).read(true).write(true).open(path).expect("created");
        file.set_len(16 << 20).expect("sized");
        file.write_all_at(b"tenant", 1 << 20).expect("written");
        let before = mark(&file, Plan::new(16 << 20, &[1; 32])).expect("marked");
        let after = verify(&file, &before, Clean::Changed);
        assert_eq!((after.canaries_written, after.canaries_gone), (64, 0));
        assert!(after.samples_clean < after.samples, "{after:?}");
        // Everything but the first canary is erased.
        let mut first = vec![0; ALIGNMENT];
        file.read_exact_at(&mut first, 0).expect("read");
        file.set_len(0).and_then(|()| file.set_len(16 << 20)).expect("emptied");
        file.write_all_at(&first, 0).expect("written");
        let after = verify(&file, &before, Clean::Zeros);
        assert_eq!((after.canaries_gone, after.samples_clean), (63, after.samples));
    }
}
