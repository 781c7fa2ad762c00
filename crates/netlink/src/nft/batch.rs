//! One atomic change: everything in a batch happens, or nothing does.
//!
//! The kernel checks the whole batch before it swaps generations, so packets see either the old rules or the new.
//! Sequence numbers tell which operation a refusal belongs to; only the last one is asked to be acknowledged,
//! because every acknowledgement is a message more.

use super::object::{Chain, Element, Rule, Set};
use super::wire::{
    BATCH_BEGIN, BATCH_END, DELCHAIN, DELRULE, DELSET, DELSETELEM, DELTABLE, NEWCHAIN, NEWRULE, NEWSET,
    NEWSETELEM, NEWTABLE, TABLE, header,
};
use super::{Family, wire};
use crate::message::{ACK, APPEND, Buffer, CREATE, REQUEST, TYPE_ERROR};
use crate::socket::Ack;
use crate::{Error, Result, Socket};

/// A list of elements is one attribute, whose length has sixteen bits; this leaves room for the largest element.
const LIST_LIMIT: usize = 64_000;

/// Operations to be done together.
#[derive(Debug)]
pub struct Batch {
    family: Family,
    table: String,
    buffer: Buffer,
    operations: Vec<String>,
    last: usize,
    sets: u32,
}

impl Batch {
    /// An empty batch for one table.
    pub fn new(family: Family, table: &str) -> Batch {
        Batch::with_capacity(family, table, 0)
    }

    /// An empty batch for one table, with room for so many bytes: a large one grows at no cost.
    pub fn with_capacity(family: Family, table: &str, bytes: usize) -> Batch {
        let mut buffer = Buffer::with_capacity(bytes);
        buffer.message(BATCH_BEGIN, REQUEST, 0, |b| b.raw(&header(0, wire::SUBSYSTEM >> 8)));
        Batch { family, table: table.to_owned(), buffer, operations: Vec::new(), last: 0, sets: 0 }
    }

    /// How many operations it holds.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Makes the table.
    pub fn add_table(&mut self) {
        self.operation(NEWTABLE, CREATE, "add table", |table, b| b.attr_str(TABLE, table));
    }

    /// Removes the table and all in it.
    pub fn delete_table(&mut self) {
        self.operation(DELTABLE, 0, "delete table", |table, b| b.attr_str(TABLE, table));
    }

    /// Makes a chain.
    pub fn add_chain(&mut self, chain: &Chain) {
        let what = format!("add chain {}", chain.name);
        self.operation(NEWCHAIN, CREATE, &what, |table, b| chain.encode(table, b));
    }

    /// Removes a chain and its rules.
    pub fn delete_chain(&mut self, name: &str) {
        self.operation(DELCHAIN, 0, &format!("delete chain {name}"), |table, b| {
            b.attr_str(TABLE, table);
            b.attr_str(3, name);
        });
    }

    /// Removes a chain's rules.
    pub fn flush_chain(&mut self, name: &str) {
        self.operation(DELRULE, 0, &format!("flush chain {name}"), |table, b| {
            b.attr_str(TABLE, table);
            b.attr_str(2, name);
        });
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, chain: &str, rule: &Rule) {
        let what = format!("add rule to chain {chain}");
        self.operation(NEWRULE, CREATE | APPEND, &what, |table, b| rule.encode(table, chain, b));
    }

    /// Makes a set or map.
    pub fn add_set(&mut self, set: &Set) {
        self.sets += 1;
        let id = self.sets;
        let what = format!("add set {}", set.name);
        self.operation(NEWSET, CREATE, &what, |table, b| set.encode(table, id, b));
    }

    /// Removes a set or map and its elements.
    pub fn delete_set(&mut self, name: &str) {
        self.operation(DELSET, 0, &format!("delete set {name}"), |table, b| {
            b.attr_str(TABLE, table);
            b.attr_str(2, name);
        });
    }

    /// Adds elements to a set or map.
    pub fn add_elements<'e>(&mut self, set: &str, elements: impl IntoIterator<Item = &'e Element>) {
        self.elements(NEWSETELEM, CREATE, "add elements to", set, elements);
    }

    /// Removes elements from a set or map.
    pub fn delete_elements<'e>(&mut self, set: &str, elements: impl IntoIterator<Item = &'e Element>) {
        self.elements(DELSETELEM, 0, "delete elements from", set, elements);
    }

    /// The operations so far, as messages.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// Does it all, or nothing; tells how many bytes it took.
    pub fn commit(mut self, socket: &mut Socket) -> Result<usize> {
        if self.operations.is_empty() {
            return Ok(0);
        }
        self.buffer.add_flags(self.last, ACK);
        let end = self.operations.len() as u32 + 1;
        self.buffer.message(BATCH_END, REQUEST, end, |b| b.raw(&header(0, wire::SUBSYSTEM >> 8)));
        socket.send(self.buffer.bytes())?;
        let mut acknowledged = false;
        let mut failure: Option<(u32, Ack)> = None;
        let last = self.operations.len() as u32;
        let read = socket.receive_ready(|m| {
            if m.kind != TYPE_ERROR {
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

    fn operation(&mut self, kind: u16, flags: u16, what: &str, fill: impl FnOnce(&str, &mut Buffer)) {
        self.operations.push(what.to_owned());
        self.last = self.buffer.len();
        let (family, table, seq) = (self.family.number(), &self.table, self.operations.len() as u32);
        self.buffer.message(kind, REQUEST | flags, seq, |b| {
            b.raw(&header(family, 0));
            fill(table, b);
        });
    }

    fn elements<'e>(
        &mut self,
        kind: u16,
        flags: u16,
        what: &str,
        set: &str,
        elements: impl IntoIterator<Item = &'e Element>,
    ) {
        let what = format!("{what} {set}");
        let mut elements = elements.into_iter().peekable();
        while elements.peek().is_some() {
            self.operation(kind, flags, &what, |table, b| {
                b.attr_str(TABLE, table);
                b.attr_str(2, set);
                let list = b.begin_nest(3);
                while let Some(element) = elements.peek() {
                    if b.len() - list > LIST_LIMIT {
                        break;
                    }
                    element.encode(b, kind == NEWSETELEM);
                    elements.next();
                }
                b.end_nest(list);
            });
        }
    }
}
