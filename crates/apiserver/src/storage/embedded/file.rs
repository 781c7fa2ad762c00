//! The file: a redb database with a table of values and one of facts about the whole.
//!
//! Every value has a checksum of its own, so that a damaged file is refused when it is opened, and never half-read.

use super::super::{Key, Revision, Stored};
use bytes::Bytes;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Values by key, each after its revision and its checksum.
const VALUES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("values");
/// Numbers: the latest revision, and the format of this file.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
const REVISION: &str = "revision";
const FORMAT: &str = "format";
/// The format that this version writes.
const CURRENT_FORMAT: u64 = 1;
/// Bytes before a value: its revision and its checksum.
const HEADER: usize = 12;
/// Memory for pages of the file; all values are in the cache anyway.
const PAGE_CACHE: usize = 8 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// Another process has it open.
    #[error("{}: another process uses this file; stop it, or give another directory", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged.
    #[error(
        "{}: the file is damaged ({cause}); nothing was read from it or changed. Restore a snapshot, or move the file \
         away to begin with an empty state",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// A newer version wrote it.
    #[error("{}: the file has format {found}, this version knows formats up to {CURRENT_FORMAT}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
}

/// An open file.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// `None` after a failed write, until it has been opened again.
    database: Option<Database>,
}

/// The values of a file, and its latest revision.
type Content = (BTreeMap<Key, Stored>, Revision);

impl File {
    pub(super) fn open(path: &Path) -> Result<(File, BTreeMap<Key, Stored>, Revision), OpenError> {
        let database = database(path)?;
        let (values, revision) = read(path, &database)?;
        Ok((File { path: path.to_owned(), database: Some(database) }, values, revision))
    }

    /// Writes values and the latest revision, durably. After an error nothing is written, and the next call tries again
    /// with the file opened anew.
    pub(super) fn write<'a>(
        &mut self,
        revision: Revision,
        values: impl Iterator<Item = (&'a Key, Option<&'a Stored>)>,
    ) -> Result<(), String> {
        let database = match self.database.take() {
            Some(database) => database,
            None => database(&self.path).map_err(|error| error.to_string())?,
        };
        write(&database, revision, values).map_err(|error| error.to_string())?;
        self.database = Some(database);
        Ok(())
    }
}

fn database(path: &Path) -> Result<Database, OpenError> {
    Builder::new().set_cache_size(PAGE_CACHE).create(path).map_err(|error| open_error(path, error.into()))
}

fn open_error(path: &Path, error: redb::Error) -> OpenError {
    let path = path.to_owned();
    match error {
        redb::Error::DatabaseAlreadyOpen => OpenError::InUse { path },
        redb::Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
            OpenError::Io { path, error }
        }
        other => OpenError::Damaged { path, cause: other.to_string() },
    }
}

fn write<'a>(
    database: &Database,
    revision: Revision,
    values: impl Iterator<Item = (&'a Key, Option<&'a Stored>)>,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(VALUES)?;
        let mut buffer = Vec::new();
        for (key, stored) in values {
            match stored {
                Some(stored) => {
                    encode(key, stored, &mut buffer);
                    table.insert(key.as_str(), buffer.as_slice())?;
                }
                None => _ = table.remove(key.as_str())?,
            }
        }
        let mut numbers = transaction.open_table(NUMBERS)?;
        numbers.insert(REVISION, revision)?;
        numbers.insert(FORMAT, CURRENT_FORMAT)?;
    }
    Ok(transaction.commit()?)
}

fn read(path: &Path, database: &Database) -> Result<Content, OpenError> {
    let failed = |error: redb::Error| open_error(path, error);
    let damaged = |cause: String| OpenError::Damaged { path: path.to_owned(), cause };
    let transaction = database.begin_read().map_err(|e| failed(e.into()))?;
    let numbers = match transaction.open_table(NUMBERS) {
        Ok(numbers) => numbers,
        // A new file.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Content::default()),
        Err(error) => return Err(failed(error.into())),
    };
    let number = |name: &str| -> Result<u64, OpenError> {
        let found = numbers.get(name).map_err(|e| failed(e.into()))?;
        found.map(|found| found.value()).ok_or_else(|| damaged(format!("it has no {name}")))
    };
    let found = number(FORMAT)?;
    if found > CURRENT_FORMAT {
        return Err(OpenError::Newer { path: path.to_owned(), found });
    }
    let revision = number(REVISION)?;
    let table = transaction.open_table(VALUES).map_err(|e| failed(e.into()))?;
    let mut values = BTreeMap::new();
    for item in table.iter().map_err(|e| failed(e.into()))? {
        let (key, bytes) = item.map_err(|e| failed(e.into()))?;
        let key = Key::new(key.value());
        let stored = decode(&key, bytes.value()).filter(|stored| stored.revision <= revision);
        let stored = stored.ok_or_else(|| damaged(format!("the value of {key} has changed")))?;
        values.insert(key, stored);
    }
    Ok((values, revision))
}

fn encode(key: &Key, stored: &Stored, buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.extend_from_slice(&stored.revision.to_be_bytes());
    buffer.extend_from_slice(&checksum(key, stored.revision, &stored.value).to_be_bytes());
    buffer.extend_from_slice(&stored.value);
}

fn decode(key: &Key, bytes: &[u8]) -> Option<Stored> {
    let (header, value) = bytes.split_at_checked(HEADER)?;
    let (revision, sum) = header.split_first_chunk::<8>()?;
    let revision = Revision::from_be_bytes(*revision);
    (checksum(key, revision, value).to_be_bytes() == *sum)
        .then(|| Stored { value: Bytes::copy_from_slice(value), revision })
}

fn checksum(key: &Key, revision: Revision, value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_str().as_bytes());
    hasher.update(&revision.to_be_bytes());
    hasher.update(value);
    hasher.finalize()
}
