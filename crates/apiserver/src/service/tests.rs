//! Services that no person would write.

use super::*;
use crate::codec::{Printed, decode, encode};
use crate::schema;
use proptest::prelude::*;
use serde_json::json;

fn any_spec() -> impl Strategy<Value = Value> {
    let text =
        || prop::sample::select(vec!["", "None", "ClusterIP", "LoadBalancer", "ExternalName", "Local", "x"]);
    let ip = || {
        prop::sample::select(vec!["", "None", "10.96.0.1", "fd96::1", "::ffff:1.2.3.4", "010.1.1.1", "1/2"])
    };
    let family = prop::sample::select(vec!["IPv4", "IPv6", "IPv5", ""]);
    let ports = prop::collection::vec(("[a-c-]{0,2}", any::<i32>(), prop::option::of(text())), 0..3);
    let ips =
        (prop::option::of(ip()), prop::collection::vec(ip(), 0..4), prop::collection::vec(family, 0..3));
    let texts = prop::collection::vec(prop::option::of(text()), 6);
    (ports, ips, texts, any::<i32>()).prop_map(|(ports, (ip, ips, families), texts, number)| {
        let port = |(name, number, target)| json!({"name": name, "port": number, "nodePort": number, "targetPort": target});
        json!({
            "ports": ports.into_iter().map(port).collect::<Vec<_>>(),
            "clusterIP": ip, "clusterIPs": ips, "externalIPs": ips, "loadBalancerSourceRanges": ips,
            "ipFamilies": families, "type": texts[0], "sessionAffinity": texts[1], "externalName": texts[2],
            "externalTrafficPolicy": texts[3], "internalTrafficPolicy": texts[4], "ipFamilyPolicy": texts[5],
            "healthCheckNodePort": number, "selector": {"a": texts[0]},
        })
    })
}

/// Pools that have everything.
struct Any(i64);

impl Pools for Any {
    fn address(&mut self, family: &str, wanted: Option<&str>) -> Result<String, Shortage> {
        let any = if family == "IPv6" { "fd96::7" } else { "10.96.0.7" };
        Ok(wanted.unwrap_or(any).to_owned())
    }

    fn node_port(&mut self, wanted: Option<i64>) -> Result<i64, Shortage> {
        self.0 += 1;
        Ok(wanted.unwrap_or(30_000 + self.0))
    }
}

proptest! {
    /// Whatever a client sends is accepted or refused without a panic.
    #[test]
    fn any_service_is_accepted_or_refused(spec in any_spec()) {
        let ty = schema::find("core", "Service").expect("a type");
        let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
        let bytes = encode(ty, &object).expect("a Service");
        let mut service = decode(ty, &bytes, Printed::default()).expect("a message");
        let cluster = Families(vec!["IPv6", "IPv4"]);
        if decide(&mut service, None, &cluster, &mut Any(0)).is_ok() {
            // Sent once more, it stays as it is.
            let mut again = service.clone();
            prop_assert_eq!(decide(&mut again, Some(&service), &cluster, &mut Any(100)), Ok(()));
            prop_assert_eq!(&again, &service);
        }
    }
}
