//! Lists tables, and the chains, rules, sets and elements of one table.

use super::Family;
use super::object::{Chain, Element, Rule, Set};
use super::wire::*;
use crate::message::{Attrs, Buffer, Message, NLM_F_REQUEST, attrs};
use crate::{DecodeError, Error, Result, Socket};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The attributes of a message, which follow its `nfgenmsg`.
pub(super) fn body<'a>(m: &Message<'a>) -> Result<Attrs<'a>, DecodeError> {
    Ok(attrs(m.body.get(NFGENMSG_LEN..).ok_or(DecodeError::Truncated("nf_tables message"))?))
}

/// A table, without its chains and sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// `NFT_TABLE_F_*`, such as dormant or owned by a process.
    pub flags: u32,
    /// The number of its chains, sets and other objects (`NFTA_TABLE_USE`).
    pub objects: u32,
}

/// All tables of a family.
pub fn tables(socket: &mut Socket, family: Family) -> Result<Vec<TableInfo>> {
    let mut tables = Vec::new();
    list(socket, NFT_MSG_GETTABLE, family, None, "list tables", &mut tables, Vec::clear, |tables, body| {
        let number = |kind| body.clone().find(kind).map_or(Ok(0), |a| a.be32("table attribute"));
        tables.push(TableInfo {
            name: body.clone().need(NFTA_TABLE_NAME, "table name")?.str("table name")?.to_owned(),
            flags: number(NFTA_TABLE_FLAGS)?,
            objects: number(NFTA_TABLE_USE)?,
        });
        Ok(())
    })?;
    Ok(tables)
}

/// The chains of a table.
pub fn chains(socket: &mut Socket, family: Family, table: &str) -> Result<Vec<Chain>> {
    let mut chains = Vec::new();
    list(
        socket,
        NFT_MSG_GETCHAIN,
        family,
        Some(table),
        "list chains",
        &mut chains,
        Vec::clear,
        |chains, body| {
            // Not every kernel filters chains by table.
            if body.clone().need(NFTA_CHAIN_TABLE, "chain's table")?.str("chain's table")? == table {
                chains.push(Chain::decode(body)?);
            }
            Ok(())
        },
    )?;
    Ok(chains)
}

/// The rules of a table by chain, in order.
pub fn rules(socket: &mut Socket, family: Family, table: &str) -> Result<BTreeMap<Arc<str>, Vec<Rule>>> {
    let mut rules: BTreeMap<Arc<str>, Vec<Rule>> = BTreeMap::new();
    list(
        socket,
        NFT_MSG_GETRULE,
        family,
        Some(table),
        "list rules",
        &mut rules,
        BTreeMap::clear,
        |rules, body| {
            let (chain, rule) = Rule::decode(body)?;
            rules.entry(chain).or_default().push(rule);
            Ok(())
        },
    )?;
    Ok(rules)
}

/// A rule of any program, as far as it is needed to remove jumps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The kernel's number of the rule.
    pub handle: u64,
    /// The chain that it jumps or goes to, if any.
    pub to: Option<String>,
}

/// The rules of a chain, in order, with the chains that they jump to. Expressions that Portway does not know are ignored,
/// so the rules may be those of any program.
pub fn jumps(socket: &mut Socket, family: Family, table: &str, chain: &str) -> Result<Vec<Jump>> {
    let mut targets = Vec::new();
    socket.dump(
        NFT_MSG_GETRULE,
        &format!("list rules of {chain}"),
        &mut targets,
        |b: &mut Buffer| {
            b.raw(&nfgenmsg(family.number(), 0));
            b.attr_str(NFTA_RULE_TABLE, table);
            b.attr_str(NFTA_RULE_CHAIN, chain);
        },
        Vec::clear,
        |targets, m| {
            let rule = body(&m)?;
            let name = |kind, field| rule.clone().need(kind, field)?.str(field);
            // Not every kernel filters rules by table and chain.
            if name(NFTA_RULE_TABLE, "rule's table")? == table
                && name(NFTA_RULE_CHAIN, "rule's chain")? == chain
            {
                let handle = rule.clone().need(NFTA_RULE_HANDLE, "rule's handle")?.be64("rule's handle")?;
                targets.push(Jump { handle, to: jump_target(rule)? });
            }
            Ok(())
        },
    )?;
    Ok(targets)
}

