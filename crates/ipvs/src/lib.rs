//! What kube-proxy's ipvs mode leaves behind: virtual servers, sets, and the device that holds their addresses.
//!
//! The mode itself is not built yet.

pub mod leftovers;
