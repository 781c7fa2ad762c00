//! The proxy that connections to the API server go through.
//!
//! In: `proxy-url` of a kubeconfig, or the environment, interpreted as Go's `httpproxy` does: `HTTPS_PROXY` or
//! `HTTP_PROXY` by the scheme of the server, and `NO_PROXY` with host names, their suffixes, addresses and CIDRs. Out:
//! a [`Proxy`], or none. Connections are tunnelled, with `CONNECT` or SOCKS5, so the proxy does not handle the requests
//! themselves.

use http::Uri;
use rustls::pki_types::ServerName;
use std::net::IpAddr;

/// A proxy's address and credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    /// Scheme, host and port.
    pub(super) uri: Uri,
    /// User and password.
    pub(super) credential: Option<(String, String)>,
}

impl Proxy {
    /// From a URL with scheme http, https or socks5, perhaps with a user and a password.
    pub(super) fn parse(url: &str) -> Result<Proxy, String> {
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        // The URL may contain a password, so it is not quoted.
        let uri: Uri = full.parse().map_err(|_| "it is not a URL such as http://proxy:3128".to_owned())?;
        let (scheme, default_port) = match uri.scheme_str() {
            Some("http") => ("http", 80),
            Some("https") => ("https", 443),
            // The proxy resolves the server's name in either case, as with Go.
            Some("socks5" | "socks5h") => ("socks5", 1080),
            Some(other) => {
                return Err(format!(
                    "a proxy with scheme {other} is not supported: use http, https or socks5"
                ));
            }
            None => return Err("it has no scheme".into()),
        };
        let authority = uri.authority().map(|a| a.as_str()).unwrap_or_default();
        let (user, _) = authority.rsplit_once('@').unwrap_or_default();
        let host = uri.host().filter(|host| !host.is_empty()).ok_or("it has no host")?;
        let credential = match user.split_once(':').unwrap_or((user, "")) {
            ("", _) => None,
            (user, password) => Some((decoded(user), decoded(password))),
        };
        let uri = format!("{scheme}://{host}:{}/", uri.port_u16().unwrap_or(default_port));
        Ok(Proxy { uri: uri.parse().map_err(|_| "it is not a URL")?, credential })
    }

    /// The proxy that the environment configures for a server.
    pub(super) fn from_environment(
        server: &Uri,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Proxy>, String> {
        let either = |upper: &str| {
            let value = variable(upper).filter(|v| !v.is_empty());
            value.or_else(|| variable(&upper.to_lowercase())).unwrap_or_default()
        };
        let (name, port) = match server.scheme_str() {
            Some("https") => ("HTTPS_PROXY", 443),
            _ => ("HTTP_PROXY", 80),
        };
        let url = either(name);
        let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_lowercase();
        if url.is_empty() || !applies(&host, server.port_u16().unwrap_or(port), &either("NO_PROXY")) {
            return Ok(None);
        }
        Proxy::parse(&url).map(Some).map_err(|reason| format!("{name}: {reason}"))
    }

    /// Whether its protocol is SOCKS5.
    pub(super) fn is_socks(&self) -> bool {
        self.uri.scheme_str() == Some("socks5")
    }

    /// The name to expect in the proxy's certificate.
    pub(super) fn server_name(&self) -> Option<ServerName<'static>> {
        ServerName::try_from(self.uri.host()?.trim_matches(['[', ']']).to_owned()).ok()
    }
}

/// Whether the proxy of the environment is used for a host. `exceptions` is the value of `NO_PROXY`.
fn applies(host: &str, port: u16, exceptions: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|a| a.is_loopback()) {
        return false;
    }
    !exceptions.split(',').map(|e| e.trim().to_lowercase()).any(|e| matches_entry(&e, host, address, port))
}

/// Whether an entry of `NO_PROXY` matches a host.
fn matches_entry(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry.is_empty() || entry == "*" {
        return entry == "*";
    }
    if let Some((network, length)) = entry.split_once('/')
        && let (Ok(network), Ok(length)) = (network.parse(), length.parse())
    {
        return address.is_some_and(|address| contains(network, length, address));
    }
    let (name, entry_port) = split_port(entry);
    if entry_port.is_some_and(|entry_port| entry_port != port) {
        return false;
    }
    if let Ok(excepted) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
        return address == Some(excepted);
    }
    // `example.com` matches the host and its subdomains; `.example.com` and `*.example.com` only subdomains.
    let suffix = name.strip_prefix('*').unwrap_or(name);
    match suffix.strip_prefix('.') {
        Some(_) => host.ends_with(suffix),
        None => host == suffix || host.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.')),
    }
}

