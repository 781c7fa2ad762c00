//! Changes to the objects of one resource, as a list and watch reports them.

/// A change to the objects of one resource. A relist has events of its own: an object that is not applied between
/// [`Event::Init`] and [`Event::InitDone`] does not exist any more.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<R> {
    /// A complete list begins. It may start over, with another `Init`, before it is complete.
    Init,
    /// An object is in the list, or was created or changed.
    Apply(R),
    /// The list is complete.
    InitDone,
    /// An object was deleted.
    Delete {
        /// Its namespace; empty for cluster-scoped resources.
        namespace: String,
        /// Its name.
        name: String,
    },
}
