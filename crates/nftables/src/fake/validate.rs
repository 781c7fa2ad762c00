//! The kernel's validation before a commit: follows every jump from every base chain (`nft_chain_validate` in
//! net/netfilter/nf_tables_api.c).

use super::{ELOOP, EMLINK, EOPNOTSUPP, refused};
use crate::table::{Name, Table};
use portway_netlink::Result;
use portway_netlink::nft::expr::Reject;
use portway_netlink::nft::{ChainKind, Data, Expr, Hook, HookPoint, Verdict};
use std::collections::HashSet;

/// The deepest nesting of jumps (`NFT_JUMP_STACK_SIZE`).
const DEPTH: usize = 16;

/// Checks that every rule is allowed at the hooks that it is reached from, and that jumps neither loop nor nest too
/// deep.
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
    /// Chains that were validated at this depth.
    done: HashSet<(&'t Name, usize)>,
}

impl<'t> Walk<'t> {
    fn chain(&mut self, name: &'t Name, callers: &mut Vec<&'t Name>) -> Result<()> {
        if callers.contains(&name) {
            return Err(refused(ELOOP, format!("follow the jump to chain {name}")));
        }
        if callers.len() == DEPTH {
            return Err(refused(EMLINK, format!("follow the jump to chain {name}")));
        }
        if !self.done.insert((name, callers.len())) {
            return Ok(());
        }
        callers.push(name);
        let table = self.table;
        for expr in table.chains[name].rules.iter().flat_map(|r| &r.exprs) {
            if !self.allowed(expr) {
                return Err(refused(EOPNOTSUPP, format!("use {expr} in chain {name}")));
            }
            match expr {
                Expr::Verdict(verdict) => self.verdict(verdict, callers)?,
                Expr::VerdictMap { set, .. } => {
                    let mut seen = HashSet::new();
                    for element in table.elements.get(set).into_iter().flatten() {
                        if let Some(Data::Verdict(verdict)) = &element.data
                            && seen.insert(verdict)
                        {
                            self.verdict(verdict, callers)?;
                        }
                    }
                }
                _ => {}
            }
        }
        callers.pop();
        Ok(())
    }

    fn verdict(&mut self, verdict: &'t Verdict, callers: &mut Vec<&'t Name>) -> Result<()> {
        match verdict {
            Verdict::Jump(to) | Verdict::Goto(to) => self.chain(to, callers),
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
            // The kernel allows `reject` at every hook but postrouting.
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
