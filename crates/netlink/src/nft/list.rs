//! Listing what a table holds.

use super::object::{Chain, Element, Rule, Set};
use super::wire::{
    GETCHAIN, GETGEN, GETRULE, GETSET, GETSETELEM, GETTABLE, LIST_ELEM, NEWGEN, TABLE, header,
};
use super::{Family, wire};
use crate::message::{Attr, Attrs, Buffer, Message, REQUEST, attrs};
use crate::{Error, Malformed, Result, Socket};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is behind the `nfgenmsg` of a message.
pub(super) fn body<'a>(m: &Message<'a>) -> Result<Attrs<'a>, Malformed> {
    Ok(attrs(m.body.get(4..).ok_or(Malformed::Short("nf_tables message"))?))
}

/// A table, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// `NFT_TABLE_F_*`: dormant, owned.
    pub flags: u32,
    /// How many chains, sets and other objects it holds.
    pub objects: u32,
}

/// All tables of a family.
pub fn tables(socket: &mut Socket, family: Family) -> Result<Vec<TableInfo>> {
    let mut tables = Vec::new();
    list(socket, GETTABLE, family, None, "list tables", &mut tables, Vec::clear, |tables, body| {
        let number = |kind| body.clone().find(kind).map_or(Ok(0), |a| a.be32("table attribute"));
        tables.push(TableInfo {
            name: body.clone().need(TABLE, "table name")?.str("table name")?.to_owned(),
            flags: number(2)?,
            objects: number(3)?,
        });
        Ok(())
    })?;
    Ok(tables)
}

/// The chains of a table.
pub fn chains(socket: &mut Socket, family: Family, table: &str) -> Result<Vec<Chain>> {
    let mut chains = Vec::new();
    list(socket, GETCHAIN, family, Some(table), "list chains", &mut chains, Vec::clear, |chains, body| {
        // Not every kernel filters chains by table.
        if body.clone().need(TABLE, "chain's table")?.str("chain's table")? == table {
            chains.push(Chain::decode(body)?);
        }
        Ok(())
    })?;
    Ok(chains)
}

/// The rules of a table by chain, in order.
pub fn rules(socket: &mut Socket, family: Family, table: &str) -> Result<BTreeMap<Arc<str>, Vec<Rule>>> {
    let mut rules: BTreeMap<Arc<str>, Vec<Rule>> = BTreeMap::new();
    list(socket, GETRULE, family, Some(table), "list rules", &mut rules, BTreeMap::clear, |rules, body| {
        let (chain, rule) = Rule::decode(body)?;
        rules.entry(chain).or_default().push(rule);
        Ok(())
    })?;
    Ok(rules)
}

/// Where each rule of a chain leads to, in order, whoever's it is and whatever else it says: the chain it jumps or goes
/// to, if any.
pub fn leads(socket: &mut Socket, family: Family, table: &str, chain: &str) -> Result<Vec<Option<String>>> {
    let mut leads = Vec::new();
    socket.dump(
        GETRULE,
        &format!("list rules of {chain}"),
        &mut leads,
        |b: &mut Buffer| {
            b.raw(&header(family.number(), 0));
            b.attr_str(TABLE, table);
            b.attr_str(2, chain);
        },
        Vec::clear,
        |leads, m| {
            let rule = body(&m)?;
            let of = |kind, what| rule.clone().need(kind, what)?.str(what);
            // Not every kernel filters rules by table and chain.
            if of(TABLE, "rule's table")? == table && of(2, "rule's chain")? == chain {
                leads.push(lead(rule)?);
            }
            Ok(())
        },
    )?;
    Ok(leads)
}

/// The chain that a rule leads to: the verdict of an `immediate` expression may name one.
fn lead(rule: Attrs<'_>) -> Result<Option<String>, Malformed> {
    let Some(expressions) = rule.find(4) else { return Ok(None) };
    for expression in expressions.nested().filter(|a| a.kind == LIST_ELEM) {
        if expression.nested().need(1, "expression's name")?.str("expression's name")? != "immediate" {
            continue;
        }
        // Its data holds a value, which holds a verdict, which holds a chain.
        let chain = (0..3).try_fold(expression, |outer: Attr<'_>, _| outer.nested().find(2));
        if let Some(chain) = chain.and_then(|verdict| verdict.nested().find(2)) {
            return Ok(Some(chain.str("verdict's chain")?.to_owned()));
        }
    }
    Ok(None)
}

/// The sets and maps of a table.
pub fn sets(socket: &mut Socket, family: Family, table: &str) -> Result<Vec<Set>> {
    let mut sets = Vec::new();
    list(socket, GETSET, family, Some(table), "list sets", &mut sets, Vec::clear, |sets, body| {
        sets.push(Set::decode(body)?);
        Ok(())
    })?;
    Ok(sets)
}

/// The elements of a set or map.
pub fn elements(socket: &mut Socket, family: Family, table: &str, set: &str) -> Result<Vec<Element>> {
    let mut elements = Vec::new();
    socket.dump(
        GETSETELEM,
        &format!("list elements of {set}"),
        &mut elements,
        |b: &mut Buffer| {
            b.raw(&header(family.number(), 0));
            b.attr_str(TABLE, table);
            b.attr_str(2, set);
        },
        Vec::clear,
        |elements, m| decode_elements(body(&m)?, elements),
    )?;
    Ok(elements)
}

/// Reads the elements of one message.
pub fn decode_elements(body: Attrs<'_>, into: &mut Vec<Element>) -> Result<(), Malformed> {
    let Some(list) = body.find(3) else { return Ok(()) };
    for element in list.nested().filter(|a| a.kind == LIST_ELEM) {
        into.push(Element::decode(element)?);
    }
    Ok(())
}

/// The ruleset's generation: every change by anybody raises it.
pub fn generation(socket: &mut Socket) -> Result<u32> {
    let seq = socket.next_seq();
    let mut buffer = Buffer::default();
    buffer.message(GETGEN, REQUEST, seq, |b| b.raw(&header(0, 0)));
    socket.send(buffer.bytes())?;
    let mut answer = None;
    socket.receive_ready(|m| {
        if m.seq == seq && m.kind == NEWGEN {
            answer = body(&m).and_then(|b| b.need(1, "generation")?.be32("generation")).ok();
        }
    })?;
    answer.ok_or_else(|| Error::NoAnswer("read the ruleset's generation".into()))
}

/// Decodes one message as whatever its type says, for the fuzzer and the monitor's tests.
pub fn decode_any(m: &Message<'_>) -> Result<(), Malformed> {
    let body = body(m)?;
    match m.kind & !wire::SUBSYSTEM {
        3 => Chain::decode(body).map(drop),
        6 => Rule::decode(body).map(drop),
        9 => Set::decode(body).map(drop),
        12 => decode_elements(body, &mut Vec::new()),
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
    each: impl Fn(&mut S, Attrs<'_>) -> Result<(), Malformed>,
) -> Result<()> {
    socket.dump(
        kind,
        operation,
        state,
        |b: &mut Buffer| {
            b.raw(&header(family.number(), 0));
            if let Some(table) = table {
                b.attr_str(TABLE, table);
            }
        },
        restart,
        |state, m| each(state, body(&m)?),
    )
}
