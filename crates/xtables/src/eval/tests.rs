//! Evaluation of rules written by hand, including rules that no mode renders.

use super::*;
use portway_model::{Protocol, Target};
use std::net::IpAddr;

fn packet(to: &str) -> Packet {
    let to: std::net::SocketAddr = to.parse().unwrap();
    let (source, input) = ([10, 0, 0, 1].into(), Some("eth0".to_owned()));
    Packet { source, destination: to.ip(), protocol: Protocol::Tcp, port: to.port(), input }
}

fn follow(rules: &str, packet: &Packet) -> Trace {
    let addresses = [IpAddr::from([192, 168, 50, 11])].into();
    let recent = [("seen".to_owned(), IpAddr::from([10, 0, 0, 1]))].into();
    eval(&Ruleset::parse(rules), Family::V4, packet, &Host { addresses, recent })
}

fn end(rules: &str) -> Verdict {
    follow(rules, &packet("10.9.9.9:80")).verdict().unwrap().clone()
}

/// Rules of table filter, for a packet that is forwarded.
fn forwarded(rules: &str) -> Verdict {
    end(&format!("*filter\n{rules}\nCOMMIT\n"))
}

#[test]
fn evaluation_continues_after_a_jump_or_a_return() {
    let rows = [
        ("no rules", "", Verdict::Untouched),
        ("rule after a jump", "-A FORWARD -j SIDE\n-A FORWARD -j DROP", Verdict::Dropped),
        (
            "a return continues after the jump",
            "-A FORWARD -j SIDE\n-A FORWARD -j DROP\n-A SIDE -j RETURN\n-A SIDE -j ACCEPT",
            Verdict::Dropped,
        ),
        ("a return from a built-in chain", "-A FORWARD -j RETURN\n-A FORWARD -j DROP", Verdict::Untouched),
        (
            "accept in a jumped-to chain ends the built-in chain",
            "-A FORWARD -j SIDE\n-A FORWARD -j DROP\n-A SIDE -j ACCEPT",
            Verdict::Untouched,
        ),
        ("an inserted rule comes first", "-A FORWARD -j DROP\n-I FORWARD -j ACCEPT", Verdict::Untouched),
        ("the policy", ":FORWARD DROP [0:0]", Verdict::Dropped),
        ("the policy after a return", ":FORWARD DROP [0:0]\n-A FORWARD -j RETURN", Verdict::Dropped),
        (
            "a rule accepts before the policy",
            ":FORWARD DROP [0:0]\n-A FORWARD -s 10.0.0.0/24 -j ACCEPT",
            Verdict::Untouched,
        ),
        ("another hook", "-A INPUT -j DROP\n-A OUTPUT -j DROP", Verdict::Untouched),
        ("rejected", "-A FORWARD -j REJECT --reject-with icmp-port-unreachable", Verdict::Rejected),
        ("a skipped rule", "-A FORWARD -o eth0 -j DROP", Verdict::Untouched),
    ];
    for (case, rules, expected) in rows {
        assert_eq!(forwarded(rules), expected, "{case}");
    }
}

#[test]
fn evaluation_of_looping_chains_ends() {
    assert_eq!(forwarded("-A FORWARD -j SIDE\n-A SIDE -j SIDE"), Verdict::Dropped);
}

