//! Direct reply-to, across shards and by all of its rules.

use futures_lite::StreamExt as _;
use lapin::options as lo;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use lepus_tests::limits::PATIENCE;
use lepus_tests::wire::{basic_consume, queue_declare};
use lepus_tests::{Arguments, Broker, Close, Event, Method, Properties, Wire};

const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Properties with nothing but this reply-to.
fn reply_to(name: &str) -> Properties {
    Properties([&[0b0000_0010, 0, name.len() as u8], name.as_bytes()].concat())
}

/// The reply-to in properties that have nothing else.
fn reply_name(properties: &Properties) -> String {
    assert_eq!(properties.0[..2], [0b0000_0010, 0]);
    String::from_utf8(properties.0[3..].to_vec()).expect("a name is text")
}

/// A channel that asks, and the name that its question carries.
fn ask(asking: &mut Wire, answering: &mut Wire, queue: &str) -> String {
    asking.publish_as(1, "", queue, false, &reply_to(REPLY_TO), b"question");
    asking.round_trip(1);
    let question = answering.get(1, queue, true).expect("a question");
    reply_name(&question.properties)
}

#[test]
fn questions_carry_a_name_and_answers_to_it_arrive() {
    let broker = Broker::start();
    // Connections are handed to shards in turn: some answer from the shard that asked, some from the other.
    let mut wires: Vec<Wire> = (0..4).map(|_| broker.channel()).collect();
    let queue = broker.name("questions");
    wires[0].declare(1, &queue);
    wires[0].consume(1, REPLY_TO, "t", true);
    let (asking, answering) = wires.split_at_mut(1);
    let asking = &mut asking[0];
    for (number, answerer) in answering.iter_mut().enumerate() {
        let name = ask(asking, answerer, &queue);
        assert!(name.starts_with("amq.rabbitmq.reply-to."), "{name}");
        assert_eq!(ask(asking, answerer, &queue), name, "the same for every question");
        answerer.publish_as(1, "", &name, true, &reply_to("elsewhere"), b"answer");
        let answer = asking.delivery();
        assert_eq!((&*answer.consumer, answer.tag, answer.redelivered), ("t", number as u64 + 1, false));
        assert_eq!((&*answer.exchange, &answer.routing_key), ("", &name));
        assert_eq!((answer.properties, &*answer.body), (reply_to("elsewhere"), &b"answer"[..]));
    }
}

#[test]
fn a_large_answer_crosses_whole() {
    let broker = Broker::start();
    let mut wires: Vec<Wire> = (0..3).map(|_| broker.channel()).collect();
    let queue = broker.name("questions");
    wires[0].declare(1, &queue);
    wires[0].consume(1, REPLY_TO, "t", true);
    let body: Vec<u8> = (0..3_000_000).map(|at| (at % 251) as u8).collect();
    for answerer in 1..3 {
        let (asking, answering) = wires.split_at_mut(1);
        let name = ask(&mut asking[0], &mut answering[answerer - 1], &queue);
        answering[answerer - 1].publish(1, "", &name, &body);
        assert_eq!(asking[0].delivery().body, body);
    }
}

