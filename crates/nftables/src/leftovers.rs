//! Tables that this mode, ours or kube-proxy's, left behind.

use crate::commit::diagnose;
use portway_dataplane::{Clear, Error};
use portway_model::Family;
use portway_netlink::nft::{self, Batch, list};
use portway_netlink::{Protocol, Socket};

/// What there is of a table, in words; gone afterwards if so wished.
pub fn clear(family: Family, table: &str, how: Clear) -> Result<Vec<String>, Error> {
    let (nft_family, word) = match family {
        Family::V4 => (nft::Family::Ipv4, "ip"),
        Family::V6 => (nft::Family::Ipv6, "ip6"),
    };
    let refused = |e| diagnose(nft_family, e, || crate::probe::missing(nft_family));
    let mut socket = Socket::open(Protocol::Netfilter).map_err(refused)?;
    let tables = match list::tables(&mut socket, nft_family).map_err(refused) {
        // A kernel without tables has none of ours.
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
