//! What runs rules (`ipt_do_table` in net/ipv4/netfilter/ip_tables.c).

use super::KernelObjects;
use super::packet::{arrived_on, states};
use super::ruleset::{Line, Ruleset};
use crate::chains::{Chain, Table};
use crate::rules::{Action, Is, Match, Probability, Rule};
use portway_dataplane::trace::{Chance, Host, PacketState, Step};
use portway_model::Target;
use std::collections::HashSet;

/// The kernel refuses chains that go round in circles; this only keeps us from following them.
const HOPS: usize = 1024;

/// How a built-in chain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Accept,
    Drop,
    Reject,
}

/// What was left to chance: whether each rule with a probability was taken. Every one is, and is not, on paths of their
/// own; but where paths meet again, only one of them is followed on.
#[derive(Debug, Default)]
pub(super) struct RandomChoices {
    planned: Vec<bool>,
    made: Vec<bool>,
    /// Where chance decided before, and with what packet.
    known: HashSet<Crossing>,
    /// This path has met one that was followed before.
    pub(super) abandoned: bool,
}

/// A position where chance decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Crossing {
    position: Position,
    stack: Vec<(Chain, usize)>,
    packet: PacketState,
}

/// Where the packet is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Position {
    table: Table,
    base: Chain,
    chain: Chain,
    index: usize,
    /// How often this rule asked chance before.
    draws: usize,
}

impl RandomChoices {
    fn draw(&mut self, at: impl FnOnce() -> Crossing) -> bool {
        let planned = self.planned.get(self.made.len()).copied();
        if planned.is_none() && !self.known.insert(at()) {
            self.abandoned = true;
        }
        let taken = planned.unwrap_or(true);
        self.made.push(taken);
        taken
    }

    /// The next combination after the one that was drawn, if there is one.
    pub(super) fn next(mut self) -> Option<RandomChoices> {
        if self.abandoned {
            // Whatever follows was followed before.
            self.made.pop();
        }
        while let Some(last) = self.made.pop() {
            if last {
                self.made.push(false);
                let (planned, known) = (self.made, self.known);
                return Some(RandomChoices { planned, known, ..RandomChoices::default() });
            }
        }
        None
    }
}

/// The machine, with a packet in it.
pub(super) struct Machine<'r> {
    rules: &'r Ruleset,
    host: &'r Host,
    objects: &'r dyn KernelObjects,
    pub(super) packet: PacketState,
    pub(super) choices: RandomChoices,
    pub(super) steps: Vec<Step>,
    position: Position,
    /// Where jumps came from, and go on.
    stack: Vec<(Chain, usize)>,
}

