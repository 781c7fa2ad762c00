//! Removes the tables that an earlier run of this mode, or of kube-proxy, did not delete.

use crate::commit::diagnose;
use portway_dataplane::{Clear, Error, Location};
use portway_model::Family;
use portway_netlink::nft::{self, Batch, list};
use portway_netlink::{Protocol, Socket};

/// The location of a table of Portway or kube-proxy in one family.
pub fn location(table: &str, family: Family) -> Location {
    Location { label: format!("nftables {family}"), id: table.to_owned(), family: Some(family) }
}

/// Describes the table, if it exists. Deletes it unless `how` is [`Clear::List`].
pub fn clear(family: Family, table: &str, how: Clear) -> Result<Vec<String>, Error> {
    let (nft_family, family_name) = match family {
        Family::V4 => (nft::Family::Ipv4, "ip"),
        Family::V6 => (nft::Family::Ipv6, "ip6"),
    };
    let kernel_error = |e| diagnose(nft_family, e, || crate::probe::missing_feature(nft_family));
    let mut socket = Socket::open(Protocol::Netfilter).map_err(kernel_error)?;
    let tables = match list::tables(&mut socket, nft_family).map_err(kernel_error) {
        // A kernel without nf_tables has no tables.
        Err(Error::Unsupported { .. }) => return Ok(Vec::new()),
        tables => tables?,
    };
    let Some(info) = tables.iter().find(|t| t.name == table) else { return Ok(Vec::new()) };
    if how != Clear::List {
        let mut batch = Batch::new(nft_family, table);
        batch.delete_table();
        match batch.commit(&mut socket) {
            Err(e) if !e.is_not_found() => return Err(kernel_error(e)),
            _ => {}
        }
    }
    Ok(vec![format!("table {family_name} {table} with {} chains, sets and maps", info.objects)])
}
