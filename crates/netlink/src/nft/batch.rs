//! A batch of operations that the kernel applies as one transaction: all of them, or none.
//!
//! The kernel validates the whole batch before it makes the new generation current, so a packet is evaluated with
//! either the old rules or the new ones. The sequence number of an error identifies the operation that was refused.
//! Only the last operation requests an acknowledgement, because every acknowledgement is one more message.

use super::Family;
use super::object::{Chain, Element, Rule, Set};
use super::wire::*;
use crate::message::{Buffer, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NLMSG_ERROR};
use crate::socket::Ack;
use crate::{Error, Result, Socket};

/// A list of elements of more than this many bytes takes no further element. The list is one attribute, which has a
/// 16-bit length; the difference leaves room for the largest element.
const LIST_LIMIT: usize = 64_000;

/// Operations on one table, to be applied as one transaction.
#[derive(Debug)]
pub struct Batch {
    family: Family,
    table: String,
    buffer: Buffer,
    /// Descriptions of the operations. The sequence number of each is its index plus one.
    operations: Vec<String>,
    /// Offset of the last operation's message in `buffer`.
    last: usize,
    /// Number of sets added, which is the id of the last one.
    sets: u32,
}

impl Batch {
    /// An empty batch for one table.
    pub fn new(family: Family, table: &str) -> Batch {
        Batch::with_capacity(family, table, 0)
    }

