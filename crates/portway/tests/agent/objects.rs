//! Manifests as YAML text, because tests of error messages need its lines. Objects as values are in
//! `portway_testkit::objects`.

use std::net::IpAddr;

/// The creation time of Services.
pub(crate) const CREATED: &str = "2024-01-02T03:04:05Z";

/// A Service with TCP port 80. `spec` has further fields of its spec, not indented.
pub(crate) fn service(name: &str, ip: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: default\n  creationTimestamp: '{CREATED}'\n\
         spec:\n  clusterIP: {ip}\n  ports:\n  - port: 80\n    protocol: TCP\n{}\n",
        indented(spec)
    )
}

/// An EndpointSlice of a Service with these addresses, on node `node1`.
pub(crate) fn slice(service: &str, name: &str, addresses: &[IpAddr]) -> String {
    let family = if addresses.iter().any(IpAddr::is_ipv6) { "IPv6" } else { "IPv4" };
    let endpoints: String =
        addresses.iter().map(|ip| format!("- addresses: ['{ip}']\n  nodeName: node1\n")).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}\n  namespace: default\n  \
         labels: {{kubernetes.io/service-name: {service}}}\naddressType: {family}\nports:\n- {{name: '', port: 8080, \
         protocol: TCP}}\n- {{name: udp, port: 8080, protocol: UDP}}\nendpoints:\n{endpoints}"
    )
}

/// The Node `node1`. `spec` has the fields of its spec, not indented.
pub(crate) fn node(addresses: &[IpAddr], spec: &str) -> String {
    let addresses: String =
        addresses.iter().map(|ip| format!("  - {{type: InternalIP, address: '{ip}'}}\n")).collect();
    let spec = indented(spec);
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: node1\nspec:\n{spec}\nstatus:\n  addresses:\n{addresses}"
    )
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
