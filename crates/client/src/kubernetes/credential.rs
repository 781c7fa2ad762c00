//! The credential of a request.
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
    /// Adds the header.
    pub(super) async fn authorize(&self, headers: &mut HeaderMap) -> Result<Authorized, String> {
        let mut authorized = Authorized::default();
        match self {
            Credential::None => {}
            Credential::Fixed(header) => drop(headers.insert(AUTHORIZATION, header.clone())),
            Credential::File(file) => file.authorize(headers),
            Credential::Exec(exec) => {
                let granted = exec.grant().await?;
                authorized = Authorized { renewed: granted.renewed, run: granted.run };
                granted.token.map(|token| headers.insert(AUTHORIZATION, token));
            }
        }
        Ok(authorized)
    }

    /// The server does not accept it.
    pub(super) async fn refused(&self, authorized: Authorized) {
        if let Credential::Exec(exec) = self {
            exec.refused(authorized.run).await;
        }
    }
}

/// How a request was authorized.
#[derive(Clone, Copy, Default)]
pub(super) struct Authorized {
    /// The client certificate is another one than for the request before.
    pub(super) renewed: bool,
    /// Which run of a plugin it is from.
    run: u64,
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
    /// Fails if the file cannot be read now and there is no other token to begin with.
    pub(super) fn open(path: &Path, other: Option<HeaderValue>) -> io::Result<Self> {
        let first = read(path).or_else(|e| other.ok_or(e))?;
        Ok(TokenFile { path: path.to_owned(), last: Mutex::new(first) })
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
        let file = TokenFile::open(&path, None).unwrap();
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
        let missing = Path::new("/nonexistent/token");
        assert!(TokenFile::open(missing, None).is_err());
        assert_eq!(header(&TokenFile::open(missing, bearer("other").ok()).unwrap()), "Bearer other");
    }
}
