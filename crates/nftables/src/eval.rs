//! Following a packet through the rules.
