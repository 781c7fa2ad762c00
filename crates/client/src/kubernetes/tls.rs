//! TLS towards the API server: the certificate authorities that are trusted, and the client certificate that is sent.
//!
//! In: [`Trust`] and an [`Identity`]. Out: a rustls configuration. Authorities and a client certificate in files are
//! read again before every request, because the kubelet and cert-manager rotate them in place. If a file cannot be
//! used, its last valid content stays in use.

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

/// The certificate authorities that are trusted to sign the server's certificate.
pub(super) enum Trust {
    /// The authorities of the system.
    System,
    /// These authorities.
    Authorities {
        /// Their certificates in PEM.
        pem: Vec<u8>,
        /// Where they are configured, for messages.
        from: String,
        /// The file that has them, if they are in a file.
        file: Option<PathBuf>,
    },
    /// Any certificate is accepted: `insecure-skip-tls-verify`.
    Insecure,
}

impl Trust {
    /// The authorities in a file.
    pub(super) fn file(path: &Path, from: String) -> std::io::Result<Trust> {
        Ok(Trust::Authorities { pem: std::fs::read(path)?, from, file: Some(path.to_owned()) })
    }

    /// The authorities from a new reading of their file, if it has changed.
    pub(super) fn changed(&self) -> Option<Trust> {
        let Trust::Authorities { pem, from, file: Some(file) } = self else { return None };
        let now = std::fs::read(file).ok().filter(|now| !now.is_empty() && now != pem)?;
        Some(Trust::Authorities { pem: now, from: from.clone(), file: Some(file.clone()) })
    }
}

/// A certificate or key in PEM.
#[derive(PartialEq, Eq)]
pub(super) enum Pem {
    /// In a file.
    File(PathBuf),
    /// In the kubeconfig.
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

/// The client certificate: none, one in files or in the kubeconfig, or the one that a plugin issued last.
#[derive(Default)]
pub(super) struct Identity {
    source: Option<(Pem, Pem)>,
    current: RwLock<Current>,
}

#[derive(Default)]
struct Current {
    key: Option<Arc<CertifiedKey>>,
    /// Certificate and key in PEM, to detect changes.
    pem: (Vec<u8>, Vec<u8>),
}

impl Identity {
    /// Fails if the certificate or the key cannot be used.
    pub(super) fn new(certificate: Pem, key: Pem) -> Result<Identity, String> {
        let pem = (certificate.read()?, key.read()?);
        let current = Current { key: Some(certified(&pem.0, &pem.1)?), pem };
        Ok(Identity { source: Some((certificate, key)), current: RwLock::new(current) })
    }

    /// Replaces the client certificate for later handshakes; `None` removes it. Returns whether it has changed.
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

    /// Reads the files again, if there are any, and returns whether they have changed. That is a few KB per request,
    /// and requests are minutes apart.
    pub(super) fn refresh(&self) -> bool {
        let Some((certificate, key)) = &self.source else { return false };
        if !matches!((certificate, key), (Pem::File(_), _) | (_, Pem::File(_))) {
            return false;
        }
        let read = certificate.read().and_then(|certificate| Ok((certificate, key.read()?)));
        let replaced = read.and_then(|pem| {
            if pem.0.is_empty() {
                Err("the certificate file is empty".into())
            } else {
                self.replace(Some(pem))
            }
        });
        replaced.unwrap_or_else(|error| {
            tracing::debug!(error, "cannot read the client certificate; using the previous one");
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
        return Err("client-certificate: no certificate found".into());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("client-key: {e}"))?;
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    certified.map(Arc::new).map_err(|e| format!("client-certificate and client-key: {e}"))
}

/// The TLS configuration of all connections.
pub(super) fn config(trust: &Trust, identity: Arc<Identity>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = match trust {
        Trust::Insecure => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerifier::new(&provider)))
        }
        Trust::System => builder.with_root_certificates(system_roots()),
        Trust::Authorities { pem, from, .. } => builder.with_root_certificates(roots(pem, from)?),
    };
    let mut config = builder.with_client_cert_resolver(identity);
    // A resumed session would use the client certificate of the previous session even after a rotation. client-go does
    // not resume sessions either.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// As Go does, skips certificates that cannot be used, as long as one can.
fn roots(pem: &[u8], from: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let mut unusable = None;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let added =
            certificate.map_err(|e| e.to_string()).and_then(|c| roots.add(c).map_err(|e| e.to_string()));
        unusable = unusable.or(added.err());
    }
    match unusable {
        _ if roots.is_empty() => {
            Err(format!("{from}: {}", unusable.unwrap_or_else(|| "no certificate found".into())))
        }
        Some(error) => {
            tracing::warn!(error, from, "skipped a certificate authority that cannot be used");
            Ok(roots)
        }
        None => Ok(roots),
    }
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // A system certificate that cannot be parsed is skipped. If the server needs it, the handshake fails with the
    // cause.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Accepts any server certificate, as long as the server has its key.
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
