//! The configuration file and the command line (docs/semantics.md, section 9).

use crate::agent_lab::{AgentLab, PORTWAY, patience};
use crate::{Outcome, Test, ensure, objects};
use libtest_mimic::Failed;
use portway_lab::{Probe, eventually};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

pub(crate) const TESTS: &[Test] = &[
    ("an_invalid_file_ends_the_process_with_all_errors", mistakes),
    ("an_invalid_flag_ends_the_process_with_an_error", wrong_flag),
    ("flags_ignored_because_of_a_file_are_logged", ignored_flags),
    ("a_changed_file_is_applied_while_running", live),
    ("a_changed_file_is_applied_while_manifests_keep_changing", live_while_busy),
    ("an_invalid_change_of_the_file_keeps_the_old_configuration", broken_change),
    ("changes_that_need_a_restart_are_logged_and_not_applied", needs_restart),
    ("write_config_to_writes_a_file_that_can_be_read_again", round_trip),
    ("version", version),
    ("init_only_sets_sysctls_and_programs_no_rules", init_only),
    ("the_binary_called_kube_proxy_takes_its_flags", kube_proxy),
];

const HEADER: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// Fields that come after the two lines of the header, and the line and words of each mistake in them.
type Mistakes = (&'static str, &'static [(u64, &'static str)]);

/// All errors of a file at once, with their lines. Which values are errors is proven by the unit tests of the configuration.
const MISTAKES: &[Mistakes] = &[
    (
        "bindAddress: here\nconntrack:\n  min: [1]\n  maxPerCores: 3\n",
        // Values are checked once every field can be read.
        &[
            (5, "conntrack.min: should be a whole number, but is a list"),
            (6, "conntrack.maxPerCores: unknown field, did you mean \"maxPerCore\"?"),
        ],
    ),
    (
        "bindAddress: here\nclusterCIDR: 10.0.0.0/33\n",
        &[(3, "bindAddress: \"here\""), (4, "clusterCIDR: \"10.0.0.0/33\"")],
    ),
    ("conntrack: [\n", &[(0, "cannot be read")]),
];

fn mistakes(world: &mut AgentLab) -> Outcome {
    let file = world.path("config.yaml").display().to_string();
    for (fields, told) in MISTAKES {
        world.write("config.yaml", &format!("{HEADER}{fields}"));
        let output = proxy(world, &[&format!("--config={file}")])?;
        let said = stderr(&output);
        ensure(output.status.code() == Some(1), || format!("{fields}{}: {said}", output.status))?;
        let count = format!("{} mistake(s)", told.len());
        ensure(said.contains(&count), || format!("not {count}:\n{said}"))?;
        for (line, words) in *told {
            let place = if *line > 0 { format!("{file}:{line}: {words}") } else { (*words).to_owned() };
            ensure(said.contains(&place), || format!("not said: {place}\nbut:\n{said}"))?;
        }
    }
    let output = proxy(world, &["--config=/nowhere/config.yaml"])?;
    let said = stderr(&output);
    ensure(output.status.code() == Some(1) && said.contains("/nowhere/config.yaml"), || said.clone())
}

fn wrong_flag(world: &mut AgentLab) -> Outcome {
    for (flag, words) in [
        ("--masquerade-al", &["--masquerade-al", "--masquerade-all"][..]),
        ("--cluster-cidr=10.0.0.0/40", &["--cluster-cidr", "10.0.0.0/40"]),
    ] {
        let output = proxy(world, &[flag])?;
        let said = stderr(&output);
        ensure(!output.status.success(), || format!("{flag} was accepted"))?;
        ensure(words.iter().all(|word| said.contains(word)), || format!("{flag}: not {words:?}:\n{said}"))?;
    }
    Ok(())
}

fn ignored_flags(world: &mut AgentLab) -> Outcome {
    world.write("config.yaml", &format!("{HEADER}oomScoreAdj: 5\n"));
    let config = format!("--config={}", world.path("config.yaml").display());
    world.start(&[&config, "--cluster-cidr=10.244.0.0/16", "--masquerade-all"])?;
    for (flag, field) in [("--cluster-cidr", "clusterCIDR"), ("--masquerade-all", "nftables.masqueradeAll")] {
        world.logged(&["WARN", flag, "has no effect beside --config", field])?;
    }
    world.web_works()?;
    let log = world.agent()?.log().clone();
    let heard = ["--hostname-override", "--manifests", "--v"];
    let complaint = |flag: &&str| log.contains(&format!("{flag} has no effect"));
    ensure(!heard.iter().any(complaint), || "flags that are heard were said not to be".to_owned())?;
    let config = world.status("/configz")?.json()?;
    ensure(config["kubeproxy.config.k8s.io"]["clusterCIDR"] == "", || config.to_string())
}

/// Waits until the pods see other, or the same, addresses for a pod's traffic to a cluster IP.
fn sources(world: &AgentLab, masqueraded: bool) -> Outcome {
    let own = world.pod_ips("pod1a");
    let attempt = || {
        let outcome = Probe::tcp(world.pod("pod1a"), "10.96.0.1:80".parse().map_err(|e| format!("{e}"))?)
            .count(8)
            .run();
        // To itself a pod is masqueraded anyhow.
        let others = outcome.answers.get("pod1b").map(|a| a.sources.clone()).unwrap_or_default();
        let kept = |ip: &IpAddr| own.contains(ip);
        let right = if masqueraded { !others.iter().any(kept) } else { others.iter().all(kept) };
        if outcome.all_answered() && !others.is_empty() && right { Ok(()) } else { Err(outcome.to_string()) }
    };
    eventually(patience(), attempt)?;
    Ok(())
}

fn live(world: &mut AgentLab) -> Outcome {
    let cidrs = "clusterCIDR: 10.244.0.0/16,fd10:244::/32\n";
    world.write("config.yaml", &format!("{HEADER}{cidrs}"));
    let config = format!("--config={}", world.path("config.yaml").display());
    world.start(&[&config])?;
    world.web_works()?;
    sources(world, false)?;
    world.write("config.yaml", &format!("{HEADER}{cidrs}nftables: {{masqueradeAll: true}}\n"));
    world.logged(&["configuration applied", "nftables.masqueradeAll"])?;
    sources(world, true)?;
    let config = world.status("/configz")?.json()?;
    let shown = &config["kubeproxy.config.k8s.io"]["nftables"]["masqueradeAll"];
    ensure(*shown == true, || format!("/configz says {shown}"))
}

fn live_while_busy(world: &mut AgentLab) -> Outcome {
    world.write("config.yaml", HEADER);
    let config = format!("--config={}", world.path("config.yaml").display());
    world.start(&[&config])?;
    world.web_works()?;
    world.write("config.yaml", &format!("{HEADER}nftables: {{masqueradeAll: true}}\n"));
    let pods = ["pod1a", "pod1b"].map(|pod| world.pod_ips(pod)[0]);
    let mut turn = 0;
    eventually(patience(), || {
        turn += 1;
        world.apply("web-v4.yaml", &objects::slice("web", "web-v4", &pods[..1 + turn % 2]));
        let applied = world.agent().is_ok_and(|agent| agent.log().contains("configuration applied"));
        if applied { Ok(()) } else { Err("a changed file is not seen while manifests change") }
    })?;
    Ok(())
}

fn broken_change(world: &mut AgentLab) -> Outcome {
    let good = format!("{HEADER}nftables: {{masqueradeAll: true}}\n");
    world.write("config.yaml", &good);
    let file = world.path("config.yaml").display().to_string();
    world.start(&[&format!("--config={file}")])?;
    sources(world, true)?;
    world.write("config.yaml", &format!("{HEADER}nftables: {{masqueradeAl: false}}\n"));
    let place = format!("{file}:3: nftables.masqueradeAl: unknown field");
    world.logged(&["ERROR", "the changed configuration is not used", &place, "masqueradeAll"])?;
    sources(world, true)?;
    let status = world.agent()?.status()?;
    ensure(status.is_none(), || format!("it ended: {status:?}"))?;
    world.write("config.yaml", &format!("{HEADER}nftables: {{masqueradeAll: false}}\n"));
    sources(world, false)
}

fn needs_restart(world: &mut AgentLab) -> Outcome {
    world.write("config.yaml", HEADER);
    world.start(&[&format!("--config={}", world.path("config.yaml").display())])?;
    world.web_works()?;
    let mut wanted = world.status("/configz")?.json()?;
    let change = "healthzBindAddress: 0.0.0.0:10300\nbindAddress: 192.168.50.11\nfeatureGates: {Some: true}\n\
                  nftables: {masqueradeBit: 20}\noomScoreAdj: 7\n";
    world.write("config.yaml", &format!("{HEADER}{change}"));
    for field in ["healthzBindAddress", "bindAddress", "featureGates", "nftables.masqueradeBit"] {
        world.logged(&[
            "WARN",
            &format!("field=\"{field}\""),
            "takes effect when portway is started again",
        ])?;
    }
    world.logged(&["configuration applied", "oomScoreAdj"])?;
    // The status page and the table show the configuration in force.
    wanted["kubeproxy.config.k8s.io"]["oomScoreAdj"] = 7.into();
    eventually(patience(), || {
        let shown = world.status("/configz")?.json()?;
        if shown == wanted { Ok(()) } else { Err(format!("/configz says\n{shown}\nand not\n{wanted}")) }
    })?;
    world.web_works()?;
    let rules = world.nft(&["list", "table", "ip", "portway"])?;
    ensure(rules.contains("0x00004000") && !rules.contains("0x00100000"), || {
        format!("another mark:\n{rules}")
    })
}

fn round_trip(world: &mut AgentLab) -> Outcome {
    let [first, second] = ["first.yaml", "second.yaml"].map(|name| world.path(name));
    let flags = [
        "--cluster-cidr=10.244.0.0/16,fd10:244::/32",
        "--nodeport-addresses=192.168.0.0/16",
        "--masquerade-all",
        "--conntrack-tcp-timeout-established=1h30m",
        "--metrics-bind-address=[::1]:9999",
        "--feature-gates=Some=true",
    ];
    let write = |path: &std::path::Path| format!("--write-config-to={}", path.display());
    let output = proxy(world, &[&flags[..], &[&write(&first)]].concat())?;
    ensure(output.status.success(), || stderr(&output))?;
    let output = proxy(world, &[&format!("--config={}", first.display()), &write(&second)])?;
    ensure(output.status.success(), || stderr(&output))?;
    let [first, second] = [std::fs::read_to_string(first)?, std::fs::read_to_string(second)?];
    ensure(first == second, || format!("{first}\nbecame\n{second}"))?;
    for line in [
        "clusterCIDR: 10.244.0.0/16,fd10:244::/32",
        "  masqueradeAll: true",
        "  tcpEstablishedTimeout: 1h30m",
    ] {
        ensure(first.contains(line), || format!("no {line:?} in\n{first}"))?;
    }
    let output = proxy(world, &["--write-config-to=/nowhere/config.yaml"])?;
    let said = stderr(&output);
    ensure(output.status.code() == Some(1) && said.contains("/nowhere/config.yaml"), || said.clone())
}

fn version(world: &mut AgentLab) -> Outcome {
    let number = env!("CARGO_PKG_VERSION");
    for arguments in [&["--version"][..], &["proxy", "--version"], &["proxy", "--version=true"]] {
        let output = world.portway(arguments)?;
        let said = String::from_utf8_lossy(&output.stdout).to_lowercase();
        let right = output.status.success() && said.trim() == format!("portway {number}");
        ensure(right, || format!("{arguments:?}: {said}"))?;
    }
    Ok(())
}

fn init_only(world: &mut AgentLab) -> Outcome {
    let setting = "nf_conntrack_tcp_timeout_close_wait";
    let output = proxy(world, &["--init-only"])?;
    let said = stderr(&output);
    ensure(output.status.code() == Some(0), || format!("{}: {said}", output.status))?;
    let read = || std::fs::read_to_string(format!("/proc/sys/net/netfilter/{setting}"));
    let seconds = world.node().run(read)?;
    ensure(seconds.trim() == "3600" || said.contains(setting), || {
        format!("{setting} is {seconds}, and not a word of why:\n{said}")
    })?;
    let rules = world.nft(&["list", "ruleset"])?;
    ensure(rules.is_empty(), || format!("it programmed:\n{rules}"))
}

fn kube_proxy(world: &mut AgentLab) -> Outcome {
    let link = world.path("kube-proxy");
    symlink(PORTWAY, &link)?;
    let mut command = Command::new(&link);
    command.arg("--version");
    let output = world.run(command)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success() && said.contains(env!("CARGO_PKG_VERSION")), || said.clone())?;
    // As kubeadm and old unit files write flags.
    let mut command = Command::new(&link);
    command.args(world.flags()).args(["--cluster_cidr=10.244.0.0/16,fd10:244::/32", "--masquerade-all=true"]);
    world.start_as(command)?;
    world.web_works()?;
    sources(world, true)?;
    world.stop()?;
    let mut command = Command::new(&link);
    command.arg("--cleanup");
    let output = world.run(command)?;
    ensure(output.status.success(), || stderr(&output))?;
    let rules = world.nft(&["list", "ruleset"])?;
    ensure(rules.is_empty(), || format!("left behind:\n{rules}"))
}

/// Runs `portway proxy` on the node to its end.
fn proxy(world: &AgentLab, flags: &[&str]) -> Result<Output, Failed> {
    world.portway(&[&["proxy"], flags].concat())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