/// The chain that a rule jumps or goes to: that of the verdict in an `immediate` expression.
fn jump_target(rule: Attrs<'_>) -> Result<Option<String>, DecodeError> {
    let Some(expressions) = rule.find(NFTA_RULE_EXPRESSIONS) else { return Ok(None) };
    for expression in expressions.nested().filter(|a| a.kind == NFTA_LIST_ELEM) {
        let name = expression.nested().need(NFTA_EXPR_NAME, "expression's name")?;
        if name.str("expression's name")? != "immediate" {
            continue;
        }
        let path = [NFTA_EXPR_DATA, NFTA_IMMEDIATE_DATA, NFTA_DATA_VERDICT, NFTA_VERDICT_CHAIN];
        let chain = path.iter().try_fold(expression, |outer, &kind| outer.nested().find(kind));
        if let Some(chain) = chain {
            return Ok(Some(chain.str("verdict's chain")?.to_owned()));
        }
    }
    Ok(None)
}

/// The sets and maps of a table.
pub fn sets(socket: &mut Socket, family: Family, table: &str) -> Result<Vec<Set>> {
    let mut sets = Vec::new();
    list(socket, NFT_MSG_GETSET, family, Some(table), "list sets", &mut sets, Vec::clear, |sets, body| {
        sets.push(Set::decode(body)?);
        Ok(())
    })?;
    Ok(sets)
}

/// The elements of a set or map.
pub fn elements(socket: &mut Socket, family: Family, table: &str, set: &str) -> Result<Vec<Element>> {
    let mut elements = Vec::new();
    socket.dump(
        NFT_MSG_GETSETELEM,
        &format!("list elements of {set}"),
        &mut elements,
        |b: &mut Buffer| {
            b.raw(&nfgenmsg(family.number(), 0));
            b.attr_str(NFTA_SET_ELEM_LIST_TABLE, table);
            b.attr_str(NFTA_SET_ELEM_LIST_SET, set);
        },
        Vec::clear,
        |elements, m| decode_elements(body(&m)?, elements),
    )?;
    Ok(elements)
}

/// Decodes the elements of one message.
pub fn decode_elements(body: Attrs<'_>, into: &mut Vec<Element>) -> Result<(), DecodeError> {
    let Some(list) = body.find(NFTA_SET_ELEM_LIST_ELEMENTS) else { return Ok(()) };
    for element in list.nested().filter(|a| a.kind == NFTA_LIST_ELEM) {
        into.push(Element::decode(element)?);
    }
    Ok(())
}

/// The generation of the ruleset, which every transaction of any process increments.
pub fn generation(socket: &mut Socket) -> Result<u32> {
    let seq = socket.next_seq();
    let mut buffer = Buffer::default();
    buffer.message(NFT_MSG_GETGEN, NLM_F_REQUEST, seq, |b| b.raw(&nfgenmsg(NFPROTO_UNSPEC, 0)));
    socket.send(buffer.bytes())?;
    let mut answer = None;
    socket.receive_ready(|m| {
        if m.seq == seq && m.kind == NFT_MSG_NEWGEN {
            answer = body(&m).and_then(|b| b.need(NFTA_GEN_ID, "generation")?.be32("generation")).ok();
        }
    })?;
    answer.ok_or_else(|| Error::NoAnswer("read the ruleset's generation".into()))
}

/// Decodes one message according to its type, for fuzz targets and tests.
pub fn decode_any(m: &Message<'_>) -> Result<(), DecodeError> {
    let body = body(m)?;
    match m.kind {
        NFT_MSG_NEWCHAIN => Chain::decode(body).map(drop),
        NFT_MSG_NEWRULE => Rule::decode(body).map(drop),
        NFT_MSG_NEWSET => Set::decode(body).map(drop),
        NFT_MSG_NEWSETELEM => decode_elements(body, &mut Vec::new()),
        _ => super::monitor::Change::decode(m).map(drop),
    }
}

#[expect(clippy::too_many_arguments, reason = "one call per listing, all in this file")]
fn list<S>(
    socket: &mut Socket,
    kind: u16,
    family: Family,
    table: Option<&str>,
    operation: &str,
    state: &mut S,
    restart: impl Fn(&mut S),
    each: impl Fn(&mut S, Attrs<'_>) -> Result<(), DecodeError>,
) -> Result<()> {
    socket.dump(
        kind,
        operation,
        state,
        |b: &mut Buffer| {
            b.raw(&nfgenmsg(family.number(), 0));
            if let Some(table) = table {
                // The table's attribute has the same number in requests for chains, rules and sets.
                b.attr_str(NFTA_TABLE_NAME, table);
            }
        },
        restart,
        |state, m| each(state, body(&m)?),
    )
}
