//! Tests of `flags`.

use super::*;
use portway_config::{Value, normalize_args};
use std::ffi::OsString;
use std::time::Duration;

fn flags(args: &[&str]) -> ProxyFlags {
    let args = std::iter::once("kube-proxy").chain(args.iter().copied()).map(OsString::from);
    ProxyFlags::try_parse_from(normalize_args(args)).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(args: &[&str]) -> String {
    let args = std::iter::once("kube-proxy").chain(args.iter().copied());
    ProxyFlags::try_parse_from(args).expect_err("must be rejected").to_string()
}

/// The value that a command line gives to a setting.
fn value(args: &[&str], path: &str) -> Option<Value> {
    flags(args).settings.get(path).map(|given| given.value.clone())
}

fn text(text: &str) -> Option<Value> {
    Some(Value::Text(text.to_owned()))
}

/// The items of a list, printed.
fn items(args: &[&str], path: &str) -> Vec<String> {
    let flags = flags(args);
    flags.settings.get(path).expect("given").items().iter().map(|item| item.value.to_string()).collect()
}

#[test]
fn the_command_is_well_formed() {
    ProxyFlags::command().debug_assert();
}

#[test]
fn switches_take_an_optional_value() {
    let all = "nftables.masqueradeAll";
    assert_eq!(value(&[], all), None);
    for on in ["--masquerade-all", "--masquerade-all=true", "--masquerade-all=1", "--masquerade-all=T"] {
        assert_eq!(value(&[on], all), Some(Value::Bool(true)), "{on}");
    }
    for off in ["--masquerade-all=false", "--masquerade-all=0", "--masquerade-all=False"] {
        assert_eq!(value(&[off], all), Some(Value::Bool(false)), "{off}");
    }
    assert!(refused(&["--masquerade-all=maybe"]).contains("neither true nor false"));
    // pflag reads the word after a boolean flag as an argument, not as its value.
    assert!(ProxyFlags::try_parse_from(["kube-proxy", "--masquerade-all", "false"]).is_err());
    assert_eq!(flags(&["--cleanup", "--init-only=F"]).run.cleanup, Some(true));
    assert_eq!(flags(&["--cleanup", "--init-only=F"]).run.init_only, Some(false));
    assert!(refused(&["--cleanup=yes"]).contains("neither true nor false"));
}

#[test]
fn lists_grow_by_commas_and_by_repetition() {
    let args = ["--nodeport-addresses=10.0.0.0/8,fd00::/8", "--nodeport-addresses", "192.168.0.0/16"];
    assert_eq!(items(&args, "nodePortAddresses"), ["10.0.0.0/8", "fd00::/8", "192.168.0.0/16"]);
    let args = ["--feature-gates=A=true,B=false", "--feature-gates", "C=true"];
    assert_eq!(items(&args, "featureGates"), ["A=true", "B=false", "C=true"]);
    assert_eq!(items(&["--vmodule=proxier=4,health*=5"], "logging.vmodule"), ["proxier=4", "health*=5"]);
}

#[test]
fn an_empty_list_flag_is_an_empty_list() {
    for (flag, path) in [
        ("--feature-gates=", "featureGates"),
        ("--nodeport-addresses=", "nodePortAddresses"),
        ("--ipvs-exclude-cidrs=", "ipvs.excludeCIDRs"),
        ("--vmodule=", "logging.vmodule"),
    ] {
        assert_eq!(items(&[flag], path), [""; 0], "{flag}");
    }
    assert_eq!(items(&["--feature-gates=A=true,,B=false,"], "featureGates"), ["A=true", "B=false"]);
    assert_eq!(items(&["--nodeport-addresses=10.0.0.0/8,"], "nodePortAddresses"), ["10.0.0.0/8", ""]);
}

#[test]
fn the_last_of_several_values_applies() {
    assert_eq!(value(&["--v=2", "--v=4"], "logging.verbosity"), Some(Value::Integer(4)));
    assert_eq!(value(&["--cluster-cidr=a", "--cluster-cidr=b,c"], "clusterCIDR"), text("b,c"));
}

#[test]
fn flag_values_have_pflag_syntax() {
    for args in [&["-v=4"][..], &["-v", "4"], &["--v", "4"], &["-v4"]] {
        assert_eq!(value(args, "logging.verbosity"), Some(Value::Integer(4)), "{args:?}");
    }
    for args in [&["--oom-score-adj", "-998"][..], &["--oom-score-adj=-998"]] {
        assert_eq!(value(args, "oomScoreAdj"), Some(Value::Integer(-998)));
    }
    let period = value(&["--iptables-sync-period=1m30s"], "iptables.syncPeriod");
    assert_eq!(period, Some(Value::Duration(Duration::from_secs(90))));
    assert!(refused(&["--iptables-sync-period=30"]).contains("lacks a unit"));
    assert_eq!(value(&["--metrics-bind-address="], "metricsBindAddress"), text(""));
}

#[test]
fn version_prints_or_runs() {
    for (args, meaning) in [
        ("--version", VersionFlag::Print),
        ("--version=1", VersionFlag::Print),
        ("--version=raw", VersionFlag::Raw),
        ("--version=false", VersionFlag::Run),
        ("--version=v1.36.0", VersionFlag::Run),
    ] {
        assert_eq!(flags(&[args]).run.version, Some(meaning), "{args}");
    }
    assert!(refused(&["--version=yes"]).contains("neither true nor false"));
}

#[test]
fn flags_without_effect_are_accepted_and_named_with_and_without_a_file() {
    let args = [
        "--boot-id-file=/proc/sys/kernel/random/boot_id",
        "--machine_id_file=/etc/machine-id,/var/lib/dbus/machine-id",
        "--log-text-split-stream",
        "--log-text-info-buffer-size=64Ki",
        "--log-json-split-stream=true",
        "--log-json-info-buffer-size=2M",
    ];
    let file = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    for file in [None, Some(crate::config::parse("test.yaml", file).expect("a file"))] {
        let (config, warnings) = crate::config::merge(&flags(&args), file).expect("a configuration");
        assert_eq!(config, crate::config::merge(&flags(&[]), None).expect("a configuration").0);
        assert_eq!(warnings.ignored_flags, []);
        let names = args.map(|arg| arg.split('=').next().unwrap_or_default().replace('_', "-"));
        assert_eq!(warnings.unused, names);
    }
}

#[test]
fn underscores_are_dashes_in_names_only() {
    assert_eq!(value(&["--cluster_cidr=a_b"], "clusterCIDR"), text("a_b"));
    assert_eq!(value(&["--hostname_override", "a__b"], "hostnameOverride"), text("a__b"));
    let kept: Vec<OsString> = ["x_y", "--a-b", "-c_d", "--", "--e_f"].map(Into::into).to_vec();
    let args = ["x_y", "--a_b", "-c_d", "--", "--e_f"].map(OsString::from);
    assert_eq!(normalize_args(args), kept);
}

#[test]
fn a_misspelt_flag_suggests_the_right_one() {
    assert!(refused(&["--cluster-cdir=x"]).contains("--cluster-cidr"));
}

#[test]
fn the_help_has_its_headings_and_a_text_for_each_flag() {
    let help = ProxyFlags::command().render_long_help().to_string();
    for heading in [
        "Configuration:",
        "Kubernetes API:",
        "Proxy:",
        "Mode nftables:",
        "Mode userspace:",
        "Connection tracking:",
        "Examples:",
    ] {
        assert!(help.contains(heading), "{heading}");
    }
    for arg in ProxyFlags::command().get_arguments().filter(|arg| !arg.is_hide_set()) {
        let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(text.len() > 10, "{} has no help", arg.get_id());
    }
}

#[test]
fn every_field_of_a_mode_section_has_a_flag() {
    for setting in table().settings().iter().filter(|setting| {
        ["nftables.", "ipvs.", "userspace."].iter().any(|section| setting.path.starts_with(section))
    }) {
        assert!(setting.flag_name().is_some(), "{}", setting.path);
    }
}
