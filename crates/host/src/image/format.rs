//! Detects the format of a disk image from its first bytes, before any tool opens it.
//!
//! Tools that open an image follow its references: a backing file, an external data file, a descriptor with extents anywhere on
//! the host. So no tool opens a tenant's image before this module has found that it has none of these, and then only with the
//! format that was found here. Pure functions over bytes; the caller reads the file.

/// The number of bytes that these functions need: the first cluster with the largest cluster size.
pub const HEAD_BYTES: usize = 2 * 1024 * 1024;

const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";
/// Extended headers of version 3 begin here.
const QCOW2_V2_HEADER: usize = 72;
const QCOW2_V3_HEADER: usize = 104;
/// Features that do not change which files are read: another compression, finer clusters.
const HARMLESS_FEATURES: u64 = (1 << 3) | (1 << 4);

/// The detected format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// A single qcow2 file.
    Qcow2 {
        /// The size of the disk that a guest would see.
        virtual_bytes: u64,
    },
    /// The plain bytes of a disk.
    Raw,
}

impl Image {
    /// Returns the name that tools use.
    pub const fn format(self) -> &'static str {
        match self {
            Self::Qcow2 { .. } => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// The declared format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// qcow2.
    Qcow2,
    /// The plain bytes of a disk.
    Raw,
}

/// Why an image is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefused {
    /// It is too short, or its numbers make no sense.
    #[error("the image is damaged: {0}")]
    Damaged(&'static str),
    /// It refers to another file.
    #[error("the image refers to another file ({0}); flatten it with `qemu-img convert` and publish that")]
    RefersToFile(&'static str),
    /// It is encrypted.
    #[error("the image is encrypted; publish it unencrypted")]
    Encrypted,
    /// It needs an unknown feature.
    #[error("the image uses a feature that is not supported: {0}")]
    Unsupported(&'static str),
    /// Its format is not the declared one.
    #[error("the image is declared as {declared} but its content is {found}")]
    Mislabeled {
        /// The declared format.
        declared: &'static str,
        /// The detected format.
        found: &'static str,
    },
}

impl ImageRefused {
    /// Returns a stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Damaged(_) => "image_damaged",
            Self::RefersToFile(_) => "image_refers_to_file",
            Self::Encrypted => "image_encrypted",
            Self::Unsupported(_) => "image_unsupported",
            Self::Mislabeled { .. } => "image_mislabeled",
        }
    }
}

/// Checks the start of an image (up to [`HEAD_BYTES`], less only if the file is shorter).
pub fn inspect(head: &[u8], declared: Declared) -> Result<Image, ImageRefused> {
    let found = looks_like(head);
    match (declared, found) {
        (Declared::Qcow2, Some("qcow2")) => qcow2(head),
        (Declared::Qcow2, found) => Err(ImageRefused::Mislabeled { declared: "qcow2", found: found.unwrap_or("something else") }),
        (Declared::Raw, None) => Ok(Image::Raw),
        // A tool that guesses formats would open a disk with the header of a container as that container.
        (Declared::Raw, Some(found)) => Err(ImageRefused::Mislabeled { declared: "raw", found }),
    }
}

/// Returns the container format that these bytes begin with, if any that tools detect.
fn looks_like(head: &[u8]) -> Option<&'static str> {
    const STARTS: [(&[u8], &str); 13] = [
        (&QCOW2_MAGIC, "qcow2"),
        (b"KDMV", "vmdk"),
        (b"COWD", "vmdk"),
        (b"# Disk DescriptorFile", "vmdk"),
        (b"vhdxfile", "vhdx"),
        (b"conectix", "vpc"),
        (b"QED\0", "qed"),
        (b"LUKS\xba\xbe", "luks"),
        (b"WithoutFreeSpace", "parallels"),
        (b"WithouFreSpacExt", "parallels"),
        (b"Bochs Virtual HD Image", "bochs"),
        (b"#!/bin/sh\n#V2.0 Format", "cloop"),
        (b"OOOO\x01", "cow"),
    ];
    let starts = STARTS.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, name)| *name);
    // VirtualBox has its signature after a line of text; VMware accepts a descriptor after comments and blanks.
    let vdi = || (head.get(0x40..0x44) == Some(&[0x7f, 0x10, 0xda, 0xbe])).then_some("vdi");
    let descriptor = || {
        let text = &head[..head.len().min(20 * 1024)];
        let is_text = text.iter().take(64).all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
        (is_text && text.windows(14).any(|window| window.eq_ignore_ascii_case(b"DescriptorFile"))).then_some("vmdk")
    };
    starts.or_else(vdi).or_else(descriptor)
}

