//! How a request says who asks.
//!
//! In: the headers of a request. Out: an `Authorization` header, or none where the client certificate says it. A token
//! in a file, of a service account or of a kubeconfig's `tokenFile`, is read anew for every request, because the kubelet
//! rotates it long before it expires; reading some 1 KB every few minutes costs nothing.

use super::exec::Exec;
use data_encoding::BASE64;
use http::HeaderValue;
use http::header::{AUTHORIZATION, HeaderMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What a client says of itself.
#[derive(Debug)]
pub(super) enum Credential {
    /// Nothing, or a client certificate.
    None,
    /// A header that never changes: a token, or name and password.
    Fixed(HeaderValue),
    /// A token in a file.
    File(TokenFile),
    /// What a program hands out.
    Exec(Box<Exec>),
}

impl Credential {
    /// Adds the header. True: the client certificate may be another one from now on.
    pub(super) async fn authorize(&self, headers: &mut HeaderMap) -> Result<bool, String> {
        match self {
            Credential::None => Ok(false),
            Credential::Fixed(header) => {
                headers.insert(AUTHORIZATION, header.clone());
                Ok(false)
            }
            Credential::File(file) => {
                file.authorize(headers);
                Ok(false)
            }
            Credential::Exec(exec) => {
                let (token, renewed) = exec.token().await?;
                if let Some(token) = token {
                    headers.insert(AUTHORIZATION, token);
                }
                Ok(renewed)
            }
        }
    }

    /// The server does not accept it.
    pub(super) async fn refused(&self) {
        if let Credential::Exec(exec) = self {
            exec.refused().await;
        }
    }
}

/// The header for a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    sensitive(format!("Bearer {token}")).ok_or_else(|| "it is not a token: control characters".into())
}

/// The header for a name and a password.
pub(super) fn basic(name: &str, password: &str) -> Result<HeaderValue, String> {
    let pair = BASE64.encode(format!("{name}:{password}").as_bytes());
    sensitive(format!("Basic {pair}")).ok_or_else(|| "username and password are of no use".into())
}

/// A header that no log shows.
fn sensitive(text: String) -> Option<HeaderValue> {
    let mut header = HeaderValue::try_from(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

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
    bearer(token).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
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
