use lepus_shards::topology::ApplyTo;
use lepus_storage::{DataDir, DataDirError};

use super::*;
use crate::test_dir::TestDir;

fn policy(name: &str, pattern: &str, text: &str) -> Policy {
    let definition = definition(text).unwrap();
    Policy { name: name.into(), pattern: pattern.into(), apply_to: ApplyTo::Queues, priority: 7, definition }
}

fn listed(path: &Path) -> Vec<(String, PolicyOf, Policy)> {
    let stored = StoredPolicies::open(path, "/").unwrap();
    stored.all().map(|(vhost, of, policy)| (vhost.to_owned(), of, policy.clone())).collect()
}

#[test]
fn what_is_set_is_there_when_the_directory_is_opened_again() {
    let folder = TestDir::new();
    let lengths = policy("lengths", "^q", r#"{"max-length": 5, "overflow": "reject-publish"}"#);
    let bound = policy("bound", "", r#"{"expires": 9}"#);
    {
        let mut stored = StoredPolicies::open(folder.path(), "/").unwrap();
        stored.set(PolicyOf::User, policy("lengths", "^other", r#"{"max-length": 1}"#)).unwrap();
        stored.set(PolicyOf::User, lengths.clone()).unwrap();
    }
    StoredPolicies::open(folder.path(), "late").unwrap().set(PolicyOf::Operator, bound.clone()).unwrap();
    let expected =
        [("/".to_owned(), PolicyOf::User, lengths), ("late".to_owned(), PolicyOf::Operator, bound)];
    assert_eq!(listed(folder.path()), expected);
    StoredPolicies::open(folder.path(), "/").unwrap().clear(PolicyOf::User, "lengths").unwrap();
    assert_eq!(listed(folder.path()), expected[1..]);
}

#[test]
fn what_is_refused_changes_nothing() {
    let folder = TestDir::new();
    let mut stored = StoredPolicies::open(folder.path(), "/").unwrap();
    let said = |result: Result<(), PolicyError>| result.unwrap_err().to_string();
    assert_eq!(
        said(stored.set(PolicyOf::User, policy("p", "", r#"{"max-length": -1}"#))),
        "-1 is not a valid maximum length"
    );
    assert!(said(stored.set(PolicyOf::User, policy("p", "(", r#"{"max-length": 1}"#))).contains("pattern"));
    assert_eq!(said(stored.clear(PolicyOf::User, "p")), "no policy 'p' in vhost '/'");
    assert_eq!(said(stored.clear(PolicyOf::Operator, "p")), "no operator policy 'p' in vhost '/'");
    drop(stored);
    assert!(listed(folder.path()).is_empty());
}

#[test]
fn a_directory_that_is_in_use_or_not_there_is_refused() {
    let folder = TestDir::new();
    let held = DataDir::open(folder.path()).unwrap();
    let in_use = StoredPolicies::open(folder.path(), "/").err().unwrap();
    assert!(
        matches!(in_use, PolicyError::Stored(StoredTopologyError::DataDir(DataDirError::Locked { .. }))),
        "{in_use}"
    );
    drop(held);
    let missing = folder.path().join("missing");
    let refused = StoredPolicies::open(&missing, "/");
    assert!(matches!(refused, Err(PolicyError::Stored(StoredTopologyError::Missing { .. }))));
    assert!(!missing.exists(), "a wrong name leaves nothing behind");
}

#[test]
fn definitions_are_json_objects_both_ways() {
    for text in [r#"{"max-length":1000}"#, r#"{"delivery-limit":-1,"overflow":"drop-head"}"#] {
        assert_eq!(definition_text(&definition(text).unwrap()), text);
    }
    for text in ["", "5", "[]", "max-length=5", r#"{"max-length":5"#] {
        let said = definition(text).unwrap_err().to_string();
        assert!(said.starts_with("the definition must be a JSON object"), "{said}");
    }
    // Whatever else JSON has reaches the rules, which refuse it.
    let odd = definition(r#"{"a":[1,null],"b":{"c":true},"d":1.5,"e":18446744073709551615}"#).unwrap();
    assert_eq!(odd["a"], Value::Array(vec![Value::I64(1), Value::Void]));
    assert_eq!((&odd["d"], &odd["e"]), (&Value::F64(1.5), &Value::F64(18_446_744_073_709_551_615.0)));
}
