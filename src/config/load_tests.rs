use super::*;
use crate::config::{CpuList, Durability, MemoryBudget};
use crate::test_dir::TestDir;

/// Loads a file of this text, these variables and these `--set`s.
fn load(text: &str, variables: &[(&str, &str)], sets: &[&str]) -> Result<Config, String> {
    let dir = TestDir::new();
    let path = dir.path().join("lepus.toml");
    fs::write(&path, text).unwrap();
    let sources = Sources {
        file: Some(&path),
        environment: variables.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        flags: sets.iter().map(|set| Assignment::from_set(set).unwrap()).collect(),
    };
    Config::load(&sources).map_err(|error| {
        let text = error.to_string();
        assert!(!text.contains('\n'), "one line: {text}");
        text.replace(dir.path().to_str().unwrap(), "DIR")
    })
}

fn error(text: &str) -> String {
    load(text, &[], &[]).unwrap_err()
}

#[test]
fn nothing_given_is_the_default() {
    assert_eq!(Config::load(&Sources::default()).unwrap(), Config::default());
    assert_eq!(load("", &[("PATH", "/bin"), ("LEPUS_CONFIG", "x.toml")], &[]), Ok(Config::default()));
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let file = "[amqp]\nheartbeat_s = 1\nchannel_max = 1\nframe_max_bytes = 4096\n";
    let environment = [("LEPUS_AMQP_HEARTBEAT_S", "2"), ("LEPUS_AMQP_CHANNEL_MAX", "2")];
    let config = load(file, &environment, &["amqp.heartbeat_s=3"]).unwrap();
    assert_eq!((config.heartbeat_s, config.channel_max, config.frame_max_bytes), (3, 2, 4096));
}

#[test]
fn every_key_can_be_set_by_each_source() {
    use crate::config::values::Shown;
    for key in KEYS {
        let shown = match (key.show)(&Config::default()) {
            Shown::Set(value) => value,
            Shown::Unset { example } => example.to_owned(),
        };
        let text = shown.trim_matches(['"', '[', ']']).replace('"', "");
        let expected = load("", &[], &[&format!("{}={text}", key.name)]).unwrap();
        assert_eq!(load("", &[(&key.variable(), &text)], &[]).as_ref(), Ok(&expected), "{}", key.name);
        assert_eq!(
            load(&format!("{} = {shown}", key.name), &[], &[]).as_ref(),
            Ok(&expected),
            "{}",
            key.name
        );
    }
}

#[test]
fn an_unknown_key_of_the_file_is_named_with_its_line_and_the_nearest_one() {
    assert_eq!(
        error("# hello\n\n[amqp]\nheartbeat = 10\n"),
        "DIR/lepus.toml:4: there is no key `amqp.heartbeat`; the nearest one is `amqp.heartbeat_s`"
    );
    assert_eq!(
        error("default_user = 'x'\n"),
        "DIR/lepus.toml:1: there is no key `default_user`; the nearest one is `auth.default_user`"
    );
    assert!(error("datadir = 'x'\n").ends_with("`data_dir`"));
    assert!(error("[ampq]\nproduct = 'x'\n").contains(":2: there is no key `ampq.product`"));
    assert!(
        error("listen = []\n[nothing]\n").contains("listen"),
        "mistakes are reported in the file's order"
    );
    assert!(error("[nothing]\n").contains("`nothing`"));
    assert!(error("amqp = 1\n").contains("there is no key `amqp`"));
    assert_eq!(load("[amqp]\n", &[], &[]), Ok(Config::default()));
}

#[test]
fn an_unknown_variable_is_named_with_the_nearest_one() {
    let error = load("", &[("LEPUS_DATADIR", "x")], &[]).unwrap_err();
    assert_eq!(
        error,
        "environment variable LEPUS_DATADIR: there is no key `LEPUS_DATADIR`; the nearest one is `data_dir` \
         (LEPUS_DATA_DIR)"
    );
    let error = load("", &[("LEPUS_DEFAULT_PASS", "x")], &[]).unwrap_err();
    assert!(error.ends_with("(LEPUS_AUTH_DEFAULT_PASS)"), "{error}");
}

#[test]
fn an_unknown_key_of_a_flag_is_named_with_the_nearest_one() {
    let error = load("", &[], &["shard=2"]).unwrap_err();
    assert_eq!(error, "--set: there is no key `shard`; the nearest one is `shards`");
}

#[test]
fn a_bad_value_is_named_with_what_is_accepted() {
    assert_eq!(
        error("[amqp]\nchannel_max = 70_000 # many\n"),
        "DIR/lepus.toml:2: `amqp.channel_max` is 70_000, but must be an integer from 1 to 65535"
    );
    assert_eq!(
        load("", &[("LEPUS_LISTEN", "localhost")], &[]).unwrap_err(),
        "environment variable LEPUS_LISTEN: `listen` is localhost, but must be one or more of ADDRESS:PORT, for \
         instance 127.0.0.1:5672 or [::1]:5672"
    );
    assert_eq!(
        load("", &[], &["shards=none"]).unwrap_err(),
        "--set: `shards` is none, but must be an integer from 1 to 1024"
    );
}

