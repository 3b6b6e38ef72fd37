//! A corpus in a single file, in which a length precedes every input. As thousands of small files, the corpora would be most of
//! the repository.

/// Returns the inputs of a corpus file, or `None` if the file is malformed.
pub fn unpack(mut file: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut inputs = Vec::new();
    while !file.is_empty() {
        let (length, rest) = file.split_first_chunk::<4>()?;
        let (input, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        inputs.push(input.to_vec());
        file = rest;
    }
    Some(inputs)
}

/// Packs inputs into a corpus file. Duplicates are dropped and the order is fixed, which keeps the diff of a changed corpus small.
pub fn pack(mut inputs: Vec<Vec<u8>>) -> Vec<u8> {
    inputs.sort_unstable();
    inputs.dedup();
    let mut file = Vec::new();
    for input in inputs {
        file.extend(u32::try_from(input.len()).unwrap_or(u32::MAX).to_le_bytes());
        file.extend(input);
    }
    file
}

#[test]
fn what_was_packed_comes_out_once_and_in_order() {
    let inputs = vec![b"b".to_vec(), Vec::new(), b"a".to_vec(), b"b".to_vec()];
    let file = pack(inputs);
    assert_eq!(unpack(&file), Some(vec![Vec::new(), b"a".to_vec(), b"b".to_vec()]));
    assert_eq!(unpack(&file[..file.len() - 1]), None, "a file that was cut off");
    assert_eq!(unpack(&[]), Some(Vec::new()));
}
