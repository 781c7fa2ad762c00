//! A change of one resource, as a list and watch tells it.

/// What happened to objects of one resource. A relist is in the type: every object that is not applied between
/// [`Event::Init`] and [`Event::InitDone`] is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<R> {
    /// A complete list begins. It may begin anew before it is complete.
    Init,
    /// An object exists, new or changed.
    Apply(R),
    /// The list is complete.
    InitDone,
    /// An object is gone.
    Delete {
        /// Its namespace; empty for cluster-scoped resources.
        namespace: String,
        /// Its name.
        name: String,
    },
}
