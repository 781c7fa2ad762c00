//! The file: a redb database with a table of values and one of facts about the whole.
//!
//! Every value has a checksum of its own, so that a damaged file is refused when it is opened, and never half-read.

use super::super::{Key, Revision, Stored};
use bytes::Bytes;
use redb::{Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// The latest revision that is known to be on disk.
    revision: Revision,
    doubt: Option<Doubt>,
}

/// Writes that failed. Whether they are on disk is not known: the disk may have failed only when it was asked whether
/// they are. The next write undoes them.
#[derive(Debug)]
struct Doubt {
    keys: BTreeSet<Key>,
    /// The last revision that was tried.
    revision: Revision,
}

/// The values of a file, and its latest revision.
type Content = (BTreeMap<Key, Stored>, Revision);

/// The values of keys that are written; `None` deletes.
pub(super) type Values = HashMap<Key, Option<Stored>>;

impl File {
    pub(super) fn open(path: &Path) -> Result<(File, BTreeMap<Key, Stored>, Revision), OpenError> {
        let failed = |error: std::io::Error| OpenError::Io { path: path.to_owned(), error };
        match std::fs::metadata(path) {
            // The database would be created anew.
            Ok(metadata) if metadata.len() == 0 => {
                return Err(OpenError::Damaged { path: path.to_owned(), cause: "it is empty".to_owned() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(path)?,
            Err(error) => return Err(failed(error)),
        }
        let database = existing(path)?;
        let (values, revision) = read(path, &database)?;
        Ok((
            File { path: path.to_owned(), database: Some(database), revision, doubt: None },
            values,
            revision,
        ))
    }

    /// Writes values and the latest revision, durably. `current` has the values of all other keys. After an error none of
    /// these values is in force, and the next call tries again with the file opened anew.
    pub(super) fn write(
        &mut self,
        revision: Revision,
        values: &Values,
        current: impl Fn(&Key) -> Option<Stored>,
    ) -> Result<(), String> {
        match self.try_write(revision, values, current) {
            Ok(()) => {
                (self.revision, self.doubt) = (revision, None);
                Ok(())
            }
            Err(error) => {
                self.fail(self.revision, values.keys().cloned(), revision);
                Err(error.to_string())
            }
        }
    }

    /// A write of these keys at a revision has failed; `known` is the latest revision that is on disk for sure.
    pub(super) fn fail(&mut self, known: Revision, keys: impl IntoIterator<Item = Key>, revision: Revision) {
        (self.database, self.revision) = (None, known);
        let doubt = self.doubt.get_or_insert_with(|| Doubt { keys: BTreeSet::new(), revision });
        doubt.keys.extend(keys);
        doubt.revision = revision;
    }

    fn try_write(
        &mut self,
        revision: Revision,
        values: &Values,
        current: impl Fn(&Key) -> Option<Stored>,
    ) -> Result<(), OpenError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => self.reopen()?,
        };
        let in_doubt =
            self.doubt.iter().flat_map(|doubt| &doubt.keys).filter(|key| !values.contains_key(*key));
        let restored: Vec<(&Key, Option<Stored>)> = in_doubt.map(|key| (key, current(key))).collect();
        let written = values.iter().map(|(key, stored)| (key, stored.as_ref()));
        let restored = restored.iter().map(|(key, stored)| (*key, stored.as_ref()));
        write(&database, revision, written.chain(restored)).map_err(|error| open_error(&self.path, error))?;
        self.database = Some(database);
        Ok(())
    }

    /// Opens the file again. It has to be the one that was open, with at most the writes in doubt.
    fn reopen(&self) -> Result<Database, OpenError> {
        let database = existing(&self.path)?;
        let found = stored_revision(&self.path, &database)?;
        let last = self.doubt.as_ref().map_or(self.revision, |doubt| doubt.revision);
        if !(self.revision..=last).contains(&found) {
            let cause =
                format!("another process has changed it: revision {found} instead of {}", self.revision);
            return Err(OpenError::Damaged { path: self.path.clone(), cause });
        }
        Ok(database)
    }
}

/// Creates a file, which has its name only when it is complete.
fn create(path: &Path) -> Result<(), OpenError> {
    let failed = |error: std::io::Error| OpenError::Io { path: path.to_owned(), error };
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let database = Builder::new().set_cache_size(PAGE_CACHE).create(&new);
    let database = database.map_err(|error| open_error(path, error.into()))?;
    write(&database, 0, std::iter::empty()).map_err(|error| open_error(path, error))?;
    drop(database);
    std::fs::rename(&new, path).map_err(failed)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

fn existing(path: &Path) -> Result<Database, OpenError> {
    Builder::new().set_cache_size(PAGE_CACHE).open(path).map_err(|error| open_error(path, error.into()))
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

/// A number about the whole.
fn number(path: &Path, transaction: &ReadTransaction, name: &str) -> Result<u64, OpenError> {
    let failed = |error: redb::Error| open_error(path, error);
    let numbers = transaction.open_table(NUMBERS).map_err(|e| failed(e.into()))?;
    let found = numbers.get(name).map_err(|e| failed(e.into()))?;
    let missing = || OpenError::Damaged { path: path.to_owned(), cause: format!("it has no {name}") };
    found.map(|found| found.value()).ok_or_else(missing)
}

fn stored_revision(path: &Path, database: &Database) -> Result<Revision, OpenError> {
    let transaction = database.begin_read().map_err(|e| open_error(path, e.into()))?;
    number(path, &transaction, REVISION)
}

fn read(path: &Path, database: &Database) -> Result<Content, OpenError> {
    let failed = |error: redb::Error| open_error(path, error);
    let damaged = |cause: String| OpenError::Damaged { path: path.to_owned(), cause };
    let transaction = database.begin_read().map_err(|e| failed(e.into()))?;
    let found = number(path, &transaction, FORMAT)?;
    if found > CURRENT_FORMAT {
        return Err(OpenError::Newer { path: path.to_owned(), found });
    }
    let revision = number(path, &transaction, REVISION)?;
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
