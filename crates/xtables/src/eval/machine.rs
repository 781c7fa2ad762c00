//! Evaluates chains of rules (`ipt_do_table` in net/ipv4/netfilter/ip_tables.c).

use super::KernelObjects;
use super::packet::{arrived_on, states};
use super::ruleset::{Line, Ruleset};
use crate::chains::{Chain, Table};
use crate::rules::{Action, Is, Match, Probability, Rule};
use portway_dataplane::trace::{Chance, Host, PacketState, Step};
use portway_model::Target;
use std::collections::HashSet;

/// The limit of jumps and returns, for rules with loops, which the kernel would refuse.
const HOPS: usize = 1024;

/// The verdict of a built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Accept,
    Drop,
    Reject,
}

/// The random choices of one path: whether each rule with a probability matched. Both choices are evaluated on separate
/// paths. If two paths reach the same decision in the same state, only the first is continued.
#[derive(Debug, Default)]
pub(super) struct RandomChoices {
    planned: Vec<bool>,
    made: Vec<bool>,
    /// The decisions that were reached before.
    known: HashSet<Decision>,
    /// This path has reached a decision that another path reached before.
    pub(super) abandoned: bool,
}

/// A random decision, with the complete state that the rest of the path depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Decision {
    position: Position,
    stack: Vec<(Chain, usize)>,
    packet: PacketState,
}

/// The position of the packet in the rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Position {
    table: Table,
    base: Chain,
    chain: Chain,
    index: usize,
    /// The number of random choices that this rule made before.
    draws: usize,
}

impl RandomChoices {
    fn draw(&mut self, at: impl FnOnce() -> Decision) -> bool {
        let planned = self.planned.get(self.made.len()).copied();
        if planned.is_none() && !self.known.insert(at()) {
            self.abandoned = true;
        }
        let taken = planned.unwrap_or(true);
        self.made.push(taken);
        taken
    }

    /// The next combination of choices, if there is one.
    pub(super) fn next(mut self) -> Option<RandomChoices> {
        if self.abandoned {
            // Both choices of the last decision were evaluated on another path.
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

/// The state of the evaluation of one packet.
pub(super) struct Machine<'r> {
    rules: &'r Ruleset,
    host: &'r Host,
    objects: &'r dyn KernelObjects,
    pub(super) packet: PacketState,
    pub(super) choices: RandomChoices,
    pub(super) steps: Vec<Step>,
    position: Position,
    /// The callers of the current chain, and the index at which each continues.
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

    /// Evaluates a built-in chain.
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
                    Some(caller) => (self.position.chain, self.position.index) = caller,
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

    /// Evaluates the rules of a chain until one leaves it; the position is then that of the next rule.
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
            let continues = |a: &Action| {
                matches!(a, Action::Mark { .. } | Action::ConnectionMark { .. } | Action::MapMark(_))
            };
            if let Some(action) = action.filter(|a| !continues(a)) {
                return Some(action);
            }
        }
        None
    }

    /// Evaluates one rule. Returns its action if it matches and has one.
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
        // A rule that does not match leaves no steps in the trace.
        if self.matches(rule, &mut because).is_none() {
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

    /// `Some` if the rule matches the packet. Adds the reasons to `because`.
    fn matches(&mut self, rule: &Rule, because: &mut Vec<String>) -> Option<()> {
        let PacketState { source, destination, protocol, .. } = self.packet.clone();
        let mut check = |holds: bool, not: bool, reason: String| {
            because.push(if not { format!("not {reason}") } else { reason });
            (holds != not).then_some(())
        };
        if let Some(Is { value, not }) = &rule.source {
            check(value.contains(&source), *not, format!("from {value}"))?;
        }
        if let Some(Is { value, not }) = &rule.destination {
            check(value.contains(&destination), *not, format!("to {value}"))?;
        }
        if let Some(Is { value, not }) = &rule.input {
            check(arrived_on(&self.packet, value), *not, format!("from interface {value}"))?;
        }
        if let Some(wanted) = rule.protocol {
            check(protocol == wanted, false, wanted.to_string())?;
        }
        rule.matches.iter().try_for_each(|condition| self.holds(condition, because))
    }

    fn holds(&mut self, condition: &Match, because: &mut Vec<String>) -> Option<()> {
        let packet = &self.packet;
        let (holds, reason) = match condition {
            Match::Comment(_) | Match::Count(_) => return Some(()),
            Match::Port { protocol, destination: None } => {
                return (packet.protocol == *protocol).then_some(());
            }
            Match::Port { protocol, destination: Some(port) } => {
                (packet.protocol == *protocol && packet.port == *port, format!("to port {port}"))
            }
            Match::State(Is { value, not }) => {
                let reason = format!("{}{value}", if *not { "not " } else { "" });
                ((states(packet).0 & value.0 != 0) != *not, reason)
            }
            Match::OriginalDestination(range) => {
                (range.contains(&packet.original), format!("originally to {range}"))
            }
            Match::Mark { value, mask, not } => {
                let reason = format!("{}marked {value:#x}/{mask:#x}", if *not { "not " } else { "" });
                ((packet.mark & mask == *value) != *not, reason)
            }
            Match::ConnectionMark { value, mask } => {
                let reason = format!("of a connection marked {value:#x}/{mask:#x}");
                (packet.connection_mark & mask == *value, reason)
            }
            Match::Set(Is { value, not }) => {
                let reason = format!("{}in set {}", if *not { "not " } else { "" }, value.set);
                (self.objects.lookup(value, packet).is_some() != *not, reason)
            }
            Match::SourceIsLocal => (self.host.owns(packet.source), "from this machine".to_owned()),
            Match::DestinationIsLocal => (self.host.owns(packet.destination), "to this machine".to_owned()),
            Match::DestinationIsNotLocal => {
                (!self.host.owns(packet.destination), "not to this machine".to_owned())
            }
            Match::Random(probability) => return self.chance(*probability),
            Match::Recent(recent) => {
                let (list, client) = (recent.list.to_string(), packet.source);
                if recent.within.is_none() {
                    self.steps.push(Step::Remembered { list, client });
                    return Some(());
                }
                let reason = format!("remembered in {list}");
                (self.host.recent.contains(&(list, client)), reason)
            }
        };
        because.push(reason);
        holds.then_some(())
    }

    /// A random target, each on a path of its own; `None` if there are none.
    pub(super) fn one_of(&mut self, targets: &[Target]) -> Option<Target> {
        let (last, others) = targets.split_last()?;
        let Machine { position, stack, packet, choices, .. } = self;
        for target in others {
            let decision =
                || Decision { position: position.clone(), stack: stack.clone(), packet: packet.clone() };
            let taken = choices.draw(decision);
            position.draws += 1;
            if taken {
                return Some(*target);
            }
        }
        Some(*last)
    }

    fn chance(&mut self, probability: Probability) -> Option<()> {
        let Machine { position, stack, packet, choices, .. } = self;
        let decision =
            || Decision { position: position.clone(), stack: stack.clone(), packet: packet.clone() };
        let taken = match probability {
            Probability(0) => false,
            p if p == Probability::one_in(1) => true,
            _ => choices.draw(decision),
        };
        self.position.draws += 1;
        self.steps.push(Step::Chosen(Chance::Probability(probability.to_string())));
        taken.then_some(())
    }
}
