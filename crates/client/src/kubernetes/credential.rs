//! A bearer token in a file, read anew for every request.
//!
//! In: the file of a service account or of a kubeconfig's `tokenFile`. Out: an `Authorization` header. The kubelet
//! rotates such tokens long before they expire. kube-rs would do this too, but it keeps a token for up to a
//! minute (so a revoked one fails for as long) and does not accept a newline at its end. We make a request every few
//! minutes, so reading some 1 KB each time costs nothing.

use http::HeaderValue;
use http::header::{AUTHORIZATION, HeaderMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The file and the header made of it when it could last be read.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    last: Mutex<HeaderValue>,
}

impl TokenFile {
    /// Fails if the file cannot be read now.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(TokenFile { path: path.to_owned(), last: Mutex::new(read(path)?) })
    }

    /// Adds the header. A file that is gone or unreadable leaves the last token in use: some remove it after
    /// start to limit who can read it (kubernetes/kubernetes#68164).
    pub(super) fn authorize(&self, headers: &mut HeaderMap) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match read(&self.path) {
            Ok(token) => *last = token,
            Err(error) => tracing::debug!(%error, file = %self.path.display(), "token not read anew"),
        }
        headers.insert(AUTHORIZATION, last.clone());
    }
}

fn read(path: &Path) -> io::Result<HeaderValue> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty"));
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not a token: control characters"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(file: &TokenFile) -> String {
        let mut headers = HeaderMap::new();
        file.authorize(&mut headers);
        headers[AUTHORIZATION].to_str().unwrap().to_owned()
    }

    #[test]
    fn follows_the_file_and_survives_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let file = TokenFile::open(&path).unwrap();
        assert_eq!(header(&file), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(header(&file), "Bearer two");
        std::fs::write(&path, "").unwrap();
        assert_eq!(header(&file), "Bearer two", "an empty file is a rotation half done");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(header(&file), "Bearer two");
    }

    #[test]
    fn a_missing_file_is_an_error_at_start() {
        assert!(TokenFile::open(Path::new("/nonexistent/token")).is_err());
    }
}