/// `host:port`, `[address]:port`, or either without a port.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    }
}

fn contains(network: IpAddr, length: u32, address: IpAddr) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let ((network, size), (address, address_size)) = (bits(network), bits(address));
    let mask = if length == 0 { 0 } else { u128::MAX << (128 - length.min(128)) };
    size == address_size && length <= size && network & mask == address & mask
}

/// Decodes percent encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match hex.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_url_has_a_host_a_port_and_perhaps_a_user() {
        let parsed = |url: &str| Proxy::parse(url).map(|p| (p.uri.to_string(), p.credential.is_some()));
        assert_eq!(parsed("http://p:3128"), Ok(("http://p:3128/".into(), false)));
        assert_eq!(parsed("p:3128"), Ok(("http://p:3128/".into(), false)));
        assert_eq!(parsed("https://p"), Ok(("https://p:443/".into(), false)));
        assert_eq!(parsed("http://[fd00::1]:8080/"), Ok(("http://[fd00::1]:8080/".into(), false)));
        assert_eq!(parsed("http://me:s%40cret@p:1"), Ok(("http://p:1/".into(), true)));
        let proxy = Proxy::parse("http://me:s%40cret@p:1").unwrap();
        assert_eq!(proxy.credential, Some(("me".into(), "s@cret".into())));
        assert_eq!(parsed("socks5://me@p"), Ok(("socks5://p:1080/".into(), true)));
        assert!(parsed("socks4://p:1").unwrap_err().contains("socks4"));
        let secret = parsed("http://me:SECRET @p").unwrap_err();
        assert!(!secret.contains("SECRET"), "{secret}");
    }

    #[test]
    fn the_environment_has_a_proxy_for_each_scheme() {
        let proxy = |server: &str, variables: &[(&str, &str)]| {
            let variable =
                |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            let found = Proxy::from_environment(&server.parse().unwrap(), variable).unwrap();
            found.map(|proxy| proxy.uri.to_string())
        };
        let both = [("HTTPS_PROXY", "http://s:1"), ("http_proxy", "http://h:2")];
        assert_eq!(proxy("https://api:6443", &both).as_deref(), Some("http://s:1/"));
        assert_eq!(proxy("http://api:8080", &both).as_deref(), Some("http://h:2/"));
        assert_eq!(proxy("https://api:6443", &both[1..]), None);
        assert_eq!(proxy("https://localhost:6443", &both), None);
        assert_eq!(proxy("https://127.0.0.9", &both), None);
        assert_eq!(proxy("https://[::1]:6443", &both), None);
        let with_exceptions = [both[0], ("NO_PROXY", "example.com,10.0.0.0/8")];
        assert_eq!(proxy("https://10.1.2.3:6443", &with_exceptions), None);
        assert_eq!(proxy("https://api.example.com", &with_exceptions), None);
        assert_eq!(proxy("https://11.1.2.3:6443", &with_exceptions).as_deref(), Some("http://s:1/"));
    }

    #[test]
    fn no_proxy_is_interpreted_as_in_go() {
        for (entry, host, port, excepted) in [
            ("*", "a.b", 443, true),
            ("", "a.b", 443, false),
            ("example.com", "example.com", 443, true),
            ("example.com", "api.example.com", 443, true),
            ("example.com", "notexample.com", 443, false),
            (".example.com", "example.com", 443, false),
            (".example.com", "api.example.com", 443, true),
            ("*.example.com", "api.example.com", 443, true),
            ("*.example.com", "example.com", 443, false),
            ("EXAMPLE.com ", "example.com", 443, true),
            ("example.com:6443", "example.com", 6443, true),
            ("example.com:6443", "example.com", 443, false),
            ("10.0.0.1", "10.0.0.1", 443, true),
            ("10.0.0.1", "10.0.0.2", 443, false),
            ("10.0.0.1:6443", "10.0.0.1", 443, false),
            ("10.0.0.0/30", "10.0.0.3", 443, true),
            ("10.0.0.0/30", "10.0.0.4", 443, false),
            ("0.0.0.0/0", "10.0.0.4", 443, true),
            ("10.0.0.0/8", "fd00::1", 443, false),
            ("fd00::/8", "fd12::1", 443, true),
            ("fd00::1", "fd00::1", 443, true),
            ("[fd00::1]:6443", "fd00::1", 6443, true),
            ("a, b.c ,d", "b.c", 443, true),
        ] {
            assert_eq!(!applies(host, port, entry), excepted, "{entry:?} and {host}:{port}");
        }
    }
}
