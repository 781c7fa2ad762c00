//! Tests of `subsets`.

use super::*;
use portway_api::ObjectReference;
use proptest::prelude::*;

fn subsets() -> impl Strategy<Value = Vec<EndpointSubset>> {
    let address = (0u8..6, 0u8..2).prop_map(|(ip, target)| EndpointAddress {
        ip: format!("10.0.0.{ip}"),
        target_ref: (target > 0).then(|| ObjectReference { uid: format!("{ip}"), ..Default::default() }),
        ..EndpointAddress::default()
    });
    let addresses = prop::collection::vec(address, 0..5).boxed();
    let port =
        (0i32..4).prop_map(|port| SubsetPort { port, protocol: "TCP".to_owned(), ..Default::default() });
    let subset = (addresses.clone(), addresses, prop::collection::vec(port, 0..3)).prop_map(
        |(addresses, not_ready_addresses, ports)| EndpointSubset { addresses, not_ready_addresses, ports },
    );
    prop::collection::vec(subset, 0..4)
}

proptest! {
    /// The canonical form of a canonical form is the same, so that what was written is not written again.
    #[test]
    fn canonical_subsets_stay_as_they_are(subsets in subsets()) {
        let once = canonical(subsets);
        prop_assert_eq!(canonical(once.clone()), once);
    }

    /// The order of subsets does not matter.
    #[test]
    fn the_order_does_not_matter(mut subsets in subsets()) {
        let once = canonical(subsets.clone());
        subsets.reverse();
        prop_assert_eq!(canonical(subsets), once);
    }
}