#[test]
fn conditions_match_or_do_not_match() {
    let matching = [
        "-s 10.0.0.0/24",
        "! -s 10.0.1.0/24",
        "-d 10.9.9.9/32",
        "-i eth0",
        "-i eth+",
        "-i +",
        "! -i veth+",
        "-p tcp",
        "-p tcp -m tcp",
        "-p tcp -m tcp --dport 80",
        "-m conntrack --ctstate NEW",
        "-m conntrack --ctstate NEW,INVALID",
        "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT",
        "-m conntrack --ctorigdst 10.9.0.0/16",
        "-m mark ! --mark 0x4000/0x4000",
        "-m mark --mark 0x0/0x4000",
        "-m comment --comment x",
        "-m nfacct --nfacct-name x",
        "-m statistic --mode random --probability 1.00000000000",
        "-m recent --rcheck --seconds 5 --reap --name seen --mask 255.255.255.255 --rsource",
        "-m recent --set --name other --mask 255.255.255.255 --rsource",
    ];
    let not_matching = [
        "-s 10.0.1.0/24",
        "! -s 10.0.0.0/24",
        "-d 10.9.9.8/32",
        "-i eth",
        "! -i eth+",
        "-p udp",
        "-p tcp -m tcp --dport 81",
        "-m udp --dport 80",
        "-m conntrack --ctstate RELATED,ESTABLISHED",
        "-m conntrack --ctstate DNAT",
        "-m conntrack --ctorigdst 10.8.0.0/16",
        "-m mark --mark 0x4000/0x4000",
        "-m addrtype --src-type LOCAL",
        "-m addrtype --dst-type LOCAL",
        "-m statistic --mode random --probability 0.00000000000",
        "-m recent --rcheck --seconds 5 --reap --name other --mask 255.255.255.255 --rsource",
        "-s 10.0.0.0/24 -d 10.9.9.8/32",
    ];
    for (conditions, expected) in [(&matching[..], Verdict::Dropped), (&not_matching[..], Verdict::Untouched)]
    {
        for condition in conditions {
            assert_eq!(forwarded(&format!("-A FORWARD {condition} -j DROP")), expected, "{condition}");
        }
    }
}

#[test]
fn a_mark_is_cleared_and_flipped() {
    let marked = |marks: &[&str], mark: &str| {
        let set = marks.iter().map(|m| format!("-A FORWARD -j MARK --set-xmark {m}\n")).collect::<String>();
        forwarded(&format!("{set}-A FORWARD -m mark --mark {mark} -j DROP")) == Verdict::Dropped
    };
    assert!(marked(&["0x4000/0x4000"], "0x4000"));
    assert!(marked(&["0x4001/0x4001", "0x4000/0x0"], "0x1"));
    assert!(marked(&["0xff/0xff", "0x20/0xf0"], "0x2f"));
    assert!(!marked(&["0x4000/0x0", "0x4000/0x0"], "0x4000/0x4000"));
}

fn delivered(to: &[&str], masqueraded: bool) -> Verdict {
    let target = |text: &&str| {
        let at: std::net::SocketAddr = text.parse().unwrap();
        Target { ip: at.ip(), port: at.port() }
    };
    Verdict::Delivered { to: to.iter().map(target).collect(), masqueraded }
}

const DNAT: &str = "-p tcp -m tcp -j DNAT --to-destination";

#[test]
fn hooks_run_in_the_kernels_order() {
    // Table filter sees the translated packet, and a mark of one table is visible in the next.
    let rules = format!(
        "*nat
-A PREROUTING {DNAT} 10.1.1.1:8080
-A PREROUTING {DNAT} 10.1.1.2:8080
-A POSTROUTING -m mark --mark 0x4/0x4 -j MASQUERADE --random-fully
COMMIT
*filter
-A FORWARD -d 10.9.9.9/32 -j DROP
-A FORWARD -d 10.1.1.1/32 -p tcp -m tcp --dport 8080 -m conntrack --ctstate DNAT -j SIDE
-A FORWARD -m conntrack --ctorigdst 10.9.9.9 -j ACCEPT
-A FORWARD -j DROP
-A SIDE -j MARK --set-xmark 0x4/0x4
COMMIT
"
    );
    assert_eq!(end(&rules), delivered(&["10.1.1.1:8080"], true));
    // A packet to this host passes neither FORWARD nor POSTROUTING.
    let local = rules.replace("10.1.1.1:8080", "192.168.50.11:8080").replace("10.1.1.1/32", "10.1.1.3/32");
    assert_eq!(end(&local), delivered(&["192.168.50.11:8080"], false));
    // A packet of this host passes OUTPUT, and INPUT if its destination is this host.
    let own = Packet { source: [192, 168, 50, 11].into(), input: None, ..packet("10.9.9.9:80") };
    let output = rules.replace("PREROUTING", "OUTPUT").replace("FORWARD", "OUTPUT");
    assert_eq!(follow(&output, &own).verdict(), Some(&delivered(&["10.1.1.1:8080"], true)));
    let stays = format!(
        "*nat\n-A OUTPUT {DNAT} 192.168.50.11:22\n-A PREROUTING {DNAT} 10.1.1.1:1\nCOMMIT\n*filter\n-A INPUT -i lo -j DROP\nCOMMIT\n"
    );
    assert_eq!(follow(&stays, &own).verdict(), Some(&Verdict::Dropped));
}

