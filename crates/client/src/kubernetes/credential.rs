//! The credential of a request.
//!
//! In: the headers of a request. Out: an `Authorization` header, or none if the client is authenticated by its
//! certificate or not at all. A token in a file, of a service account or of a kubeconfig's `tokenFile`, is read again
//! for every request, because the kubelet rotates it long before it expires; reading about 1 KB every few minutes costs
//! little.

use super::exec::Exec;
use data_encoding::BASE64;
use http::HeaderValue;
use http::header::{AUTHORIZATION, HeaderMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// How a client authenticates.
pub(super) enum Credential {
    /// Without a header: by a client certificate, or not at all.
    None,
    /// A constant header: a token, or user name and password.
    Fixed(HeaderValue),
    /// A token in a file.
    File(TokenFile),
    /// The credentials of a plugin.
    Exec(Box<Exec>),
}

impl Credential {
    /// Adds the `Authorization` header, if there is one.
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

    /// Called when the server did not accept the credential of a request.
    pub(super) async fn refused(&self, authorized: Authorized) {
        if let Credential::Exec(exec) = self {
            exec.refused(authorized.run).await;
        }
    }
}

/// The credential with which a request was authorized.
#[derive(Clone, Copy, Default)]
pub(super) struct Authorized {
    /// Whether the client certificate has changed since the previous request.
    pub(super) renewed: bool,
    /// Number of the plugin's run that issued the credential.
    run: u64,
}

/// The `Authorization` header for a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    sensitive(format!("Bearer {token}")).ok_or_else(|| "a token must not have control characters".into())
}

/// The `Authorization` header for a user name and a password.
pub(super) fn basic(name: &str, password: &str) -> Result<HeaderValue, String> {
    let pair = BASE64.encode(format!("{name}:{password}").as_bytes());
    sensitive(format!("Basic {pair}")).ok_or_else(|| "username and password cannot be encoded".into())
}

/// A header that is not printed in logs.
fn sensitive(text: String) -> Option<HeaderValue> {
    let mut header = HeaderValue::try_from(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// A token file, and the header from its last successful reading.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    last: Mutex<HeaderValue>,
}

impl TokenFile {
    /// Fails if the file cannot be read and there is no fallback token.
    pub(super) fn open(path: &Path, fallback: Option<HeaderValue>) -> io::Result<Self> {
        let first = read(path).or_else(|e| fallback.ok_or(e))?;
        Ok(TokenFile { path: path.to_owned(), last: Mutex::new(first) })
    }

    /// Adds the header. If the file cannot be read, the last token stays in use: some programs remove it after they
    /// have started to limit access to it (kubernetes/kubernetes#68164).
    pub(super) fn authorize(&self, headers: &mut HeaderMap) {
        let mut last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match read(&self.path) {
            Ok(token) => *last = token,
            Err(error) => {
                let file = self.path.display();
                tracing::debug!(%error, %file, "cannot read the token file; using the previous token");
            }
        }
        headers.insert(AUTHORIZATION, last.clone());
    }
}

fn read(path: &Path) -> io::Result<HeaderValue> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"));
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
    fn the_token_follows_the_file_and_survives_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let file = TokenFile::open(&path, None).unwrap();
        assert_eq!(header(&file), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(header(&file), "Bearer two");
        std::fs::write(&path, "").unwrap();
        assert_eq!(header(&file), "Bearer two", "an empty file is an incomplete rotation");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(header(&file), "Bearer two");
    }

    #[test]
    fn a_missing_file_is_an_error_at_start_without_a_fallback() {
        let missing = Path::new("/nonexistent/token");
        assert!(TokenFile::open(missing, None).is_err());
        assert_eq!(header(&TokenFile::open(missing, bearer("other").ok()).unwrap()), "Bearer other");
    }
}
