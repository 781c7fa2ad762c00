//! Patches, where recorded answers do not show it.

use super::*;
use crate::schema;
use proptest::prelude::*;
use serde_json::json;

fn merged(target: Value, patch: Value) -> Value {
    let mut target = target;
    apply_merge(&mut target, &patch);
    target
}

#[test]
fn merge_patches_are_those_of_the_rfc() {
    // The table of RFC 7386, appendix A.
    for (target, patch, result) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        assert_eq!(merged(target.clone(), patch.clone()), result, "{target} and {patch}");
    }
}

#[test]
fn a_json_patch_that_fails_changes_nothing() {
    let mut target = json!({"a": [1, 2]});
    let patch = json!([
        {"op": "add", "path": "/a/-", "value": 3},
        {"op": "test", "path": "/a/2", "value": 4},
    ]);
    let error = apply_json(&mut target, &patch).expect_err("the test");
    assert!(error.to_string().contains("\"/a/2\""), "{error}");
    assert_eq!(target, json!({"a": [1, 2]}));
}

#[test]
fn paths_of_json_patches_are_decoded() {
    let mut target = json!({"a/b": {"m~n": [0, 1]}});
    let patch = json!([
        {"op": "move", "from": "/a~1b/m~0n/1", "path": "/c"},
        {"op": "copy", "from": "/c", "path": "/d"},
        {"op": "replace", "path": "/a~1b/m~0n/0", "value": 7},
    ]);
    apply_json(&mut target, &patch).expect("a patch");
    assert_eq!(target, json!({"a/b": {"m~n": [7]}, "c": 1, "d": 1}));
    for path in ["/a~1b/m~0n/00", "/a~1b/m~0n/-2", "/a~1b/m~0n/1", "/c/x", "c", ""] {
        let patch = json!([{"op": "replace", "path": path, "value": 1}]);
        assert!(apply_json(&mut target, &patch).is_err(), "{path}");
    }
}

#[test]
fn items_of_the_server_stay_where_they_were_when_a_list_is_ordered() {
    let pod = schema::find("core", "Pod").expect("a type");
    let names = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    let mut target = json!({"spec": {"containers": names(&["server-first", "a", "b", "server-last"])}});
    let patch = json!({"spec": {
        "$setElementOrder/containers": names(&["b", "c", "a"]),
        "containers": [{"name": "c", "image": "new"}],
    }});
    apply_strategic(pod, &mut target, &patch).expect("a patch");
    let found: Vec<&str> = target["spec"]["containers"]
        .as_array()
        .expect("containers")
        .iter()
        .filter_map(|container| container["name"].as_str())
        .collect();
    assert_eq!(found, ["server-first", "b", "c", "a", "server-last"]);
}

#[test]
fn a_json_patch_cannot_make_an_object_grow_without_end() {
    let copy = json!({"op": "copy", "from": "/a", "path": "/a/-"});
    let mut patch = vec![json!({"op": "add", "path": "/a", "value": [1]})];
    patch.extend(std::iter::repeat_n(copy, 40));
    let mut target = json!({});
    let error = apply_json(&mut target, &Value::from(patch)).expect_err("too much");
    assert!(matches!(error, PatchError::Malformed(_)), "{error}");
    let mut target = json!({"n": {}});
    let mut path = "/n".to_owned();
    for _ in 0..200 {
        path += "/a";
        let patch = json!([{"op": "add", "path": path, "value": {}}]);
        if apply_json(&mut target, &patch).is_err() {
            return;
        }
    }
    panic!("nested without an end");
}

#[test]
fn a_list_that_is_new_is_taken_as_it_is() {
    let pod = schema::find("core", "Pod").expect("a type");
    let mut target = json!({"spec": {"containers": [{"name": "a"}]}});
    let ports = json!([
        {"containerPort": 53, "protocol": "UDP", "name": null},
        {"containerPort": 53, "protocol": "TCP"},
        {"containerPort": 54, "$patch": "delete"},
    ]);
    let patch = json!({"spec": {"containers": [{"name": "a", "ports": ports}], "securityContext": {"$patch": "delete"}}});
    apply_strategic(pod, &mut target, &patch).expect("a patch");
    let expected =
        json!([{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]);
    assert_eq!(target, json!({"spec": {"containers": [{"name": "a", "ports": expected}]}}));
}

#[test]
fn a_field_that_is_null_need_not_be_retained() {
    let deployment = schema::find("apps", "Deployment").expect("a type");
    let mut target =
        json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    // As kubectl apply sends it.
    let strategy = json!({"$retainKeys": ["type"], "rollingUpdate": null, "type": "Recreate"});
    apply_strategic(deployment, &mut target, &json!({"spec": {"strategy": strategy}})).expect("a patch");
    assert_eq!(target, json!({"spec": {"strategy": {"type": "Recreate"}}}));
}

#[test]
fn an_item_of_a_list_cannot_ask_to_be_merged() {
    let pod = schema::find("core", "Pod").expect("a type");
    let mut target = json!({"spec": {"containers": [{"name": "a"}]}});
    let patch = json!({"spec": {"containers": [{"name": "a", "image": "x", "$patch": "merge"}]}});
    assert!(apply_strategic(pod, &mut target, &patch).is_err());
}

/// Any patch of a Pod, also one that makes no sense.
fn any_patch() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![Just(Value::Null), any::<u8>().prop_map(Value::from), "[a-c]".prop_map(Value::from)];
    leaf.prop_recursive(5, 32, 4, |inner| {
        let names = vec![
            "metadata",
            "labels",
            "finalizers",
            "spec",
            "containers",
            "name",
            "ports",
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$deleteFromPrimitiveList/finalizers",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(names), inner, 0..4).prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
            }),
        ]
    })
}

proptest! {
    /// No patch leads to a panic, and one without directives and nulls changes nothing when it is applied again.
    #[test]
    fn any_strategic_patch_is_applied_or_refused(patch in any_patch()) {
        let pod = schema::find("core", "Pod").expect("a type");
        let mut target = json!({
            "metadata": {"labels": {"a": "b"}, "finalizers": ["a", "b"]},
            "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 1}]}, {"name": "b"}]},
        });
        if apply_strategic(pod, &mut target, &patch).is_ok() {
            let once = target.clone();
            let is_plain = !patch.to_string().contains('$') && !patch.to_string().contains("null");
            if apply_strategic(pod, &mut target, &patch).is_ok() && is_plain {
                prop_assert_eq!(target, once);
            }
        }
    }

    #[test]
    fn any_json_patch_is_applied_or_refused(
        operations in prop::collection::vec(
            ("add|remove|replace|move|copy|test|x", "(/(a|b|0|1|-|~1)){0,3}", "(/(a|b|0))?", any::<u8>()), 0..5),
    ) {
        let operation = |(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value});
        let patch: Vec<Value> = operations.into_iter().map(operation).collect();
        let mut target = json!({"a": [0, {"b": 1}], "b": {"a": []}});
        let before = target.clone();
        if apply_json(&mut target, &Value::from(patch)).is_err() {
            prop_assert_eq!(target, before);
        }
    }
}