fn prerouted(rules: &str) -> Trace {
    follow(&format!("*nat\n{rules}\nCOMMIT\n"), &packet("10.9.9.9:80"))
}

const HALF: &str = "-m statistic --mode random --probability 0.50000000000";

#[test]
fn random_choices_are_enumerated() {
    let rules = format!(
        "-A PREROUTING {HALF} -j A\n-A PREROUTING {HALF} -j B\n-A PREROUTING -j C
-A A {DNAT} 10.1.1.1:80\n-A B {DNAT} 10.1.1.2:80\n-A C {DNAT} 10.1.1.3:80"
    );
    let trace = prerouted(&rules);
    assert_eq!(trace.paths.len(), 3);
    assert_eq!(trace.verdict(), Some(&delivered(&["10.1.1.1:80", "10.1.1.2:80", "10.1.1.3:80"], false)));
}

#[test]
fn choices_without_effect_do_not_multiply_paths() {
    let without_effect: String = (0..64)
        .map(|n| format!("-A PREROUTING {HALF} -j N{n}\n-A N{n} {HALF} -j RETURN\n-A PREROUTING {HALF} -p udp -j RETURN\n"))
        .collect();
    let trace =
        prerouted(&format!("{without_effect}-A PREROUTING {HALF} -j A\n-A A {HALF} {DNAT} 10.1.1.1:80"));
    assert_eq!(trace.verdicts, [delivered(&["10.1.1.1:80"], false), Verdict::Untouched]);
    assert_eq!(trace.paths.len(), 3);
    // Choices that change the packet to the same state on several paths do not multiply paths either.
    let marks: String =
        (0..40).map(|n| format!("-A PREROUTING {HALF} -j MARK --set-xmark {:#x}/0x3\n", n % 4)).collect();
    let trace = prerouted(&marks);
    assert_eq!(trace.verdict(), Some(&Verdict::Untouched));
    assert!(trace.paths.len() < 200, "{}", trace.paths.len());
}

#[test]
fn packets_of_the_other_family_are_untouched() {
    let six = Packet { source: "fd00::1".parse().unwrap(), ..packet("[fd00::2]:80") };
    let trace = follow("*filter\n-A FORWARD -j DROP\nCOMMIT\n", &six);
    assert_eq!(trace.verdict(), Some(&Verdict::Untouched));
}

#[test]
fn a_trace_prints_every_step() {
    let rules = format!(
        "*nat
-A PREROUTING -m addrtype --dst-type LOCAL -j NONE
-A PREROUTING -o eth1 -j NONE
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.9.9.9/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SERVICES {HALF} -j SEP
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A SEP -p tcp -m recent --set --name SEP --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.1.1.1:8080
-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -m conntrack --ctstate NEW -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
"
    );
    let trace = follow(&rules, &packet("10.9.9.9:80"));
    insta::assert_snapshot!(trace.paths[0], @r#"
    PREROUTING: table nat, chain PREROUTING
      passed over: -A PREROUTING -o eth1 -j NONE
      -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
      -A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.9.9.9/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
        it is not from 10.244.0.0/16, to 10.9.9.9/32, TCP, to port 80
      -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        mark becomes 0x4000
      -A KUBE-SERVICES -m statistic --mode random --probability 0.50000000000 -j SEP
        random choice, probability 0.50000000000
      -A SEP -p tcp -m recent --set --name SEP --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.1.1.1:8080
        it is TCP
        the client is remembered in SEP
        destination becomes 10.1.1.1:8080
    FORWARD: table filter, chain FORWARD
      -A FORWARD -m conntrack --ctstate NEW -m mark --mark 0x4000/0x4000 -j ACCEPT
        it is NEW, marked 0x4000/0x4000
    POSTROUTING: table nat, chain POSTROUTING
      -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
        it is marked 0x4000/0x4000
        source becomes the node's
    "#);
    assert_eq!(trace.paths[0].verdict, delivered(&["10.1.1.1:8080"], true));
}