fn qcow2(head: &[u8]) -> Result<Image, ImageRefused> {
    use ImageRefused::{Damaged, Encrypted, RefersToFile, Unsupported};
    const SHORT: ImageRefused = Damaged("it ends within its header");
    let u32_at = |at: usize| head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes).ok_or(SHORT);
    let u64_at = |at: usize| head.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes).ok_or(SHORT);
    let version = u32_at(4)?;
    if u64_at(8)? != 0 || u32_at(16)? != 0 {
        return Err(RefersToFile("a backing file"));
    }
    let cluster_bits = u32_at(20)?;
    let virtual_bytes = u64_at(24)?;
    if u32_at(32)? != 0 {
        return Err(Encrypted);
    }
    if !(9..=21).contains(&cluster_bits) {
        return Err(Damaged("its cluster size makes no sense"));
    }
    if virtual_bytes == 0 || virtual_bytes > 1 << 56 {
        return Err(Damaged("its size makes no sense"));
    }
    let mut extension = match version {
        2 => QCOW2_V2_HEADER,
        3 => {
            let features = u64_at(72)?;
            if features & 0b100 != 0 {
                return Err(RefersToFile("an external data file"));
            }
            if features & 0b11 != 0 {
                return Err(Damaged("it was not closed properly; repair it with `qemu-img check -r all`"));
            }
            if features & !HARMLESS_FEATURES != 0 {
                return Err(Unsupported("an unknown feature of qcow2"));
            }
            let length = usize::try_from(u32_at(100)?).unwrap_or(usize::MAX);
            if length < QCOW2_V3_HEADER || length % 8 != 0 || length > 1 << cluster_bits {
                return Err(Damaged("its header has a length that makes no sense"));
            }
            length
        }
        _ => return Err(Unsupported("a version of qcow2 other than 2 and 3")),
    };
    // Extensions follow until an end marker. They stay within the first cluster.
    let end = 1_usize << cluster_bits;
    loop {
        if extension == end {
            return Ok(Image::Qcow2 { virtual_bytes });
        }
        if extension > end {
            return Err(Damaged("its header runs out of the first cluster"));
        }
        let (kind, length) = (u32_at(extension)?, usize::try_from(u32_at(extension + 4)?).unwrap_or(usize::MAX));
        match kind {
            0 => return Ok(Image::Qcow2 { virtual_bytes }),
            0x4441_5441 => return Err(RefersToFile("an external data file")),
            0xe279_2aca => return Err(RefersToFile("the format of a backing file")),
            0x0537_be77 => return Err(Encrypted),
            // Names of features, and bitmaps for backups.
            0x6803_f857 | 0x2385_2875 => {}
            _ => return Err(Unsupported("an unknown extension of qcow2")),
        }
        if length > end {
            return Err(Damaged("an extension of its header is too long"));
        }
        extension += 8 + length.next_multiple_of(8);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a qcow2 header as `qemu-img create -f qcow2 x 10G` writes it.
    fn fresh() -> Vec<u8> {
        let mut head = vec![0; 65_536];
        head[..4].copy_from_slice(&QCOW2_MAGIC);
        head[7] = 3;
        head[20..24].copy_from_slice(&16_u32.to_be_bytes());
        head[24..32].copy_from_slice(&(10_u64 << 30).to_be_bytes());
        head[100..104].copy_from_slice(&112_u32.to_be_bytes());
        // The table of feature names, then the end.
        head[112..116].copy_from_slice(&0x6803_f857_u32.to_be_bytes());
        head[116..120].copy_from_slice(&144_u32.to_be_bytes());
        head
    }

    fn refused(change: impl FnOnce(&mut Vec<u8>)) -> &'static str {
        let mut head = fresh();
        change(&mut head);
        inspect(&head, Declared::Qcow2).expect_err("refused").code()
    }

    #[test]
    fn a_fresh_image_is_taken_for_what_it_is() {
        assert_eq!(inspect(&fresh(), Declared::Qcow2), Ok(Image::Qcow2 { virtual_bytes: 10 << 30 }));
        let mut old = fresh();
        old[7] = 2;
        old[72..120].fill(0);
        assert_eq!(inspect(&old, Declared::Qcow2), Ok(Image::Qcow2 { virtual_bytes: 10 << 30 }));
        assert_eq!(inspect(&[0; 4096], Declared::Raw), Ok(Image::Raw));
        assert_eq!(inspect(b"", Declared::Raw), Ok(Image::Raw));
    }

    #[test]
    fn whatever_would_read_another_file_is_refused() {
        assert_eq!(refused(|head| head[15] = 1), "image_refers_to_file");
        assert_eq!(refused(|head| head[19] = 1), "image_refers_to_file");
        assert_eq!(refused(|head| head[79] = 0b100), "image_refers_to_file");
        assert_eq!(refused(|head| head[112..116].copy_from_slice(b"DATA")), "image_refers_to_file");
        assert_eq!(refused(|head| head[112..116].copy_from_slice(&0xe279_2aca_u32.to_be_bytes())), "image_refers_to_file");
        let behind = |head: &mut Vec<u8>| head[264..268].copy_from_slice(b"DATA");
        assert_eq!(refused(behind), "image_refers_to_file", "also behind another extension");
    }

    #[test]
    fn what_is_encrypted_dirty_unknown_or_cut_is_refused() {
        assert_eq!(refused(|head| head[35] = 1), "image_encrypted");
        assert_eq!(refused(|head| head[112..116].copy_from_slice(&0x0537_be77_u32.to_be_bytes())), "image_encrypted");
        assert_eq!(refused(|head| head[79] = 1), "image_damaged");
        assert_eq!(refused(|head| head[79] = 2), "image_damaged");
        assert_eq!(refused(|head| head[78] = 1), "image_unsupported");
        assert_eq!(refused(|head| head[7] = 4), "image_unsupported");
        assert_eq!(refused(|head| head[112..116].copy_from_slice(b"WHAT")), "image_unsupported");
        assert_eq!(refused(|head| head[116..120].copy_from_slice(&u32::MAX.to_be_bytes())), "image_damaged");
        assert_eq!(refused(|head| head[24..32].fill(0)), "image_damaged");
        assert_eq!(refused(|head| head[23] = 40), "image_damaged");
        assert_eq!(refused(|head| head[103] = 3), "image_damaged");
        assert_eq!(refused(|head| head.truncate(90)), "image_damaged");
        assert_eq!(refused(|head| head.truncate(116)), "image_damaged");
    }

    #[test]
    fn a_disk_that_begins_like_a_container_is_refused() {
        let mut vdi = vec![0; 512];
        vdi[0x40..0x44].copy_from_slice(&[0x7f, 0x10, 0xda, 0xbe]);
        let descriptor = b"\n# comment\nversion=1\n# Disk DescriptorFile\nRW 100 FLAT \"/etc/shadow\" 0\n".to_vec();
        for head in [
            fresh(),
            b"KDMV rest".to_vec(),
            b"vhdxfile".to_vec(),
            b"QED\0".to_vec(),
            b"LUKS\xba\xbe\0\x01".to_vec(),
            vdi,
            descriptor,
        ] {
            let refusal = inspect(&head, Declared::Raw).expect_err("refused");
            assert_eq!(refusal.code(), "image_mislabeled", "{refusal}");
        }
        assert_eq!(inspect(&[0; 4096], Declared::Qcow2).expect_err("refused").code(), "image_mislabeled");
        assert_eq!(inspect(b"KDMV", Declared::Qcow2).expect_err("refused").code(), "image_mislabeled");
    }

    proptest! {
        /// For any bytes there is no panic, and an accepted qcow2 refers to no other file.
        #[test]
        fn no_bytes_are_too_strange(changes in prop::collection::vec((0_usize..300, any::<u8>()), 0..12), length in 0_usize..70_000) {
            let mut head = fresh();
            for (at, byte) in changes {
                head[at] = byte;
            }
            head.truncate(length);
            if let Ok(Image::Qcow2 { .. }) = inspect(&head, Declared::Qcow2) {
                prop_assert!(head[8..20].iter().all(|byte| *byte == 0), "no backing file");
                prop_assert!(head[7] == 2 || head[79] & 0b111 == 0, "no external data");
            }
            let _ = inspect(&head, Declared::Raw);
        }
    }
}