impl<'r> Machine<'r> {
    pub(super) fn new(
        rules: &'r Ruleset,
        host: &'r Host,
        objects: &'r dyn KernelObjects,
        packet: PacketState,
        choices: RandomChoices,
    ) -> Machine<'r> {
        let base = Chain::Other("".into());
        let position = Position { table: Table::Nat, base: base.clone(), chain: base, index: 0, draws: 0 };
        Machine { rules, host, objects, packet, choices, steps: Vec::new(), position, stack: Vec::new() }
    }

    /// Runs a built-in chain to its end.
    pub(super) fn run(&mut self, table: Table, builtin: &str) -> End {
        let base = Chain::parse(builtin);
        self.position = Position { table, base: base.clone(), chain: base.clone(), index: 0, draws: 0 };
        self.stack.clear();
        for _ in 0..HOPS {
            match self.chain() {
                _ if self.choices.abandoned => return End::Drop,
                Some(Action::Accept | Action::Dnat(_) | Action::Masquerade) => return End::Accept,
                Some(Action::Drop) => return End::Drop,
                Some(Action::Reject(_)) => return End::Reject,
                Some(Action::Jump(to)) => {
                    let from = std::mem::replace(&mut self.position.chain, to.clone());
                    self.stack.push((from, std::mem::take(&mut self.position.index)));
                }
                Some(
                    Action::Return | Action::Mark { .. } | Action::ConnectionMark { .. } | Action::MapMark(_),
                )
                | None => match self.stack.pop() {
                    Some(back) => (self.position.chain, self.position.index) = back,
                    None if self.rules.drops(table, &base) => {
                        self.steps.push(Step::Policy);
                        return End::Drop;
                    }
                    None => return End::Accept,
                },
            }
        }
        End::Drop
    }

    /// Runs the rules of a chain until one leads away from it; the position is then behind it.
    fn chain(&mut self) -> Option<&'r Action> {
        let rules = self.rules;
        let lines = rules.lines(self.position.table, &self.position.chain);
        while let Some(line) = lines.get(self.position.index) {
            self.position.draws = 0;
            let action = self.line(line);
            self.position.index += 1;
            if self.choices.abandoned {
                return None;
            }
            let goes_on = |a: &Action| {
                matches!(a, Action::Mark { .. } | Action::ConnectionMark { .. } | Action::MapMark(_))
            };
            if let Some(action) = action.filter(|a| !goes_on(a)) {
                return Some(action);
            }
        }
        None
    }

    /// Runs one rule; what it does comes back, if it does anything.
    fn line(&mut self, line: &'r Line) -> Option<&'r Action> {
        let Position { chain, index, .. } = self.position.clone();
        let text = line.text.clone();
        let Some(rule) = &line.rule else {
            self.steps.push(Step::NotUnderstood { chain: chain.to_string(), text });
            return None;
        };
        let before = self.steps.len();
        let mut because = Vec::new();
        let step = Step::Rule { chain: chain.to_string(), index, text: Some(text), because: Vec::new() };
        self.steps.push(step);
        // Of a rule that does not concern the packet no step stays.
        if self.concerns(rule, &mut because).is_none() {
            self.steps.truncate(before);
            return None;
        }
        if let Some(Step::Rule { because: reasons, .. }) = self.steps.get_mut(before) {
            *reasons = because;
        }
        self.act(rule.action.as_ref()?)
    }

    fn act(&mut self, action: &'r Action) -> Option<&'r Action> {
        match action {
            Action::Dnat(target) => {
                self.packet.translate(*target);
                self.steps.push(Step::Translated(*target));
            }
            Action::Masquerade => {
                self.packet.masqueraded = true;
                self.steps.push(Step::Masqueraded);
            }
            Action::Mark { value, mask } => {
                self.packet.mark = (self.packet.mark & !mask) ^ value;
                self.steps.push(Step::Marked(self.packet.mark));
            }
            Action::ConnectionMark { value, mask } => {
                self.packet.connection_mark = (self.packet.connection_mark & !mask) ^ value;
            }
            Action::MapMark(lookup) => {
                if let Some(mark) = self.objects.lookup(lookup, &self.packet) {
                    self.packet.mark = mark;
                    self.steps.push(Step::Marked(mark));
                }
            }
            _ => {}
        }
        Some(action)
    }

    /// Whether a rule concerns the packet, and why.
    fn concerns(&mut self, rule: &Rule, because: &mut Vec<String>) -> Option<()> {
        let PacketState { source, destination, protocol, .. } = self.packet.clone();
        let mut ask = |holds: bool, not: bool, words: String| {
            because.push(if not { format!("not {words}") } else { words });
            (holds != not).then_some(())
        };
        if let Some(Is { value, not }) = &rule.source {
            ask(value.contains(&source), *not, format!("from {value}"))?;
        }
        if let Some(Is { value, not }) = &rule.destination {
            ask(value.contains(&destination), *not, format!("to {value}"))?;
        }
        if let Some(Is { value, not }) = &rule.input {
            ask(arrived_on(&self.packet, value), *not, format!("from interface {value}"))?;
        }
        if let Some(wanted) = rule.protocol {
            ask(protocol == wanted, false, wanted.to_string())?;
        }
        rule.matches.iter().try_for_each(|condition| self.holds(condition, because))
    }

    fn holds(&mut self, condition: &Match, because: &mut Vec<String>) -> Option<()> {
        let packet = &self.packet;
        let (holds, words) = match condition {
            Match::Comment(_) | Match::Count(_) => return Some(()),
            Match::Port { protocol, destination: None } => {
                return (packet.protocol == *protocol).then_some(());
            }
            Match::Port { protocol, destination: Some(port) } => {
                (packet.protocol == *protocol && packet.port == *port, format!("to port {port}"))
            }
            Match::State(Is { value, not }) => {
                let words = format!("{}{value}", if *not { "not " } else { "" });
                ((states(packet).0 & value.0 != 0) != *not, words)
            }
            Match::OriginalDestination(range) => {
                (range.contains(&packet.original), format!("headed to {range} at first"))
            }
            Match::Mark { value, mask, not } => {
                let words = format!("{}marked {value:#x}/{mask:#x}", if *not { "not " } else { "" });
                ((packet.mark & mask == *value) != *not, words)
            }
            Match::ConnectionMark { value, mask } => {
                let words = format!("its connection marked {value:#x}/{mask:#x}");
                (packet.connection_mark & mask == *value, words)
            }
            Match::Set(Is { value, not }) => {
                let words = format!("{}in set {}", if *not { "not " } else { "" }, value.set);
                (self.objects.lookup(value, packet).is_some() != *not, words)
            }
            Match::SourceIsLocal => (self.host.owns(packet.source), "from this machine".to_owned()),
            Match::DestinationIsLocal => (self.host.owns(packet.destination), "to this machine".to_owned()),
            Match::DestinationIsElsewhere => {
                (!self.host.owns(packet.destination), "not to this machine".to_owned())
            }
            Match::Random(probability) => return self.chance(*probability),
            Match::Recent(recent) => {
                let (list, client) = (recent.list.to_string(), packet.source);
                if recent.within.is_none() {
                    self.steps.push(Step::Remembered { list, client });
                    return Some(());
                }
                let words = format!("remembered in {list}");
                (self.host.recent.contains(&(list, client)), words)
            }
        };
        because.push(words);
        holds.then_some(())
    }

    /// One of these, each on a path of its own.
    pub(super) fn one_of(&mut self, targets: &[Target]) -> Option<Target> {
        let (last, others) = targets.split_last()?;
        let Machine { position, stack, packet, choices, .. } = self;
        for target in others {
            let crossing =
                || Crossing { position: position.clone(), stack: stack.clone(), packet: packet.clone() };
            let taken = choices.draw(crossing);
            position.draws += 1;
            if taken {
                return Some(*target);
            }
        }
        Some(*last)
    }

    fn chance(&mut self, probability: Probability) -> Option<()> {
        let Machine { position, stack, packet, choices, .. } = self;
        let crossing =
            || Crossing { position: position.clone(), stack: stack.clone(), packet: packet.clone() };
        let taken = match probability {
            Probability(0) => false,
            p if p == Probability::one_in(1) => true,
            _ => choices.draw(crossing),
        };
        self.position.draws += 1;
        self.steps.push(Step::Chosen(Chance::Probability(probability.to_string())));
        taken.then_some(())
    }
}
