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

impl<R> Event<R> {
    /// The same event of another form of its object.
    pub fn map<T>(self, form: impl FnOnce(R) -> T) -> Event<T> {
        match self {
            Event::Init => Event::Init,
            Event::Apply(object) => Event::Apply(form(object)),
            Event::InitDone => Event::InitDone,
            Event::Delete { namespace, name } => Event::Delete { namespace, name },
        }
    }

    /// The same event with a reference to its object.
    pub fn as_ref(&self) -> Event<&R> {
        match self {
            Event::Init => Event::Init,
            Event::Apply(object) => Event::Apply(object),
            Event::InitDone => Event::InitDone,
            Event::Delete { namespace, name } => {
                Event::Delete { namespace: namespace.clone(), name: name.clone() }
            }
        }
    }
}
