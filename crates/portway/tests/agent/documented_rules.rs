//! Rules of kube-proxy as published documents print them (`iptables-save`, `iptables -L`), for the same Services.

use crate::agent_lab::{AgentLab, wait_timeout};
use crate::tool::{Legacy, Nft, Variant};
use crate::{Outcome, Test, ensure};
use portway_lab::eventually;

pub(crate) const TESTS: &[Test] = &[
    ("documented_rules_are_programmed_nf_tables", |lab| documented(lab, Nft)),
    ("documented_rules_are_programmed_legacy", |lab| documented(lab, Legacy)),
];

/// Name, cluster IP, ports (name, protocol, port, target port), endpoints.
pub(crate) type Service<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str, u16, u16)], &'a [&'a str]);

const SERVICES: &[Service<'_>] = &[
    ("default/kubernetes", "10.96.0.1", &[("https", "TCP", 443, 6443)], &["192.168.50.11"]),
    (
        "kube-system/kube-dns",
        "10.96.0.10",
        &[("dns", "UDP", 53, 53), ("dns-tcp", "TCP", 53, 53), ("metrics", "TCP", 9153, 9153)],
        &["10.244.0.2", "10.244.0.3"],
    ),
    (
        "default/nginx",
        "10.109.134.113",
        &[("", "TCP", 8080, 80)],
        &["172.17.0.3", "172.17.0.4", "172.17.0.5"],
    ),
    ("default/nginx-pod08", "10.96.125.237", &[("", "TCP", 8080, 80)], &["10.100.85.246", "10.100.85.253"]),
];

/// Lines of `iptables-save`.
const SAVED: &[&str] = &[
    r#"-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES"#,
    r#"-A KUBE-SERVICES -d 10.96.125.237/32 -p tcp -m comment --comment "default/nginx-pod08 cluster IP" -m tcp --dport 8080 -j KUBE-SVC-DDZHMK5AO3JF6KIZ"#,
    r#"-A KUBE-SVC-DDZHMK5AO3JF6KIZ -m comment --comment "default/nginx-pod08" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-ATSP76LQOJHSORE7"#,
    r#"-A KUBE-SVC-DDZHMK5AO3JF6KIZ -m comment --comment "default/nginx-pod08" -j KUBE-SEP-FXZXKRS4RXLGILD5"#,
    r#"-A KUBE-SEP-FXZXKRS4RXLGILD5 -s 10.100.85.253/32 -m comment --comment "default/nginx-pod08" -j KUBE-MARK-MASQ"#,
    r#"-A KUBE-SEP-FXZXKRS4RXLGILD5 -p tcp -m comment --comment "default/nginx-pod08" -m tcp -j DNAT --to-destination 10.100.85.253:80"#,
    r#"-A KUBE-SEP-ATSP76LQOJHSORE7 -s 10.100.85.246/32 -m comment --comment "default/nginx-pod08" -j KUBE-MARK-MASQ"#,
    "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
    r#"-A KUBE-SERVICES -d 10.109.134.113/32 -p tcp -m comment --comment "default/nginx cluster IP" -m tcp --dport 8080 -j KUBE-SVC-2CMXP7HKUVJN7L6M"#,
    r#"-A KUBE-SVC-2CMXP7HKUVJN7L6M ! -s 10.244.0.0/16 -d 10.109.134.113/32 -p tcp -m comment --comment "default/nginx cluster IP" -m tcp --dport 8080 -j KUBE-MARK-MASQ"#,
    r#"-A KUBE-SVC-2CMXP7HKUVJN7L6M -m comment --comment "default/nginx" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-C2Y64IBVPH4YIBGX"#,
    r#"-A KUBE-SVC-2CMXP7HKUVJN7L6M -m comment --comment "default/nginx" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-QST3VAMBSCRN7S4W"#,
    r#"-A KUBE-SVC-2CMXP7HKUVJN7L6M -m comment --comment "default/nginx" -j KUBE-SEP-MRYDKJV5U7PLF5ZN"#,
];

