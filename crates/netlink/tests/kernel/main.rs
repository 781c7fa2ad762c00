//! Tests of the wire formats with a real kernel. Each test has its own network namespace.

mod conntrack;
mod genl;
mod guest;
mod ipset;
mod ipset_changes;
mod ipvs;
mod monitor;
mod namespace;
mod nfacct;
mod route;
mod xtables;