#[test]
fn values_outside_of_their_bounds_are_refused() {
    for text in [
        "shards = 0",
        "shards = 1025",
        "shards = '2'",
        "cpus = '1,1'",
        "cpus = []",
        "listen = []",
        "listen = '127.0.0.1:5672'",
        "data_dir = ''",
        "durability = 'disk'",
        "memory_budget = '91%'",
        "segment_mib = 0",
        "memory_budget = 1000",
        "log_level = 'loud'",
        "amqp.channel_max = 0",
        "amqp.heartbeat_s = -1",
        "amqp.heartbeat_s = 1.5",
        "amqp.frame_max_bytes = 4095",
        "amqp.max_message_bytes = 0",
        "auth.default_user = ''",
        "auth.loopback_users = [1]",
        "auth.default_user = { x = 1 }",
        "runtime.spin_before_park_us = 1000001",
    ] {
        let error = error(text);
        assert!(error.contains("but must be"), "{text}: {error}");
    }
}

#[test]
fn a_long_value_is_cut_and_stays_on_one_line() {
    let error = error(&format!("cpus = '''\n{}'''\n", "x\n".repeat(500)));
    assert!(error.len() < 250 && error.contains("..."), "{error}");
}

#[test]
fn a_password_does_not_appear_in_an_error() {
    let secret = "s3cret".repeat(50);
    let error = error(&format!("[auth]\ndefault_pass = '{secret}'\n"));
    assert!(error.contains("`auth.default_pass`") && !error.contains("s3cret"), "{error}");
}

#[test]
fn each_durability_has_its_name() {
    let named = [("fsync", Durability::Fsync), ("os", Durability::Os), ("memory", Durability::Memory)];
    for (name, durability) in named {
        let config = load(&format!("durability = '{name}'\n"), &[], &[]).unwrap();
        assert_eq!((config.durability, config.durability.name()), (durability, name));
    }
    assert_eq!(Config::default().durability, Durability::Fsync, "nothing less unless it is asked for");
}

#[test]
fn broken_toml_is_an_error_with_its_line() {
    let error = error("shards = 2\n[amqp\n");
    assert!(error.starts_with("DIR/lepus.toml:2: this is not TOML: "), "{error}");
    let twice = load("shards = 2\nshards = 3\n", &[], &[]).unwrap_err();
    assert!(twice.starts_with("DIR/lepus.toml:2: this is not TOML: "), "{twice}");
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let missing = Path::new("/nonexistent/lepus.toml");
    let error = Config::load(&Sources { file: Some(missing), ..Sources::default() }).unwrap_err();
    assert!(
        error.to_string().starts_with("cannot read the configuration /nonexistent/lepus.toml: "),
        "{error}"
    );
}

#[test]
fn one_source_may_not_set_shards_and_cpus() {
    assert!(error("shards = 2\ncpus = '0,1'\n").contains("exclude each other"));
    assert!(load("", &[], &["shards=2", "cpus=0"]).unwrap_err().contains("exclude each other"));
}

#[test]
fn of_shards_and_cpus_the_source_of_higher_rank_wins() {
    let config = load("shards = 2\n", &[("LEPUS_CPUS", "0")], &[]).unwrap();
    assert_eq!((config.shards, config.cpus), (None, Some(CpuList(vec![0]))));
    let config = load("cpus = [0, 1]\n", &[], &["shards=4"]).unwrap();
    assert_eq!((config.shards, config.cpus), (Some(4), None));
}

#[test]
fn values_are_read_in_all_the_forms_that_are_documented() {
    let text = "cpus = '0-2'\nmemory_budget = '1 GiB'\nlisten = ['[::1]:1', '0.0.0.0:0']\namqp = { channel_max = 0x10 }\n";
    let config = load(text, &[], &[]).unwrap();
    assert_eq!(config.cpus, Some(CpuList(vec![0, 1, 2])));
    assert_eq!(config.memory_budget, MemoryBudget::Bytes(1 << 30));
    assert_eq!(config.listen, ["[::1]:1".parse().unwrap(), "0.0.0.0:0".parse().unwrap()]);
    assert_eq!(config.channel_max, 16);
    let config =
        load("memory_budget = 33554432\ncpus = 1\n", &[("LEPUS_LISTEN", "[::1]:1, 0.0.0.0:0")], &[]).unwrap();
    assert_eq!(config.memory_budget, MemoryBudget::Bytes(32 << 20));
    assert_eq!(config.cpus, Some(CpuList(vec![1])));
    assert_eq!(config.listen.len(), 2);
}

#[test]
fn a_set_is_a_key_and_a_value() {
    let assignment = Assignment::from_set("auth.default_pass=a=b").unwrap();
    assert_eq!((assignment.key.as_str(), assignment.value.as_str()), ("auth.default_pass", "a=b"));
    for wrong in ["shards", "=2", ""] {
        let error = Assignment::from_set(wrong).unwrap_err().to_string();
        assert!(error.contains("KEY=VALUE"), "{error}");
    }
}

#[test]
fn what_an_orchestrator_sets_for_a_service_of_our_name_is_not_ours() {
    let others = [
        ("LEPUS_PORT", "tcp://10.0.0.1:5672"),
        ("LEPUS_PORT_5672_TCP_ADDR", "10.0.0.1"),
        ("LEPUS_SERVICE_HOST", "10.0.0.1"),
        ("LEPUS_SERVICE_PORT_AMQP", "5672"),
    ];
    assert_eq!(load("", &others, &[]).unwrap(), load("", &[], &[]).unwrap());
    assert!(load("", &[("LEPUS_PORTS", "5672")], &[]).is_err(), "what is like a key is one");
}
