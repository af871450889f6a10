//! lapin and amqprs do what their users do.

use std::time::Duration;

use amqprs::callbacks::{DefaultChannelCallback, DefaultConnectionCallback};
use amqprs::channel as ap;
use amqprs::connection::{Connection as ApConnection, OpenConnectionArguments};
use futures_lite::StreamExt as _;
use lapin::options as lo;
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use lepus_tests::Broker;
use lepus_tests::limits::PATIENCE;

/// Runs it to its end, but not for longer than the harness is patient.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, test).await.expect("the client is served in time")
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

async fn lapin(broker: &Broker) -> (Connection, lapin::Channel) {
    let connection =
        Connection::connect(&broker.url(), ConnectionProperties::default()).await.expect("lapin connects");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

async fn lapin_queue(broker: &Broker, channel: &lapin::Channel) -> String {
    let name = broker.name("lapin");
    let options = lo::QueueDeclareOptions { durable: true, ..Default::default() };
    let queue =
        channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await.expect("declared");
    assert_eq!((queue.name().as_str(), queue.message_count(), queue.consumer_count()), (name.as_str(), 0, 0));
    name
}

async fn lapin_publish(channel: &lapin::Channel, queue: &str, body: &[u8]) -> lapin::Confirmation {
    let options = lo::BasicPublishOptions { mandatory: true, ..Default::default() };
    let properties = BasicProperties::default().with_delivery_mode(2).with_message_id("id".into());
    let sent = channel.basic_publish("".into(), queue.into(), options, body, properties).await.expect("sent");
    sent.await.expect("confirmed")
}

#[test]
fn lapin_publishes_consumes_and_settles() {
    let broker = Broker::start();
    run(async {
        let (connection, channel) = lapin(&broker).await;
        let queue = lapin_queue(&broker, &channel).await;
        channel.confirm_select(lo::ConfirmSelectOptions::default()).await.expect("confirms");
        channel.basic_qos(10, lo::BasicQosOptions::default()).await.expect("qos");
        let mut consumer = channel
            .basic_consume(
                queue.as_str().into(),
                "t".into(),
                lo::BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .expect("consuming");
        for number in 0..100u8 {
            assert!(lapin_publish(&channel, &queue, &[number]).await.is_ack());
        }
        for number in 0..100u8 {
            let delivery = consumer.next().await.expect("a delivery").expect("no error");
            assert_eq!((delivery.data.as_ref(), delivery.redelivered), (&[number][..], false));
            assert_eq!(delivery.properties.message_id().as_ref().map(|id| id.as_str()), Some("id"));
            match number % 3 {
                0 => delivery.acker.ack(lo::BasicAckOptions::default()).await,
                1 => delivery.acker.reject(lo::BasicRejectOptions { requeue: false }).await,
                _ => delivery.acker.nack(lo::BasicNackOptions { requeue: false, multiple: false }).await,
            }
            .expect("settled");
        }
        channel.basic_cancel("t".into(), lo::BasicCancelOptions::default()).await.expect("cancelled");
        let got =
            channel.basic_get(queue.as_str().into(), lo::BasicGetOptions::default()).await.expect("answered");
        assert!(got.is_none());
        connection.close(200, "OK".into()).await.expect("closed");
    });
}

#[test]
fn lapin_hears_returns_with_its_confirms() {
    let broker = Broker::start();
    run(async {
        let (connection, channel) = lapin(&broker).await;
        channel.confirm_select(lo::ConfirmSelectOptions::default()).await.expect("confirms");
        for size in [0, 1, 200_000] {
            let confirmation = lapin_publish(&channel, "nobody", &vec![1; size]).await;
            assert!(confirmation.is_ack());
            let returned = confirmation.take_message().expect("it was mandatory");
            assert_eq!((returned.reply_code, returned.delivery.data.len()), (312, size));
        }
        connection.close(200, "OK".into()).await.expect("closed");
    });
}

#[test]
fn lapin_sees_channel_errors_and_goes_on() {
    let broker = Broker::start();
    run(async {
        let (connection, channel) = lapin(&broker).await;
        let options = lo::QueueDeclareOptions { passive: true, ..Default::default() };
        let error =
            channel.queue_declare("none".into(), options, FieldTable::default()).await.expect_err("refused");
        assert!(error.to_string().contains("NOT_FOUND - no queue 'none' in vhost '/'"), "{error}");
        let channel = connection.create_channel().await.expect("the connection is open");
        lapin_queue(&broker, &channel).await;
        connection.close(200, "OK".into()).await.expect("closed");
    });
}

#[test]
fn lapin_uses_many_channels_at_once() {
    let broker = Broker::start();
    run(async {
        let (connection, first) = lapin(&broker).await;
        let queue = lapin_queue(&broker, &first).await;
        let mut tasks = Vec::new();
        for number in 0..50u8 {
            let channel = connection.create_channel().await.expect("a channel");
            let queue = queue.clone();
            tasks.push(tokio::spawn(async move {
                channel.confirm_select(lo::ConfirmSelectOptions::default()).await.expect("confirms");
                assert!(lapin_publish(&channel, &queue, &[number]).await.is_ack());
                channel
            }));
        }
        // A channel that is dropped closes by itself, and the connection must not be closed meanwhile.
        let mut channels = Vec::new();
        for task in tasks {
            channels.push(task.await.expect("published"));
        }
        let purged =
            first.queue_purge(queue.as_str().into(), lo::QueuePurgeOptions::default()).await.expect("purged");
        assert_eq!(purged, 50);
        connection.close(200, "OK".into()).await.expect("closed");
    });
}

async fn amqprs(broker: &Broker) -> (ApConnection, ap::Channel) {
    let host = broker.address.ip().to_string();
    let arguments = OpenConnectionArguments::new(&host, broker.address.port(), "guest", "guest");
    let connection = ApConnection::open(&arguments).await.expect("amqprs connects");
    connection.register_callback(DefaultConnectionCallback).await.expect("registered");
    let channel = connection.open_channel(None).await.expect("a channel");
    channel.register_callback(DefaultChannelCallback).await.expect("registered");
    (connection, channel)
}

#[test]
fn amqprs_publishes_consumes_and_gets() {
    let broker = Broker::start();
    run(async {
        let (connection, channel) = amqprs(&broker).await;
        let name = broker.name("amqprs");
        let (queue, messages, consumers) = channel
            .queue_declare(ap::QueueDeclareArguments::durable_client_named(&name))
            .await
            .expect("declared")
            .expect("answered");
        assert_eq!((queue.as_str(), messages, consumers), (name.as_str(), 0, 0));
        channel
            .queue_bind(ap::QueueBindArguments::new(&queue, "amq.topic", &format!("{name}.#")))
            .await
            .expect("bound");
        channel.confirm_select(ap::ConfirmSelectArguments::default()).await.expect("confirms");
        channel.basic_qos(ap::BasicQosArguments::new(0, 5, false)).await.expect("qos");
        let (_, mut receiver) =
            channel.basic_consume_rx(ap::BasicConsumeArguments::new(&queue, "t")).await.expect("consuming");
        for number in 0..50u8 {
            let to = ap::BasicPublishArguments::new("amq.topic", &format!("{name}.k"));
            channel
                .basic_publish(amqprs::BasicProperties::default(), vec![number; 3], to)
                .await
                .expect("sent");
        }
        for number in 0..50u8 {
            let message = receiver.recv().await.expect("a delivery");
            assert_eq!(message.content, Some(vec![number; 3]));
            let deliver = message.deliver.expect("a deliver method");
            assert!(!deliver.redelivered());
            channel
                .basic_ack(ap::BasicAckArguments::new(deliver.delivery_tag(), false))
                .await
                .expect("acked");
        }
        channel.basic_cancel(ap::BasicCancelArguments::new("t")).await.expect("cancelled");
        channel
            .basic_publish(
                amqprs::BasicProperties::default(),
                b"got".to_vec(),
                ap::BasicPublishArguments::new("", &queue),
            )
            .await
            .expect("sent");
        let got = channel
            .basic_get(ap::BasicGetArguments::new(&queue))
            .await
            .expect("answered")
            .expect("one is there");
        assert_eq!((got.0.redelivered(), got.2), (false, b"got".to_vec()));
        channel.basic_ack(ap::BasicAckArguments::new(got.0.delivery_tag(), false)).await.expect("acked");
        assert!(channel.basic_get(ap::BasicGetArguments::new(&queue)).await.expect("answered").is_none());
        channel.close().await.expect("closed");
        connection.close().await.expect("closed");
    });
}

#[test]
fn amqprs_declares_exchanges_and_binds_them() {
    let broker = Broker::start();
    run(async {
        let (connection, channel) = amqprs(&broker).await;
        let (source, target) = (broker.name("x"), broker.name("x"));
        for (name, kind) in [(&source, "topic"), (&target, "fanout")] {
            channel.exchange_declare(ap::ExchangeDeclareArguments::new(name, kind)).await.expect("declared");
        }
        channel.exchange_bind(ap::ExchangeBindArguments::new(&target, &source, "a.*")).await.expect("bound");
        let declare = ap::QueueDeclareArguments::exclusive_server_named();
        let (queue, ..) = channel.queue_declare(declare).await.expect("declared").expect("answered");
        channel.queue_bind(ap::QueueBindArguments::new(&queue, &target, "")).await.expect("bound");
        for key in ["a.b", "b.a"] {
            let to = ap::BasicPublishArguments::new(&source, key);
            channel.basic_publish(amqprs::BasicProperties::default(), key.into(), to).await.expect("sent");
        }
        let no_ack = ap::BasicGetArguments::new(&queue).no_ack(true).finish();
        let got = channel.basic_get(no_ack.clone()).await.expect("answered").expect("one was routed");
        assert_eq!(got.2, b"a.b");
        assert!(channel.basic_get(no_ack).await.expect("answered").is_none());
        channel
            .exchange_unbind(ap::ExchangeUnbindArguments::new(&target, &source, "a.*"))
            .await
            .expect("unbound");
        channel.close().await.expect("closed");
        connection.close().await.expect("closed");
    });
}
