//! The register machine that evaluates rules (`nft_do_chain` in net/netfilter/nf_tables_core.c).

use super::headers::payload;
use super::sets;
use crate::table::{Name, Table};
use portway_dataplane::trace::{Chance, Host, PacketState, Step};
use portway_model::Target;
use portway_netlink::nft::expr::{CT_STATE_NEW, CtKey, FIB_LOCAL, FibOf, MetaKey};
use portway_netlink::nft::{Data, Element, Expr, Register, Rule, Verdict};
use std::net::IpAddr;

/// `fib … type`: an address of another host (`RTN_UNICAST`).
const FIB_UNICAST: u32 = 1;
/// `fib … type`: a multicast address (`RTN_MULTICAST`).
const FIB_MULTICAST: u32 = 5;
/// Conntrack's status bits `IPS_SRC_NAT` and `IPS_DST_NAT`.
const STATUS_SRC_NAT: u32 = 1 << 4;
const STATUS_DST_NAT: u32 = 1 << 5;
/// The deepest nesting of jumps (`NFT_JUMP_STACK_SIZE`).
const STACK: usize = 16;
/// The limit of jumps, for tables with loops, which the kernel would refuse.
const HOPS: usize = 1024;

/// The verdict of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Accept,
    Drop,
    Reject,
}

/// A random number that was drawn.
#[derive(Clone, Copy, Debug, Default)]
struct Draw {
    number: u32,
    modulus: u32,
    /// The rule did not match with this number, or with a smaller one at the same position.
    missed: bool,
}

/// The random numbers of one path.
///
/// A number with which the rule does not match leaves the packet unchanged, so the rest of the path is the same for all
/// such numbers: it is evaluated for the first of them, and the other paths are abandoned. Without that, the number of
/// paths would grow exponentially with the rules that draw again.
#[derive(Debug, Default)]
pub(super) struct RandomChoices {
    planned: Vec<Draw>,
    made: Vec<Draw>,
    /// The rest of this path is the same as that of a path that was evaluated before.
    pub(super) abandoned: bool,
}

impl RandomChoices {
    fn draw(&mut self, modulus: u32) -> u32 {
        let plan = self.planned.get(self.made.len()).copied().unwrap_or_default();
        self.made.push(Draw { modulus, ..plan });
        plan.number
    }

    /// Records that the rule in which the numbers from `first` on were drawn did not match.
    fn missed(&mut self, first: usize) {
        if let Some(last) = self.made[first..].last_mut() {
            self.abandoned |= last.missed;
            last.missed = true;
        }
    }

    /// The next combination of numbers, if there is one.
    pub(super) fn next(mut self) -> Option<RandomChoices> {
        while let Some(last) = self.made.pop() {
            if last.number + 1 < last.modulus {
                self.made.push(Draw { number: last.number + 1, ..last });
                return Some(RandomChoices { planned: self.made, ..RandomChoices::default() });
            }
        }
        None
    }
}

/// The effect of an expression on the evaluation of its rule.
enum Flow {
    /// Evaluate the next expression.
    Continue,
    /// The rule does not match.
    Break,
    /// The rule has a verdict.
    Verdict(Verdict),
    /// The base chain ends.
    End(End),
}

/// The state of the evaluation of one packet.
pub(super) struct Machine<'t> {
    pub(super) table: &'t Table,
    host: &'t Host,
    pub(super) packet: PacketState,
    pub(super) choices: RandomChoices,
    pub(super) steps: Vec<Step>,
    registers: [u8; 64],
}