    /// An empty batch for one table, with memory for this many bytes, so that a large batch is not reallocated.
    pub fn with_capacity(family: Family, table: &str, bytes: usize) -> Batch {
        let mut buffer = Buffer::with_capacity(bytes);
        buffer.message(NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, 0, |b| {
            b.raw(&nfgenmsg(NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES));
        });
        Batch { family, table: table.to_owned(), buffer, operations: Vec::new(), last: 0, sets: 0 }
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Creates the table; an existing table is not changed.
    pub fn add_table(&mut self) {
        self.operation(NFT_MSG_NEWTABLE, NLM_F_CREATE, "add table", |table, b| {
            b.attr_str(NFTA_TABLE_NAME, table);
        });
    }

    /// Deletes the table with all its chains, rules and sets.
    pub fn delete_table(&mut self) {
        self.operation(NFT_MSG_DELTABLE, 0, "delete table", |table, b| b.attr_str(NFTA_TABLE_NAME, table));
    }

    /// Creates a chain.
    pub fn add_chain(&mut self, chain: &Chain) {
        let description = format!("add chain {}", chain.name);
        self.operation(NFT_MSG_NEWCHAIN, NLM_F_CREATE, &description, |table, b| chain.encode(table, b));
    }

    /// Deletes a chain and its rules.
    pub fn delete_chain(&mut self, name: &str) {
        self.operation(NFT_MSG_DELCHAIN, 0, &format!("delete chain {name}"), |table, b| {
            b.attr_str(NFTA_CHAIN_TABLE, table);
            b.attr_str(NFTA_CHAIN_NAME, name);
        });
    }

    /// Deletes the rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        self.operation(NFT_MSG_DELRULE, 0, &format!("flush chain {name}"), |table, b| {
            b.attr_str(NFTA_RULE_TABLE, table);
            b.attr_str(NFTA_RULE_CHAIN, name);
        });
    }

    /// Deletes one rule of a chain.
    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        self.operation(NFT_MSG_DELRULE, 0, &format!("delete rule {handle} of chain {chain}"), |table, b| {
            b.attr_str(NFTA_RULE_TABLE, table);
            b.attr_str(NFTA_RULE_CHAIN, chain);
            b.attr_be64(NFTA_RULE_HANDLE, handle);
        });
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, chain: &str, rule: &Rule) {
        let description = format!("add rule to chain {chain}");
        self.operation(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, &description, |table, b| {
            rule.encode(table, chain, b);
        });
    }

    /// Creates a set or map.
    pub fn add_set(&mut self, set: &Set) {
        self.sets += 1;
        let id = self.sets;
        let description = format!("add set {}", set.name);
        self.operation(NFT_MSG_NEWSET, NLM_F_CREATE, &description, |table, b| set.encode(table, id, b));
    }

    /// Deletes a set or map and its elements.
    pub fn delete_set(&mut self, name: &str) {
        self.operation(NFT_MSG_DELSET, 0, &format!("delete set {name}"), |table, b| {
            b.attr_str(NFTA_SET_TABLE, table);
            b.attr_str(NFTA_SET_NAME, name);
        });
    }

    /// Adds elements to a set or map.
    pub fn add_elements<'e>(&mut self, set: &str, elements: impl IntoIterator<Item = &'e Element>) {
        self.elements(NFT_MSG_NEWSETELEM, NLM_F_CREATE, "add elements to", set, elements);
    }

    /// Deletes elements from a set or map.
    pub fn delete_elements<'e>(&mut self, set: &str, elements: impl IntoIterator<Item = &'e Element>) {
        self.elements(NFT_MSG_DELSETELEM, 0, "delete elements from", set, elements);
    }

    /// The messages so far.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Applies the batch as one transaction; returns the number of bytes sent.
    pub fn commit(mut self, socket: &mut Socket) -> Result<usize> {
        if self.operations.is_empty() {
            return Ok(0);
        }
        self.buffer.add_flags(self.last, NLM_F_ACK);
        let end = self.operations.len() as u32 + 1;
        self.buffer.message(NFNL_MSG_BATCH_END, NLM_F_REQUEST, end, |b| {
            b.raw(&nfgenmsg(NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES));
        });
        socket.send(self.buffer.bytes())?;
        let mut acknowledged = false;
        let mut failure: Option<(u32, Ack)> = None;
        let last = self.operations.len() as u32;
        let read = socket.receive_ready(|m| {
            if m.kind != NLMSG_ERROR {
                return;
            }
            let ack = Ack::parse(&m);
            if ack.errno == 0 {
                acknowledged |= m.seq == last;
            } else if failure.is_none() {
                failure = Some((m.seq, ack));
            }
        });
        if let Some((seq, ack)) = failure {
            return Err(ack.into_result(&self.describe(seq)).err().unwrap_or(Error::Overrun));
        }
        read?;
        if acknowledged { Ok(self.buffer.len()) } else { Err(Error::NoAnswer(self.describe(last))) }
    }

    fn describe(&self, seq: u32) -> String {
        let operation = (seq as usize).checked_sub(1).and_then(|i| self.operations.get(i));
        match operation {
            Some(operation) => format!("{operation} (table {} {})", self.family, self.table),
            None => format!("change table {} {}", self.family, self.table),
        }
    }

    fn operation(&mut self, kind: u16, flags: u16, description: &str, fill: impl FnOnce(&str, &mut Buffer)) {
        self.operations.push(description.to_owned());
        self.last = self.buffer.len();
        let (family, table, seq) = (self.family.number(), &self.table, self.operations.len() as u32);
        self.buffer.message(kind, NLM_F_REQUEST | flags, seq, |b| {
            b.raw(&nfgenmsg(family, 0));
            fill(table, b);
        });
    }

    fn elements<'e>(
        &mut self,
        kind: u16,
        flags: u16,
        description: &str,
        set: &str,
        elements: impl IntoIterator<Item = &'e Element>,
    ) {
        let description = format!("{description} {set}");
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            self.operation(kind, flags, &description, |table, b| {
                b.attr_str(NFTA_SET_ELEM_LIST_TABLE, table);
                b.attr_str(NFTA_SET_ELEM_LIST_SET, set);
                let list = b.begin_nest(NFTA_SET_ELEM_LIST_ELEMENTS);
                while let Some(element) = elements.peek() {
                    if b.len() - list > LIST_LIMIT {
                        break;
                    }
                    element.encode(b, kind == NFT_MSG_NEWSETELEM);
                    elements.next();
                }
                b.end_nest(list);
            });
        }
    }
}