#[test]
fn a_mandatory_answer_to_nobody_is_returned_and_then_confirmed() {
    let Some(broker) = Broker::own(lepus_tests::Setup::new()) else {
        return; // RabbitMQ 4.3 confirms and says nothing.
    };
    let mut wires: Vec<Wire> = (0..4).map(|_| broker.channel()).collect();
    let queue = broker.name("questions");
    wires[0].declare(1, &queue);
    let mut asking = broker.channel();
    asking.consume(1, REPLY_TO, "t", true);
    let name = ask(&mut asking, &mut wires[0], &queue);
    asking.close();
    for wire in &mut wires {
        wire.select_confirms(1);
        wire.publish_as(1, "", &name, true, &Properties::persistent(), b"too late");
        match wire.event() {
            Event::Return(returned) => {
                assert_eq!(
                    (returned.reply, returned.routing_key),
                    (Some((312, "NO_ROUTE".into())), name.clone())
                );
                assert_eq!(
                    (returned.properties, &*returned.body),
                    (Properties::persistent(), &b"too late"[..])
                );
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(wire.event(), Event::Ack(1, 1, false)));
        wire.publish(1, "", &name, b"too late, and nobody cares");
        assert!(matches!(wire.event(), Event::Ack(1, 2, false)));
        let look = queue_declare(&name, [true, false, false, false, false], &Arguments::new());
        wire.send_method(1, &look);
        let text = format!("NOT_FOUND - no queue '{name}' in vhost '/'");
        assert_eq!(wire.closed(), Close { channel: 1, code: 404, text, ids: (50, 10) });
    }
}

/// What closes channel 1, and how.
fn closes(wire: &mut Wire, method: &Method, code: u16, text: &str, ids: (u16, u16)) {
    wire.send_method(1, method);
    assert_eq!(wire.closed(), Close { channel: 1, code, text: text.to_owned(), ids });
    wire.close_ok(1);
    wire.open(1);
}

#[test]
fn misuse_is_406() {
    let broker = Broker::start();
    let mut wire = broker.channel();
    let consume = |tag: &str, no_ack| basic_consume(REPLY_TO, tag, no_ack, false, &Arguments::new());
    let text = "PRECONDITION_FAILED - reply consumer cannot acknowledge";
    closes(&mut wire, &consume("t", false), 406, text, (60, 20));
    wire.consume(1, REPLY_TO, "t", true);
    let text = "PRECONDITION_FAILED - reply consumer already set";
    closes(&mut wire, &consume("u", true), 406, text, (60, 20));
    let missing = Close {
        channel: 1,
        code: 406,
        text: "PRECONDITION_FAILED - fast reply consumer does not exist".into(),
        ids: (60, 40),
    };
    wire.publish_as(1, "", "q", false, &reply_to(REPLY_TO), b"m");
    assert_eq!(wire.closed(), missing);
    wire.close_ok(1);
    wire.open(1);
    wire.consume(1, REPLY_TO, "t", true);
    wire.cancel(1, "t");
    wire.consume(1, REPLY_TO, "u", true);
    wire.cancel(1, "u");
    wire.publish_as(1, "", "q", false, &reply_to(REPLY_TO), b"m");
    assert_eq!(wire.closed(), missing, "cancelled is not there");
}

#[test]
fn the_name_of_a_channel_that_waits_can_be_looked_at_but_not_used_as_a_queue() {
    let broker = Broker::start();
    let mut wires: Vec<Wire> = (0..3).map(|_| broker.channel()).collect();
    let queue = broker.name("questions");
    wires[0].declare(1, &queue);
    wires[0].consume(1, REPLY_TO, "t", true);
    let (asking, answering) = wires.split_at_mut(1);
    for wire in answering {
        let name = ask(&mut asking[0], wire, &queue);
        assert_eq!(wire.look(1, &name), (0, 1));
        assert_eq!(wire.look(1, REPLY_TO), (0, 1));
        assert_eq!(wire.declare(1, &name), (0, 1));
        assert_eq!(wire.purge(1, &name), 0);
        assert_eq!(wire.delete_queue(1, &name), 0);
        let bind = lepus_tests::wire::queue_bind(&name, "amq.direct", "k", &Arguments::new());
        let text = "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue";
        closes(wire, &bind, 403, text, (50, 20));
        let consume = basic_consume(&name, "t", true, false, &Arguments::new());
        let text = format!(
            "PRECONDITION_FAILED - only creator channel may consume from queue '{name}' in vhost '/'"
        );
        closes(wire, &consume, 406, &text, (60, 20));
        wire.publish(1, "", &name, b"it is there still");
        assert_eq!(asking[0].delivery().body, b"it is there still");
        wire.send_method(1, &Method::new(60, 70).short(0).shortstr(&name).bits(&[true]));
        let close = wire.closed();
        assert_eq!((close.channel, close.code, close.ids), (0, 540, (60, 70)));
    }
}

#[test]
fn a_thousand_questions_and_answers_come_in_order() {
    let broker = Broker::start();
    let mut wires: Vec<Wire> = (0..2).map(|_| broker.channel()).collect();
    let queue = broker.name("questions");
    wires[0].declare(1, &queue);
    wires[0].consume(1, REPLY_TO, "t", true);
    wires[1].consume(1, &queue, "s", true);
    for number in 0..1_000 {
        wires[0].publish_as(1, "", &queue, false, &reply_to(REPLY_TO), number.to_string().as_bytes());
    }
    for _ in 0..1_000 {
        let question = wires[1].delivery();
        let name = reply_name(&question.properties);
        wires[1].publish(1, "", &name, &question.body);
    }
    for number in 0..1_000 {
        assert_eq!(wires[0].delivery().body, number.to_string().as_bytes());
    }
}

#[test]
fn lapin_calls_a_procedure_and_is_answered() {
    let broker = Broker::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let calls = async {
        let url = broker.url();
        let client = Connection::connect(&url, ConnectionProperties::default()).await.expect("connects");
        let server = Connection::connect(&url, ConnectionProperties::default()).await.expect("connects");
        let (client, server) = (
            client.create_channel().await.expect("a channel"),
            server.create_channel().await.expect("a channel"),
        );
        let queue = broker.name("rpc");
        let options = lo::QueueDeclareOptions { durable: true, ..Default::default() };
        server.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.expect("declared");
        let consume = |no_ack| lo::BasicConsumeOptions { no_ack, ..Default::default() };
        let mut questions = server
            .basic_consume(queue.as_str().into(), "".into(), consume(true), FieldTable::default())
            .await
            .expect("consuming");
        let mut answers = client
            .basic_consume(REPLY_TO.into(), "".into(), consume(true), FieldTable::default())
            .await
            .expect("consuming");
        let publish = lo::BasicPublishOptions::default();
        for number in 0..20u8 {
            let id = number.to_string();
            let properties = BasicProperties::default()
                .with_reply_to(REPLY_TO.into())
                .with_correlation_id(id.as_str().into());
            client
                .basic_publish("".into(), queue.as_str().into(), publish, &[number], properties)
                .await
                .expect("sent");
            let question = questions.next().await.expect("a question").expect("no error");
            let to = question.properties.reply_to().clone().expect("a name to answer to");
            let id = question.properties.correlation_id().clone().expect("an id");
            let properties = BasicProperties::default().with_correlation_id(id.clone());
            server
                .basic_publish("".into(), to, publish, &[question.data[0] * 2], properties)
                .await
                .expect("sent");
            let answer = answers.next().await.expect("an answer").expect("no error");
            assert_eq!((answer.data[0], answer.properties.correlation_id()), (number * 2, &Some(id)));
        }
    };
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(PATIENCE, calls).await.expect("answered in time") });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
}
