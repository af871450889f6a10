//! What goes in and out of a traced vhost is published once more, to amq.rabbitmq.trace. lapin publishes, gets,
//! consumes and reads the traces.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures_lite::StreamExt as _;
use lapin::options as lo;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use lepus_tests::limits::PATIENCE;
use lepus_tests::process::binary;
use lepus_tests::{Arguments, Broker, Setup};

fn trace(command: &str, directory: &Path) -> Output {
    let mut lepus = Command::new(binary());
    lepus.arg("trace").arg(command).arg(directory).stdin(Stdio::null()).output().expect("the binary runs")
}

fn succeeded(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A broker that traces, or none when the tests are of another one.
fn tracing() -> Option<Broker> {
    let data = Broker::own(Setup::new())?.stop().expect("a broker of our own");
    assert_eq!(succeeded(&trace("on", data.path())), "");
    assert_eq!(succeeded(&trace("list", data.path())), "/\n");
    Some(Setup::new().start_in(data))
}

/// Runs it to its end, but not for longer than the harness is patient.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, test).await.expect("the client is served in time")
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

/// A traced message: routing key, body, and what its headers say.
#[derive(Debug)]
struct Traced {
    key: String,
    body: Vec<u8>,
    headers: FieldTable,
    properties: BasicProperties,
}

impl Traced {
    fn value(&self, name: &str) -> &AMQPValue {
        let value = self.headers.inner().get(name);
        value.unwrap_or_else(|| panic!("{name} is not in {:?}", self.headers))
    }

    fn text(&self, name: &str) -> String {
        text(self.value(name))
    }

    fn texts(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            AMQPValue::FieldArray(values) => values.as_slice().iter().map(text).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    fn number(&self, name: &str) -> i32 {
        match self.value(name) {
            AMQPValue::LongInt(number) => *number,
            other => panic!("{name} is {other:?}"),
        }
    }

    fn names(&self) -> Vec<&str> {
        self.headers.inner().keys().map(|name| name.as_str()).collect()
    }
}

fn text(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        other => panic!("not a text: {other:?}"),
    }
}

/// A client whose traces lead to a queue, and a queue behind an exchange.
struct Scene {
    connection: Connection,
    work: Channel,
    traces: Channel,
}

impl Scene {
    async fn new(broker: &Broker) -> Scene {
        let connection = Connection::connect(&broker.url(), ConnectionProperties::default()).await;
        let connection = connection.expect("lapin connects");
        let (traces, work) = (connection.create_channel().await, connection.create_channel().await);
        let (traces, work) = (traces.expect("a channel"), work.expect("a channel"));
        let durable = lo::QueueDeclareOptions { durable: true, ..Default::default() };
        let none = FieldTable::default;
        for queue in ["traces", "q"] {
            traces.queue_declare(queue.into(), durable, none()).await.expect("declared");
        }
        let bind = lo::QueueBindOptions::default();
        for (queue, exchange) in [("traces", "amq.rabbitmq.trace"), ("q", "amq.topic")] {
            traces.queue_bind(queue.into(), exchange.into(), "#".into(), bind, none()).await.expect("bound");
        }
        work.confirm_select(lo::ConfirmSelectOptions::default()).await.expect("confirms");
        Scene { connection, work, traces }
    }

    async fn publish(&self, exchange: &str, key: &str, properties: BasicProperties, body: &[u8]) {
        let options = lo::BasicPublishOptions::default();
        let sent = self.work.basic_publish(exchange.into(), key.into(), options, body, properties).await;
        sent.expect("sent").await.expect("confirmed");
    }

    /// The next trace.
    async fn traced(&self) -> Traced {
        loop {
            let no_ack = lo::BasicGetOptions { no_ack: true };
            let got = self.traces.basic_get("traces".into(), no_ack).await.expect("answered");
            let Some(got) = got else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            // The get of a trace is not traced: or this would never end.
            assert_eq!(got.exchange.as_str(), "amq.rabbitmq.trace");
            let delivery = got.delivery;
            return Traced {
                key: delivery.routing_key.to_string(),
                body: delivery.data.to_vec(),
                headers: delivery.properties.headers().clone().expect("headers"),
                properties: delivery.properties,
            };
        }
    }
}

#[test]
fn a_publish_and_its_deliveries_are_traced_with_all_that_is_known_of_them() {
    let Some(broker) = tracing() else { return };
    run(async {
        let scene = Scene::new(&broker).await;
        let mut headers = FieldTable::default();
        headers.insert("a".into(), AMQPValue::LongInt(1));
        let copies = vec![AMQPValue::LongString("copy".into())];
        headers.insert("CC".into(), AMQPValue::FieldArray(copies.into()));
        let properties = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_headers(headers.clone())
            .with_delivery_mode(2)
            .with_timestamp(5_000_000_000)
            .with_user_id("guest".into());
        scene.publish("amq.topic", "key", properties, b"hello").await;

        let published = scene.traced().await;
        assert_eq!((&*published.key, &*published.body), ("publish.amq.topic", &b"hello"[..]));
        let mut names =
            ["channel", "connection", "exchange_name", "node", "properties", "routed_queues", "routing_keys"]
                .to_vec();
        names.extend(["user", "vhost"]);
        assert_eq!(published.names(), names);
        assert_eq!(published.text("exchange_name"), "amq.topic");
        assert_eq!(published.texts("routing_keys"), ["key", "copy"]);
        assert_eq!(published.texts("routed_queues"), ["q"]);
        assert_eq!((published.text("user"), published.text("vhost")), ("guest".into(), "/".into()));
        assert_eq!(published.number("channel"), 2);
        let ends = published.text("connection");
        let (from, to) = ends.split_once(" -> ").expect("two addresses");
        assert!(from.starts_with("127.0.0.1:") && to == broker.address.to_string(), "{ends}");
        assert!(published.text("node").starts_with("lepus@"));
        assert_eq!(published.properties.delivery_mode(), &None, "a trace is transient");
        let AMQPValue::FieldTable(properties) = published.value("properties") else { panic!("no table") };
        let property = |name: &str| properties.inner().get(name).cloned();
        assert_eq!(properties.inner().len(), 5, "those that are set: {properties:?}");
        assert_eq!(property("content_type"), Some(AMQPValue::LongString("text/plain".into())));
        assert_eq!(property("headers"), Some(AMQPValue::FieldTable(headers)));
        assert_eq!(property("delivery_mode"), Some(AMQPValue::LongInt(2)));
        assert_eq!(property("timestamp"), Some(AMQPValue::LongLongInt(5_000_000_000)));
        assert_eq!(property("user_id"), Some(AMQPValue::LongString("guest".into())));

        // Got, given back, and got again.
        for redelivered in [0, 1] {
            let got = scene.work.basic_get("q".into(), lo::BasicGetOptions::default()).await;
            let got = got.expect("answered").expect("a message");
            got.acker
                .nack(lo::BasicNackOptions { requeue: true, multiple: false })
                .await
                .expect("given back");
            let delivered = scene.traced().await;
            assert_eq!((&*delivered.key, &*delivered.body), ("deliver.q", &b"hello"[..]));
            assert_eq!(delivered.number("redelivered"), redelivered);
            assert_eq!(delivered.texts("routing_keys"), ["key", "copy"]);
            assert_eq!(delivered.text("exchange_name"), "amq.topic");
            assert_eq!(delivered.value("properties"), published.value("properties"));
            assert!(!delivered.names().contains(&"routed_queues"));
        }
        scene.connection.close(200, "OK".into()).await.expect("closed");
    });
    broker.stop();
}

#[test]
fn consumers_unroutable_messages_and_direct_replies_are_traced_too() {
    let Some(broker) = tracing() else { return };
    run(async {
        let scene = Scene::new(&broker).await;
        scene.publish("", "nobody", BasicProperties::default(), b"lost").await;
        let lost = scene.traced().await;
        assert_eq!((&*lost.key, lost.texts("routed_queues")), ("publish.", Vec::new()));
        for no_ack in [false, true] {
            let options = lo::BasicConsumeOptions { no_ack, ..Default::default() };
            let consumer =
                scene.work.basic_consume("q".into(), "t".into(), options, FieldTable::default()).await;
            let mut consumer = consumer.expect("consuming");
            scene.publish("", "q", BasicProperties::default(), b"m").await;
            let delivery = consumer.next().await.expect("a delivery").expect("no error");
            if !no_ack {
                delivery.acker.ack(lo::BasicAckOptions::default()).await.expect("acked");
            }
            let keys = [scene.traced().await.key, scene.traced().await.key];
            assert_eq!(keys, ["publish.", "deliver.q"]);
            scene.work.basic_cancel("t".into(), lo::BasicCancelOptions::default()).await.expect("cancelled");
        }
        let options = lo::BasicConsumeOptions { no_ack: true, ..Default::default() };
        let replies = "amq.rabbitmq.reply-to";
        let consumer =
            scene.work.basic_consume(replies.into(), "r".into(), options, FieldTable::default()).await;
        let mut consumer = consumer.expect("consuming");
        scene.publish("", "q", BasicProperties::default().with_reply_to(replies.into()), b"question").await;
        let question = scene.work.basic_get("q".into(), lo::BasicGetOptions { no_ack: true }).await;
        let question = question.expect("answered").expect("a question").delivery;
        let name = question.properties.reply_to().clone().expect("a name").to_string();
        scene.publish("", &name, BasicProperties::default(), b"answer").await;
        consumer.next().await.expect("a delivery").expect("no error");
        let mut keys = Vec::new();
        for _ in 0..4 {
            let traced = scene.traced().await;
            if traced.body == b"answer" && traced.key == "publish." {
                assert_eq!(traced.texts("routed_queues"), [name.as_str()]);
            }
            keys.push(traced.key);
        }
        keys.sort_unstable();
        assert_eq!(keys, [&format!("deliver.{name}"), "deliver.q", "publish.", "publish."]);
        scene.connection.close(200, "OK".into()).await.expect("closed");
    });
    broker.stop();
}

#[test]
fn what_is_turned_off_is_not_traced_and_the_exchange_is_the_brokers_own() {
    let Some(broker) = tracing() else { return };
    let data = broker.stop().expect("a broker of our own");
    // A crash changes nothing.
    let broker = Setup::new().start_in(data);
    let mut wire = broker.channel();
    wire.declare(1, "traces");
    wire.bind(1, "traces", "amq.rabbitmq.trace", "publish.*", &Arguments::new());
    wire.publish(1, "", "nobody", b"seen");
    wire.round_trip(1);
    while wire.get(1, "traces", true).is_none() {}
    let refused = trace("off", broker.data_path());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    let data = broker.kill();
    assert_eq!(succeeded(&trace("off", data.path())), "");
    assert_eq!(succeeded(&trace("list", data.path())), "");
    let broker = Setup::new().start_in(data);
    let mut wire = broker.channel();
    wire.select_confirms(1);
    wire.publish(1, "", "nobody", b"not seen");
    wire.confirmed(1);
    wire.open(2);
    assert_eq!(wire.look(2, "traces").0, 0);
    broker.stop();
}
