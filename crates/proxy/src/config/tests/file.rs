//! Files that are accepted, and the error messages of files that are rejected.

use super::*;
use portway_config::Value;
use proptest::prelude::*;
use std::time::Duration;

fn errors(body: &str) -> Vec<String> {
    let errors = parse("config.yaml", &text(body)).expect_err("must be rejected");
    errors.iter().map(ToString::to_string).collect()
}

fn mistakes(body: &str) -> Vec<String> {
    accept(body).mistakes().iter().map(ToString::to_string).collect()
}

fn accept(body: &str) -> Typed {
    parse("config.yaml", &text(body)).unwrap_or_else(|errors| panic!("rejected: {errors:?}"))
}

fn value(typed: &Typed, path: &str) -> Option<Value> {
    typed.get(path).map(|given| given.value.clone())
}

#[test]
fn every_field_of_upstream_and_of_portway_is_accepted() {
    let typed = accept(include_str!("every_field.yaml"));
    for (path, wanted) in [
        ("bindAddress", Value::Text("10.0.0.1".to_owned())),
        ("clientConnection.qps", Value::Number(7.5)),
        ("conntrack.tcpEstablishedTimeout", Value::Duration(Duration::from_secs(7200))),
        ("logging.flushFrequency", Value::Duration(Duration::from_secs(5))),
        ("userspace.drainTimeout", Value::Duration(Duration::ZERO)),
        ("userspace.maxUDPSessions", Value::Integer(4096)),
        ("winkernel.enableDSR", Value::Bool(true)),
    ] {
        assert_eq!(value(&typed, path), Some(wanted), "{path}");
    }
    let levels = typed.get("logging.vmodule").expect("given");
    assert_eq!(levels.items()[0].value, Value::Named("proxier*".to_owned(), Value::Integer(4).into()));
    assert_eq!(typed.get("nodePortAddresses").expect("given").texts().count(), 2);
    for setting in table().settings().iter().filter(|setting| setting.in_file()) {
        assert!(typed.has(setting.path), "the sample does not set {}", setting.path);
    }
}

#[test]
fn the_file_that_kubeadm_writes_is_accepted() {
    let typed = accept(include_str!("kubeadm.yaml"));
    assert_eq!(value(&typed, "clusterCIDR"), Some(Value::Text("10.244.0.0/16".to_owned())));
    assert_eq!(value(&typed, "oomScoreAdj"), None);
    assert_eq!(value(&typed, "mode"), Some(Value::Text(String::new())));
}

#[test]
fn json_is_read_too() {
    let text = format!(
        "{{\"apiVersion\": {API_VERSION:?}, \"kind\": {KIND:?},\n \"nftables\": {{\"masqueradeAll\": true}}}}"
    );
    let config = parse("config.json", &text).expect("parses");
    let all = config.get("nftables.masqueradeAll").expect("given");
    assert_eq!(all.value, Value::Bool(true));
    assert_eq!(all.origin, Origin::File { name: "config.json".into(), line: 2 });
}

