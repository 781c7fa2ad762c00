//! TLS towards the API server: the certificate authorities that are trusted, and the client certificate that is sent.
//!
//! In: [`Trust`] and an [`Identity`]. Out: rustls' configuration. Authorities and a client certificate in files are read
//! anew before every request, because the kubelet and cert-manager rotate them in place; a file that cannot be used leaves
//! the last one in use.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// The authorities that may have signed the server's certificate.
pub(super) enum Trust {
    /// The authorities that this system trusts.
    System,
    /// The authorities in PEM.
    Authorities {
        /// The certificates.
        pem: Vec<u8>,
        /// Where they are from, for messages.
        from: String,
        /// The file they are in, if they are in one.
        file: Option<PathBuf>,
    },
    /// Any: `insecure-skip-tls-verify`.
    Anything,
}

impl Trust {
    /// The authorities in a file.
    pub(super) fn file(path: &Path, from: String) -> std::io::Result<Trust> {
        Ok(Trust::Authorities { pem: std::fs::read(path)?, from, file: Some(path.to_owned()) })
    }

    /// The authorities as they are in their file now, if that is not what it was.
    pub(super) fn changed(&self) -> Option<Trust> {
        let Trust::Authorities { pem, from, file: Some(file) } = self else { return None };
        let now = std::fs::read(file).ok().filter(|now| !now.is_empty() && now != pem)?;
        Some(Trust::Authorities { pem: now, from: from.clone(), file: Some(file.clone()) })
    }
}

/// Where half of an identity is.
#[derive(PartialEq, Eq)]
pub(super) enum Pem {
    /// In a file.
    File(PathBuf),
    /// Here.
    Bytes(Vec<u8>),
}

impl Pem {
    fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Pem::File(path) => std::fs::read(path).map_err(|e| format!("{}: {e}", path.display())),
            Pem::Bytes(bytes) => Ok(bytes.clone()),
        }
    }
}

/// The certificate that is shown to the server: none, one in files or in the kubeconfig, or the one that a plugin handed
/// out last.
#[derive(Default)]
pub(super) struct Identity {
    source: Option<(Pem, Pem)>,
    current: RwLock<Current>,
}

#[derive(Default)]
struct Current {
    key: Option<Arc<CertifiedKey>>,
    /// The PEM bytes of which it was made.
    pem: (Vec<u8>, Vec<u8>),
}

impl Identity {
    /// Fails if certificate or key are of no use.
    pub(super) fn new(certificate: Pem, key: Pem) -> Result<Identity, String> {
        let pem = (certificate.read()?, key.read()?);
        let current = Current { key: Some(certified(&pem.0, &pem.1)?), pem };
        Ok(Identity { source: Some((certificate, key)), current: RwLock::new(current) })
    }

    /// Shows this from the next handshake on, or nothing. True: it is another one than before.
    pub(super) fn replace(&self, pem: Option<(Vec<u8>, Vec<u8>)>) -> Result<bool, String> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let pem = pem.unwrap_or_default();
        if current.pem == pem {
            return Ok(false);
        }
        let key = if pem.0.is_empty() { None } else { Some(certified(&pem.0, &pem.1)?) };
        *current = Current { key, pem };
        Ok(true)
    }

    /// Reads the files anew, if there are any. True: they have changed. Some KB for every request, of which there is one in
    /// minutes.
    pub(super) fn refresh(&self) -> bool {
        let Some((certificate, key)) = &self.source else { return false };
        if !matches!((certificate, key), (Pem::File(_), _) | (_, Pem::File(_))) {
            return false;
        }
        let read = certificate.read().and_then(|certificate| Ok((certificate, key.read()?)));
        let replaced =
            read.and_then(|pem| if pem.0.is_empty() { Err("empty".into()) } else { self.replace(Some(pem)) });
        replaced.unwrap_or_else(|error| {
            tracing::debug!(error, "client certificate not read anew; the last one stays in use");
            false
        })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).key.clone()
    }

    fn has_certs(&self) -> bool {
        self.current.read().unwrap_or_else(PoisonError::into_inner).key.is_some()
    }
}

fn certified(certificate: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|e| format!("client-certificate: {e}"))?;
    if chain.is_empty() {
        return Err("client-certificate: it holds no certificate".into());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("client-key: {e}"))?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    certified.map(Arc::new).map_err(|e| format!("client-certificate and client-key: {e}"))
}

/// The configuration of every connection.
pub(super) fn config(trust: &Trust, identity: Arc<Identity>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = match trust {
        Trust::Anything => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerifier::new(&provider)))
        }
        Trust::System => builder.with_root_certificates(system_roots()),
        Trust::Authorities { pem, from, .. } => builder.with_root_certificates(roots(pem, from)?),
    };
    let mut config = builder.with_client_cert_resolver(identity);
    // A resumed session goes on with the certificate of the one before, rotated or not. client-go has none either.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn roots(pem: &[u8], from: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let added =
            certificate.map_err(|e| e.to_string()).and_then(|c| roots.add(c).map_err(|e| e.to_string()));
        added.map_err(|e| format!("{from}: {e}"))?;
    }
    if roots.is_empty() {
        return Err(format!("{from}: it holds no certificate"));
    }
    Ok(roots)
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // A system certificate that cannot be parsed is skipped: if the server needs it, the handshake fails and names the cause.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Accepts any server certificate, as long as the server holds its key.
#[derive(Debug)]
struct NoVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl NoVerifier {
    fn new(provider: &CryptoProvider) -> NoVerifier {
        NoVerifier { algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for NoVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