/// Lines of `iptables -t nat -L -v` by chain: target, source or destination, and the matches. Ports are numbers.
const LISTED: &[(&str, &[&str])] = &[
    ("OUTPUT", &["KUBE-SERVICES /* kubernetes service portals */"]),
    (
        "KUBE-SERVICES",
        &[
            "KUBE-SVC-NPX46M4PTMTKRN6Y 10.96.0.1 /* default/kubernetes:https cluster IP */ tcp dpt:443",
            "KUBE-SVC-TCOU7JCQXEZGVUNU 10.96.0.10 /* kube-system/kube-dns:dns cluster IP */ udp dpt:53",
            "KUBE-SVC-ERIFXISQEP7F7OF4 10.96.0.10 /* kube-system/kube-dns:dns-tcp cluster IP */ tcp dpt:53",
            "KUBE-SVC-JD5MR3NA4I4DYORP 10.96.0.10 /* kube-system/kube-dns:metrics cluster IP */ tcp dpt:9153",
            "KUBE-SVC-2CMXP7HKUVJN7L6M 10.109.134.113 /* default/nginx cluster IP */ tcp dpt:8080",
            "KUBE-NODEPORTS /* kubernetes service nodeports; NOTE: this must be the last rule in this chain */ ADDRTYPE match dst-type LOCAL",
        ],
    ),
    (
        "KUBE-SVC-2CMXP7HKUVJN7L6M",
        &[
            "KUBE-MARK-MASQ !10.244.0.0/16 10.109.134.113 /* default/nginx cluster IP */ tcp dpt:8080",
            "KUBE-SEP-C2Y64IBVPH4YIBGX /* default/nginx */ statistic mode random probability 0.33333333349",
            "KUBE-SEP-QST3VAMBSCRN7S4W /* default/nginx */ statistic mode random probability 0.50000000000",
            "KUBE-SEP-MRYDKJV5U7PLF5ZN /* default/nginx */",
        ],
    ),
    (
        "KUBE-SEP-C2Y64IBVPH4YIBGX",
        &["KUBE-MARK-MASQ 172.17.0.3 /* default/nginx */", "DNAT /* default/nginx */ tcp to:172.17.0.3:80"],
    ),
];

/// The manifests of a Service and of its endpoints, which are on this node.
pub(crate) fn manifest((name, ip, ports, endpoints): &Service<'_>) -> String {
    let (namespace, name) = name.split_once('/').unwrap_or_default();
    let mut service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  clusterIP: {ip}\n  ports:\n"
    );
    let mut slice = format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-1\n  namespace: {namespace}\n  \
         labels: {{kubernetes.io/service-name: {name}}}\naddressType: IPv4\nendpoints:\n"
    );
    for endpoint in *endpoints {
        slice += &format!("- {{addresses: [{endpoint}], nodeName: node1}}\n");
    }
    slice += "ports:\n";
    for (port, protocol, number, target) in *ports {
        service +=
            &format!("  - {{name: '{port}', protocol: {protocol}, port: {number}, targetPort: {target}}}\n");
        slice += &format!("- {{name: '{port}', protocol: {protocol}, port: {target}}}\n");
    }
    service + &slice
}

fn documented(lab: &mut AgentLab, variant: Variant) -> Outcome {
    lab.kubelet(variant)?;
    for (i, service) in SERVICES.iter().enumerate() {
        lab.apply(&format!("documented{i}.yaml"), &manifest(service));
    }
    // `web` has the cluster IP of `kubernetes`.
    ["web.yaml", "web-v4.yaml", "web-v6.yaml"].iter().for_each(|file| lab.delete(file));
    lab.start(&["--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16"])?;
    lab.logged(&["synced", "family=\"IPv4\""])?;
    eventually(wait_timeout(), || {
        let saved = lab.save(variant, "iptables").map_err(|e| format!("{e:?}"))?;
        match SAVED.iter().find(|line| !saved.lines().any(|l| l == **line)) {
            Some(line) => Err(format!("not found: {line}\n{saved}")),
            None => Ok(()),
        }
    })?;
    for (chain, lines) in LISTED {
        let listed = lab.iptables(variant, &["-t", "nat", "-n", "-v", "-L", chain])?;
        for line in *lines {
            let mut words = line.splitn(2, " /*");
            let (head, tail) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let has = |l: &&str| {
                l.trim_end().ends_with(&format!("/*{tail}"))
                    && head.split(' ').all(|w| l.split_whitespace().any(|x| x == w))
            };
            ensure(listed.lines().any(|l| has(&l)), || format!("not found: {line}\n{listed}"))?;
        }
        let last = listed.lines().last().unwrap_or_default();
        let last_is_right = *chain != "KUBE-SERVICES" || last.contains("KUBE-NODEPORTS");
        ensure(last_is_right, || format!("KUBE-NODEPORTS is not the last rule:\n{listed}"))?;
    }
    Ok(())
}