impl<'t> Machine<'t> {
    pub(super) fn new(
        table: &'t Table,
        host: &'t Host,
        packet: PacketState,
        choices: RandomChoices,
    ) -> Machine<'t> {
        Machine { table, host, packet, choices, steps: Vec::new(), registers: [0; 64] }
    }

    /// Evaluates a base chain, whose policy is accept.
    pub(super) fn run(&mut self, base: &Name) -> End {
        let mut stack: Vec<(Name, usize)> = Vec::new();
        let (mut chain, mut at) = (base.clone(), 0);
        self.registers = [0; 64];
        for _ in 0..HOPS {
            let flow = self.rules(&chain, &mut at);
            let caller = match flow {
                Flow::End(end) => return end,
                Flow::Verdict(Verdict::Accept) => return End::Accept,
                Flow::Verdict(Verdict::Drop) => return End::Drop,
                Flow::Verdict(Verdict::Jump(_)) if stack.len() == STACK => return End::Drop,
                Flow::Verdict(Verdict::Jump(to)) => {
                    stack.push((std::mem::replace(&mut chain, to), at));
                    None
                }
                Flow::Verdict(Verdict::Goto(to)) => {
                    chain = to;
                    None
                }
                Flow::Verdict(Verdict::Return) | Flow::Continue | Flow::Break => Some(stack.pop()),
            };
            match caller {
                None => at = 0,
                Some(Some(frame)) => (chain, at) = frame,
                Some(None) => return End::Accept,
            }
        }
        End::Drop
    }

    /// Evaluates the rules of a chain from `at` until one has a verdict; `at` is then the index of the next rule.
    fn rules(&mut self, chain: &Name, at: &mut usize) -> Flow {
        let table = self.table;
        let rules: &[Rule] = table.chains.get(chain).map_or(&[], |c| &c.rules);
        while let Some(rule) = rules.get(*at) {
            let step = Step::Rule { chain: chain.to_string(), index: *at, text: None, because: Vec::new() };
            *at += 1;
            match self.rule(rule, step) {
                Flow::Continue | Flow::Break => {}
                verdict => return verdict,
            }
        }
        Flow::Continue
    }

    /// Evaluates one rule. A rule that does not match leaves no steps in the trace.
    fn rule(&mut self, rule: &Rule, step: Step) -> Flow {
        let before = self.steps.len();
        let drawn = self.choices.made.len();
        self.steps.push(step);
        for expr in &rule.exprs {
            match self.expr(expr) {
                Some(Flow::Continue) => {}
                None | Some(Flow::Break) => {
                    self.steps.truncate(before);
                    self.choices.missed(drawn);
                    return if self.choices.abandoned { Flow::End(End::Drop) } else { Flow::Break };
                }
                Some(verdict) => return verdict,
            }
        }
        Flow::Continue
    }

    /// Evaluates one expression. `None` if its operand does not exist: then the rule does not match.
    fn expr(&mut self, expr: &Expr) -> Option<Flow> {
        match expr {
            Expr::Meta(key, to) => {
                let value = self.meta(*key)?;
                self.store(*to, &value);
            }
            Expr::MetaSet(MetaKey::Mark, from) => self.packet.mark = self.number(*from),
            Expr::MetaSet(..) | Expr::Foreign(_) => return None,
            Expr::Payload { base, offset, len, to } => {
                let value = payload(&self.packet, *base, *offset, *len)?;
                self.store(*to, &value);
            }
            Expr::Compare { equal, register, value } => {
                return Some(when((self.load(*register, value.len()) == value) == *equal));
            }
            Expr::Bitwise { register, mask, xor } => {
                let old = self.load(*register, mask.len()).to_vec();
                let new: Vec<u8> = old.iter().zip(mask).zip(xor).map(|((o, m), x)| (o & m) ^ x).collect();
                self.store(*register, &new);
            }
            Expr::Lookup { set, key } => drop(self.find(set, *key)?),
            Expr::Map { set, key, to } => match self.find(set, *key)?.data.as_ref()? {
                Data::Value(value) => self.store(*to, value.as_slice()),
                Data::Verdict(_) => return None,
            },
            Expr::VerdictMap { set, key } => match self.find(set, *key)?.data.as_ref()? {
                Data::Verdict(verdict) => return Some(Flow::Verdict(verdict.clone())),
                Data::Value(_) => return None,
            },
            Expr::Immediate(to, value) => self.store(*to, value),
            Expr::Verdict(verdict) => return Some(Flow::Verdict(verdict.clone())),
            Expr::Dnat { address, port, .. } => return self.translate(*address, *port),
            Expr::Masquerade { .. } => {
                self.packet.masqueraded = true;
                self.steps.push(Step::Masqueraded);
                return Some(Flow::End(End::Accept));
            }
            Expr::Reject(_) => return Some(Flow::End(End::Reject)),
            Expr::Ct(key, to) => {
                let value = self.conntrack(*key);
                self.store(*to, &value.to_ne_bytes());
            }
            Expr::FibType(of, to) => {
                let kind = self.fib(*of);
                self.store(*to, &kind.to_ne_bytes());
            }
            Expr::Random { modulus, to } => {
                let number = self.choices.draw(*modulus);
                self.steps.push(Step::Chosen(Chance::Number { number, of: *modulus }));
                self.store(*to, &number.to_ne_bytes());
            }
            Expr::Update { set, key } => self.remember(set, *key)?,
        }
        Some(Flow::Continue)
    }

    fn meta(&self, key: MetaKey) -> Option<Vec<u8>> {
        Some(match key {
            MetaKey::Mark => self.packet.mark.to_ne_bytes().to_vec(),
            MetaKey::Protocol => vec![self.packet.protocol.number()],
            MetaKey::InputName => {
                let mut name = self.packet.input.as_ref()?.as_bytes().to_vec();
                name.resize(16, 0);
                name
            }
        })
    }

    fn conntrack(&self, key: CtKey) -> u32 {
        let bit = |condition, bit| if condition { bit } else { 0 };
        match key {
            CtKey::State => CT_STATE_NEW,
            CtKey::Status => {
                bit(self.packet.masqueraded, STATUS_SRC_NAT) | bit(self.packet.translated, STATUS_DST_NAT)
            }
        }
    }

    fn fib(&self, of: FibOf) -> u32 {
        let address = match of {
            FibOf::Source => self.packet.source,
            FibOf::Destination => self.packet.destination,
        };
        match address {
            a if self.host.owns(a) => FIB_LOCAL,
            a if a.is_multicast() => FIB_MULTICAST,
            _ => FIB_UNICAST,
        }
    }

    fn find(&mut self, set: &Name, key: Register) -> Option<&'t Element> {
        let table = self.table;
        let shape = table.sets.get(set)?;
        let found = sets::find(table, shape, self.load(key, shape.key_len as usize))?;
        self.steps.push(Step::Found {
            set: set.to_string(),
            comment: comment(found),
            verdict: match &found.data {
                Some(Data::Verdict(verdict)) => Some(verdict.to_string()),
                _ => None,
            },
        });
        Some(found)
    }

    fn remember(&mut self, set: &Name, key: Register) -> Option<()> {
        let shape = self.table.sets.get(set)?;
        let client = match self.load(key, shape.key_len as usize) {
            v4 if v4.len() == 4 => IpAddr::from(<[u8; 4]>::try_from(v4).ok()?),
            v6 => IpAddr::from(<[u8; 16]>::try_from(v6).ok()?),
        };
        self.steps.push(Step::Remembered { list: set.to_string(), client });
        Some(())
    }

    fn translate(&mut self, address: Register, port: Register) -> Option<Flow> {
        let ip: IpAddr = match self.packet.destination {
            IpAddr::V4(_) => <[u8; 4]>::try_from(self.load(address, 4)).ok()?.into(),
            IpAddr::V6(_) => <[u8; 16]>::try_from(self.load(address, 16)).ok()?.into(),
        };
        let port = u16::from_be_bytes(<[u8; 2]>::try_from(self.load(port, 2)).ok()?);
        let target = Target { ip, port };
        self.packet.translate(target);
        self.steps.push(Step::Translated(target));
        Some(Flow::End(End::Accept))
    }

    /// Reads `len` bytes from a register on.
    fn load(&self, from: Register, len: usize) -> &[u8] {
        let start = from.index() * 4;
        self.registers.get(start..start + len).unwrap_or_default()
    }

    /// Writes whole words: the rest of the last word becomes zero.
    fn store(&mut self, to: Register, value: &[u8]) {
        let start = to.index() * 4;
        let words = value.len().next_multiple_of(4);
        if let Some(room) = self.registers.get_mut(start..start + words) {
            room.fill(0);
            room[..value.len()].copy_from_slice(value);
        }
    }

    fn number(&self, from: Register) -> u32 {
        <[u8; 4]>::try_from(self.load(from, 4)).map_or(0, u32::from_ne_bytes)
    }
}

fn when(condition: bool) -> Flow {
    if condition { Flow::Continue } else { Flow::Break }
}

/// The comment in the user data of an element: type 0, length, text with a final NUL.
pub(super) fn comment(element: &Element) -> Option<String> {
    match element.userdata.as_deref()? {
        [0, len, text @ ..] => {
            let text = text.get(..(*len as usize).checked_sub(1)?)?;
            Some(String::from_utf8_lossy(text).into_owned())
        }
        _ => None,
    }
}
