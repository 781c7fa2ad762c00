//! Tables that an earlier run of this mode, or kube-proxy, left behind.

use crate::commit::diagnose;
use portway_dataplane::{Clear, Error, Location};
use portway_model::Family;
use portway_netlink::nft::{self, Batch, list};
use portway_netlink::{Protocol, Socket};

/// A table of one family, as a place that this mode or kube-proxy keeps rules in.
pub fn location(table: &str, family: Family) -> Location {
    Location { label: format!("nftables {family}"), id: table.to_owned(), family: Some(family) }
}

/// The table in words, if it is there; removed afterwards unless `how` says to look.
pub fn clear(family: Family, table: &str, how: Clear) -> Result<Vec<String>, Error> {
    let (nft_family, word) = match family {
        Family::V4 => (nft::Family::Ipv4, "ip"),
        Family::V6 => (nft::Family::Ipv6, "ip6"),
    };
    let refused = |e| diagnose(nft_family, e, || crate::probe::missing(nft_family));
    let mut socket = Socket::open(Protocol::Netfilter).map_err(refused)?;
    let tables = match list::tables(&mut socket, nft_family).map_err(refused) {
        // A kernel without nf_tables has no table.
        Err(Error::Unsupported { .. }) => return Ok(Vec::new()),
        tables => tables?,
    };
    let Some(info) = tables.iter().find(|t| t.name == table) else { return Ok(Vec::new()) };
    if how != Clear::Look {
        let mut batch = Batch::new(nft_family, table);
        batch.delete_table();
        match batch.commit(&mut socket) {
            Err(e) if !e.is_not_found() => return Err(refused(e)),
            _ => {}
        }
    }
    Ok(vec![format!("table {word} {table} with {} chains, sets and maps", info.objects)])
}
