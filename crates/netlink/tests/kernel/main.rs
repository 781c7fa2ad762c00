//! The wire formats against a real kernel, each test in a network namespace of its own.

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
