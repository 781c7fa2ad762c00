//! What the kernel checks before it swaps the tables: from every base chain, along every jump
//! (`nft_chain_validate` in net/netfilter/nf_tables_api.c).

use super::{ELOOP, EMLINK, EOPNOTSUPP, refused};
use crate::table::{Name, Table};
use portway_netlink::Result;
use portway_netlink::nft::expr::Reject;
use portway_netlink::nft::{ChainKind, Data, Expr, Hook, HookPoint, Verdict};
use std::collections::HashSet;

/// How deep jumps may nest.
const DEPTH: usize = 16;

/// Whether every rule may do what it does where it is reached.
pub(super) fn validate(table: &Table) -> Result<()> {
    for (name, body) in &table.chains {
        if let Some(hook) = body.hook {
            Walk { table, hook, done: HashSet::new() }.chain(name, &mut Vec::new())?;
        }
    }
    Ok(())
}

struct Walk<'t> {
    table: &'t Table,
    hook: Hook,
    /// Chains that are known to be well at this depth.
    done: HashSet<(&'t Name, usize)>,
}

impl<'t> Walk<'t> {
    fn chain(&mut self, name: &'t Name, above: &mut Vec<&'t Name>) -> Result<()> {
        if above.contains(&name) {
            return Err(refused(ELOOP, format!("follow the jump to chain {name}")));
        }
        if above.len() == DEPTH {
            return Err(refused(EMLINK, format!("follow the jump to chain {name}")));
        }
        if !self.done.insert((name, above.len())) {
            return Ok(());
        }
        above.push(name);
        let table = self.table;
        for expr in table.chains[name].rules.iter().flat_map(|r| &r.exprs) {
            if !self.allowed(expr) {
                return Err(refused(EOPNOTSUPP, format!("have {expr} in chain {name}")));
            }
            match expr {
                Expr::Verdict(verdict) => self.verdict(verdict, above)?,
                Expr::VerdictMap { set, .. } => {
                    let mut seen = HashSet::new();
                    for element in table.elements.get(set).into_iter().flatten() {
                        if let Some(Data::Verdict(verdict)) = &element.data
                            && seen.insert(verdict)
                        {
                            self.verdict(verdict, above)?;
                        }
                    }
                }
                _ => {}
            }
        }
        above.pop();
        Ok(())
    }

    fn verdict(&mut self, verdict: &'t Verdict, above: &mut Vec<&'t Name>) -> Result<()> {
        match verdict {
            Verdict::Jump(to) | Verdict::Goto(to) => self.chain(to, above),
            _ => Ok(()),
        }
    }

    fn allowed(&self, expr: &Expr) -> bool {
        let Hook { kind, point, .. } = self.hook;
        match expr {
            Expr::Dnat { .. } => {
                kind == ChainKind::Nat && matches!(point, HookPoint::Prerouting | HookPoint::Output)
            }
            Expr::Masquerade { .. } => kind == ChainKind::Nat && point == HookPoint::Postrouting,
            // A reset answers a packet that came in; in postrouting it is too late for either answer.
            Expr::Reject(Reject::TcpReset | Reject::Unreachable(_)) => {
                matches!(
                    point,
                    HookPoint::Prerouting | HookPoint::Input | HookPoint::Forward | HookPoint::Output
                )
            }
            _ => true,
        }
    }
}
