//! Reads and writes files, with size limits.

use std::io::{Read as _, Write as _};
use std::path::Path;

use crate::error::CliError;

/// Reads a whole file, or stdin for `-`. Fails if there are more than `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, CliError> {
    let name = path.display();
    let bad = |error: std::io::Error| CliError::usage("file_unreadable", format!("cannot read {name}: {error}"));
    let mut bytes = Vec::new();
    let reader: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(bad)?)
    };
    reader.take(limit + 1).read_to_end(&mut bytes).map_err(bad)?;
    if bytes.len() as u64 > limit {
        return Err(CliError::usage("file_too_large", format!("{name} is larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// A new file that only its owner can read. It appears under its name only once it is complete.
pub(crate) struct NewFile {
    file: std::io::BufWriter<tempfile::NamedTempFile>,
    path: std::path::PathBuf,
}

impl NewFile {
    /// Starts a temporary file in the folder of `path`.
    pub(crate) fn create(path: &Path) -> Result<Self, CliError> {
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            Some(_) | None => Path::new("."),
        };
        let file = tempfile::NamedTempFile::new_in(folder).map_err(|error| unwritable(path, &error))?;
        Ok(Self { file: std::io::BufWriter::new(file), path: path.to_owned() })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.file.write_all(bytes).map_err(|error| unwritable(&self.path, &error))
    }

    /// Gives the file its name, unless another file has that name by now.
    pub(crate) fn finish_new(self) -> Result<(), CliError> {
        let Self { file, path } = self;
        let file = file.into_inner().map_err(|error| unwritable(&path, error.error()))?;
        file.as_file().sync_all().map_err(|error| unwritable(&path, &error))?;
        file.persist_noclobber(&path).map_err(|error| unwritable(&path, &error.error))?;
        Ok(())
    }

    /// Gives the file its name, replacing an existing one.
    pub(crate) fn finish(self) -> Result<(), CliError> {
        let Self { file, path } = self;
        let file = file.into_inner().map_err(|error| unwritable(&path, error.error()))?;
        file.as_file().sync_all().map_err(|error| unwritable(&path, &error))?;
        file.persist(&path).map_err(|error| unwritable(&path, &error.error))?;
        Ok(())
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::usage("file_unwritable", format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        std::fs::write(&path, "old").expect("written");
        let mut file = NewFile::create(&path).expect("starts");
        file.write(b"half").expect("writes");
        drop(file);
        assert_eq!(std::fs::read(&path).expect("still there"), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 1);
        let mut file = NewFile::create(&path).expect("starts");
        file.write(b"whole").expect("writes");
        file.finish().expect("finishes");
        assert_eq!(std::fs::read(&path).expect("there"), b"whole");
    }

    #[test]
    fn a_file_over_the_limit_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("in");
        std::fs::write(&path, "12345").expect("written");
        assert_eq!(read(&path, 5).expect("fits"), b"12345");
        assert_eq!(read(&path, 4).expect_err("too large").code, "file_too_large");
    }
}
