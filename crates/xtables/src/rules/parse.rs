//! Parses rules from the output of `iptables-save`.
//!
//! The variants and versions of the tool differ in spelling and in the order of options. Every spelling of a rule that
//! the types can represent is parsed as that rule. Parsing fails for any other rule, also because of a single unknown
//! option: it belongs to another program.

use super::print::STATES;
use super::{Action, Is, Lookup, Match, Probability, Recent, Refusal, Rule, Sides, States};
use crate::chains::Chain;
use ipnet::IpNet;
use portway_model::{Protocol, Target};
use std::iter::Peekable;
use std::net::{IpAddr, SocketAddr};

impl Rule {
    /// Parses the text after `-A CHAIN`; `None` if these types cannot represent the rule.
    pub fn parse(text: &str) -> Option<Rule> {
        let words = words(text)?;
        let mut reader = Reader { words: words.iter().map(String::as_str).peekable(), rule: Rule::default() };
        while reader.step()? {}
        Some(reader.rule)
    }
}

/// Splits at spaces outside double quotes, and removes quotes and backslashes; `None` if a quote is not closed.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().push(characters.next()?),
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    (!quoted).then_some(words)
}

struct Reader<'t, W: Iterator<Item = &'t str>> {
    words: Peekable<W>,
    rule: Rule,
}