#[test]
fn an_unknown_field_names_its_line_and_the_nearest_field() {
    assert_eq!(
        mistakes("nftables:\n  masqueradBit: 14\n"),
        [r#"config.yaml:4: nftables.masqueradBit: unknown field, did you mean "masqueradeBit"?"#]
    );
    assert_eq!(
        mistakes("clusterCidrs: x\n"),
        [r#"config.yaml:3: clusterCidrs: unknown field, did you mean "clusterCIDR"?"#]
    );
    assert_eq!(
        mistakes("userspace:\n  maxUdpSession: 5\n"),
        [r#"config.yaml:4: userspace.maxUdpSession: unknown field, did you mean "maxUDPSessions"?"#]
    );
    assert_eq!(mistakes("banana: 1\n"), ["config.yaml:3: banana: unknown field"]);
    assert_eq!(
        mistakes("logging:\n  options:\n    json:\n      splitstream: true\n"),
        [r#"config.yaml:6: logging.options.json.splitstream: unknown field, did you mean "splitStream"?"#]
    );
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_lines() {
    let body = "\
mode: nftables
portRange: ''
nftables:
  masqueradeAll: 'yes'
  syncPeriod: 30
  minSyncPeriod: 30
  masqueradeBit: 1
nodePortAddresses: 10.0.0.0/8
oomScoreAdj: none
conntrack:
  udpTimeout: 1 minute
featureGates:
  A: 1
iptables: []
userspace:
  connectAttempts: some
  drainTimeout: 10
  udpIdleTimeout: -1s
";
    assert_eq!(
        errors(body),
        [
            "config.yaml:6: nftables.masqueradeAll: should be true or false, but is text",
            "config.yaml:7: nftables.syncPeriod: should be a duration in quotes or letters, such as 30s, but is a whole number",
            "config.yaml:8: nftables.minSyncPeriod: should be a duration in quotes or letters, such as 30s, but is a whole number",
            "config.yaml:10: nodePortAddresses: should be a list, but is text",
            "config.yaml:11: oomScoreAdj: should be a whole number, but is text",
            "config.yaml:13: conntrack.udpTimeout: \"1 minute\" is not a duration such as 30s, 1m30s or 250ms",
            "config.yaml:15: featureGates.A: should be true or false, but is a whole number",
            "config.yaml:16: iptables: should be a section of fields, but is a list",
            "config.yaml:18: userspace.connectAttempts: should be a whole number, but is text",
            "config.yaml:19: userspace.drainTimeout: should be a duration in quotes or letters, such as 30s, but is a whole number",
            "config.yaml:20: userspace.udpIdleTimeout: \"-1s\" must not be negative",
        ]
    );
}

#[test]
fn of_a_field_that_is_set_twice_the_last_value_applies() {
    let body =
        "mode: nftables\noomScoreAdj: 5\nmode: iptables\nfeatureGates: {AllBeta: true, AllBeta: false}\n";
    assert_eq!(
        mistakes(body),
        [
            "config.yaml:5: mode: is set twice, first on line 3; the last value applies",
            "config.yaml:6: featureGates.AllBeta: is set twice, first on line 6; the last value applies",
        ]
    );
    let file = accept(body);
    assert_eq!(value(&file, "mode"), Some(Value::Text("iptables".to_owned())));
    assert_eq!(file.get("featureGates").expect("given").items().len(), 1);
}

#[test]
fn a_document_of_another_kind_is_refused() {
    let refuse = |text: &str| -> Vec<String> {
        parse("c", text).expect_err("must be rejected").iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        refuse("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"),
        [
            r#"c:1: apiVersion: "kubelet.config.k8s.io/v1beta1" must be "kubeproxy.config.k8s.io/v1alpha1""#,
            r#"c:2: kind: "KubeletConfiguration" must be "KubeProxyConfiguration""#,
        ]
    );
    assert_eq!(
        refuse(""),
        [
            "c:1: apiVersion: is missing, it must be kubeproxy.config.k8s.io/v1alpha1",
            "c:1: kind: is missing, it must be KubeProxyConfiguration",
        ]
    );
    assert!(
        refuse("- a\n- b\n")
            .iter()
            .any(|error| error.contains("should be a section of fields, but is a list"))
    );
}

#[test]
fn malformed_yaml_is_rejected() {
    let found = errors("nftables: [1\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("config.yaml:") && found[0].contains("cannot be read"), "{found:?}");
    // Two documents in one file would leave one of them unread.
    assert!(errors("---\na: b\n")[0].contains("cannot be read"));
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = parse("c", &text);
    }

    #[test]
    fn no_body_after_the_head_panics(body in "([a-zA-Z]{1,12}|[-:{}\\[\\],&*!|>'\"%@ \n\t0-9]){0,60}") {
        let _ = parse("c", &text(&body));
    }
}
