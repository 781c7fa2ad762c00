//! The client against a server that the test plays.

mod api;
mod watches;
mod writes;