impl<'t, W: Iterator<Item = &'t str>> Reader<'t, W> {
    /// Parses one option; false at the end.
    fn step(&mut self) -> Option<bool> {
        let Some(first) = self.words.next() else { return Some(false) };
        let not = first == "!";
        let option = if not { self.words.next()? } else { first };
        match option {
            "-s" => self.rule.source = Some(Is { value: range(self.words.next()?)?, not }),
            "-d" => self.rule.destination = Some(Is { value: range(self.words.next()?)?, not }),
            "-i" => self.rule.input = Some(Is { value: self.name()?.into(), not }),
            _ if not => return None,
            "-p" => self.rule.protocol = Some(protocol(self.words.next()?)?),
            "-m" => {
                let condition = self.condition()?;
                self.rule.matches.push(condition);
            }
            "-j" => self.rule.action = Some(self.action()?),
            _ => return None,
        }
        Some(true)
    }

    /// The next word, if it is a name that needs no quotes: rules of a proxy have no others.
    fn name(&mut self) -> Option<&'t str> {
        let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
        self.words.next().filter(|name| !name.is_empty() && name.chars().all(plain))
    }

    /// Skips the next word and returns true, if it is this option.
    fn option(&mut self, name: &str) -> bool {
        self.words.next_if(|w| *w == name).is_some()
    }

    /// The value of this option, if it comes next.
    fn value(&mut self, name: &str) -> Option<&'t str> {
        if self.option(name) { self.words.next() } else { None }
    }

    fn condition(&mut self) -> Option<Match> {
        Some(match self.words.next()? {
            "comment" => Match::Comment(self.value("--comment")?.into()),
            "conntrack" => self.conntrack()?,
            "mark" => {
                let not = self.option("!");
                let (value, mask) = masked(self.value("--mark")?)?;
                Match::Mark { value, mask, not }
            }
            "addrtype" => {
                let not = self.option("!");
                let (option, kind) = (self.words.next()?, self.words.next()?);
                match (option, kind) {
                    ("--src-type", "LOCAL") if !not => Match::SourceIsLocal,
                    ("--dst-type", "LOCAL") if !not => Match::DestinationIsLocal,
                    ("--dst-type", "LOCAL") => Match::DestinationIsNotLocal,
                    _ => return None,
                }
            }
            "statistic" => {
                let random = self.value("--mode")? == "random";
                let text = self.value("--probability").filter(|_| random)?;
                Match::Random(probability(text)?)
            }
            "recent" => Match::Recent(self.recent()?),
            "set" => {
                let not = self.option("!");
                Match::Set(Is { value: self.lookup("--match-set")?, not })
            }
            "connmark" => {
                let (value, mask) = masked(self.value("--mark")?)?;
                Match::ConnectionMark { value, mask }
            }
            "nfacct" if self.option("--nfacct-name") => Match::Count(self.name()?.into()),
            name => {
                let destination = self.value("--dport").map(str::parse).transpose().ok()?;
                Match::Port { protocol: protocol(name)?, destination }
            }
        })
    }

    fn lookup(&mut self, option: &str) -> Option<Lookup> {
        if !self.option(option) {
            return None;
        }
        let set = self.name()?.into();
        let sides = self.words.next()?;
        Some(Lookup { set, sides: Sides::ALL.iter().find(|(_, name)| *name == sides)?.0 })
    }

    fn conntrack(&mut self) -> Option<Match> {
        let not = self.option("!");
        match self.words.next()? {
            "--ctstate" => Some(Match::State(Is { value: states(self.words.next()?)?, not })),
            "--ctorigdst" if !not => Some(Match::OriginalDestination(range(self.words.next()?)?)),
            _ => None,
        }
    }

    /// The tool prints the options in another order than they were given.
    fn recent(&mut self) -> Option<Recent> {
        let (mut set, mut check, mut reap) = (false, false, false);
        let (mut within, mut list, mut mask) = (None, None, None::<IpAddr>);
        loop {
            match self.words.next_if(|w| w.starts_with("--")) {
                Some("--set") => set = true,
                Some("--rcheck") => check = true,
                Some("--reap") => reap = true,
                Some("--seconds") => within = Some(self.words.next()?.parse().ok()?),
                Some("--name") => list = Some(Chain::parse(self.name()?)),
                Some("--mask") => mask = Some(self.words.next()?.parse().ok()?),
                Some("--rsource") => {}
                Some(_) => return None,
                None => break,
            }
        }
        let whole = match mask {
            Some(IpAddr::V4(mask)) => mask.octets() == [255; 4],
            Some(IpAddr::V6(mask)) => mask.octets() == [255; 16],
            None => true,
        };
        let is_representable = set != check && check == within.is_some() && reap == check && whole;
        is_representable.then_some(Recent { list: list?, within, v6: mask.is_some_and(|m| m.is_ipv6()) })
    }

    fn action(&mut self) -> Option<Action> {
        Some(match self.name()? {
            "ACCEPT" => Action::Accept,
            "DROP" => Action::Drop,
            "RETURN" => Action::Return,
            "REJECT" => {
                let name = self.value("--reject-with")?;
                Action::Reject(Refusal::ALL.iter().find(|(_, n)| *n == name)?.0)
            }
            "DNAT" => {
                let to: SocketAddr = self.value("--to-destination")?.parse().ok()?;
                Action::Dnat(Target { ip: to.ip(), port: to.port() })
            }
            "MASQUERADE" if self.option("--random-fully") => Action::Masquerade,
            "MARK" => {
                let (value, mask) = masked(self.value("--set-xmark")?)?;
                Action::Mark { value, mask }
            }
            "CONNMARK" => {
                let (value, mask) = masked(self.value("--set-xmark")?)?;
                Action::ConnectionMark { value, mask }
            }
            "SET" => {
                let lookup = self.lookup("--map-set")?;
                if !self.option("--map-mark") {
                    return None;
                }
                Action::MapMark(lookup)
            }
            name if name.starts_with('-') => return None,
            // Any other target without options is a chain. Targets that are extensions have options.
            name if self.words.peek().is_none() => Action::Jump(Chain::parse(name)),
            _ => return None,
        })
    }
}

fn protocol(name: &str) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.lower() == name)
}

fn range(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn states(text: &str) -> Option<States> {
    let state = |name| STATES.iter().find(|(_, n)| *n == name).map(|(s, _)| *s);
    text.split(',').try_fold(States::default(), |all, name| Some(all.or(state(name)?)))
}

/// Parses `value/mask`; without a mask, it has all bits.
fn masked(text: &str) -> Option<(u32, u32)> {
    let number = |t: &str| match t.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => t.parse().ok(),
    };
    match text.split_once('/') {
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
        None => Some((number(text)?, u32::MAX)),
    }
}

/// Parses a probability as the tool does: rounded to a multiple of 2⁻³¹.
fn probability(text: &str) -> Option<Probability> {
    let chance: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&chance).then(|| Probability((chance * (1u64 << 31) as f64).round() as u32))
}
