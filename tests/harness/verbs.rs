//! What clients do on a [`Wire`], in the words of the specification.
#![forbid(unsafe_code)]

use std::net::Shutdown;

use crate::frames::{basic_consume, exchange_declare, publish_frames, queue_bind, queue_declare};
use crate::method::{Arguments, Method, Properties};
use crate::wire::{Delivery, Event, Wire};

impl Wire {
    pub fn open(&mut self, channel: u16) {
        self.call(channel, Method::new(20, 10).shortstr(""));
    }

    pub fn close_channel(&mut self, channel: u16) {
        self.call(channel, Method::new(20, 40).short(200).shortstr("OK").short(0).short(0));
    }

    /// Answers a channel.close, so that the number can be opened again.
    pub fn close_ok(&mut self, channel: u16) {
        self.send_method(channel, &Method::new(20, 41));
    }

    /// Closes the connection as clients do, and sees that the broker does so too.
    pub fn close(mut self) {
        self.call(0, Method::new(10, 50).short(200).shortstr("OK").short(0).short(0));
        self.end_of_sending();
        assert_eq!(self.bytes_until_end(), b"", "bytes after close-ok");
    }

    /// Says at the socket that nothing more will be sent.
    pub fn end_of_sending(&mut self) {
        // A broker that has closed the socket already has no objection.
        let _ = self.socket().shutdown(Shutdown::Write);
    }

    /// Lets go of the socket without a word, as a killed process does.
    pub fn vanish(self) {
        let _ = self.socket().shutdown(Shutdown::Both);
    }

    /// A method that changes nothing and is answered after all that was sent before it.
    pub fn round_trip(&mut self, channel: u16) {
        self.call(
            channel,
            Method::new(40, 10)
                .short(0)
                .shortstr("amq.direct")
                .shortstr("direct")
                .bits(&[true])
                .table(&Arguments::new()),
        );
    }

    /// Declares a durable queue and gives messages and consumers.
    pub fn declare(&mut self, channel: u16, queue: &str) -> (u32, u32) {
        self.declare_as(channel, queue, [false, true, false, false, false], &Arguments::new())
    }

    /// Flags: passive, durable, exclusive, auto-delete, nowait.
    pub fn declare_as(
        &mut self,
        channel: u16,
        queue: &str,
        flags: [bool; 5],
        arguments: &Arguments,
    ) -> (u32, u32) {
        let mut answer = self.call(channel, queue_declare(queue, flags, arguments));
        answer.shortstr();
        (answer.long(), answer.long())
    }

    /// Looks at a queue: messages that are ready, and consumers.
    pub fn look(&mut self, channel: u16, queue: &str) -> (u32, u32) {
        self.declare_as(channel, queue, [true, false, false, false, false], &Arguments::new())
    }

    /// Declares an exclusive queue and gives the name that the broker made.
    pub fn declare_exclusive(&mut self, channel: u16) -> String {
        self.call(channel, queue_declare("", [false, false, true, false, false], &Arguments::new()))
            .shortstr()
    }

    /// Declares a durable exchange.
    pub fn declare_exchange(&mut self, channel: u16, exchange: &str, kind: &str) {
        let flags = [false, true, false, false, false];
        self.call(channel, exchange_declare(exchange, kind, flags, &Arguments::new()));
    }

    pub fn bind(&mut self, channel: u16, queue: &str, exchange: &str, key: &str, arguments: &Arguments) {
        self.call(channel, queue_bind(queue, exchange, key, arguments));
    }

    /// Asks for confirms.
    pub fn select_confirms(&mut self, channel: u16) {
        self.call(channel, Method::new(85, 10).bits(&[false]));
    }

    pub fn publish(&mut self, channel: u16, exchange: &str, key: &str, body: &[u8]) {
        self.publish_as(channel, exchange, key, false, &Properties::none(), body);
    }

    pub fn publish_as(
        &mut self,
        channel: u16,
        exchange: &str,
        key: &str,
        mandatory: bool,
        properties: &Properties,
        body: &[u8],
    ) {
        let bytes = publish_frames(self.frame_max, channel, exchange, key, mandatory, properties, body);
        self.send(&bytes);
    }

    /// One message, or none when the queue is empty.
    pub fn get(&mut self, channel: u16, queue: &str, no_ack: bool) -> Option<Delivery> {
        self.send_method(channel, &Method::new(60, 70).short(0).shortstr(queue).bits(&[no_ack]));
        let answer = self.wait_for(|event| match event {
            Event::GetOk(delivery) => delivery.channel == channel,
            Event::Method(on, ids, _) => (*on, *ids) == (channel, (60, 72)),
            Event::Close(_) | Event::End => true,
            _ => false,
        });
        match answer {
            Event::GetOk(delivery) => Some(delivery),
            Event::Method(..) => None,
            other => panic!("waited for get-ok, got {other:?}"),
        }
    }

    /// Takes all that is ready, settled at once.
    pub fn drain(&mut self, channel: u16, queue: &str) -> Vec<Delivery> {
        std::iter::from_fn(|| self.get(channel, queue, true)).collect()
    }

    /// Consumes with this tag.
    pub fn consume(&mut self, channel: u16, queue: &str, tag: &str, no_ack: bool) {
        self.call(channel, basic_consume(queue, tag, no_ack, false, &Arguments::new()));
    }

    pub fn cancel(&mut self, channel: u16, tag: &str) {
        self.call(channel, Method::new(60, 30).shortstr(tag).bits(&[false]));
    }

    pub fn qos(&mut self, channel: u16, count: u16, global: bool) {
        self.call(channel, Method::new(60, 10).long(0).short(count).bits(&[global]));
    }

    pub fn ack(&mut self, channel: u16, tag: u64, multiple: bool) {
        self.send_method(channel, &Method::new(60, 80).longlong(tag).bits(&[multiple]));
    }

    pub fn nack(&mut self, channel: u16, tag: u64, multiple: bool, requeue: bool) {
        self.send_method(channel, &Method::new(60, 120).longlong(tag).bits(&[multiple, requeue]));
    }

    pub fn reject(&mut self, channel: u16, tag: u64, requeue: bool) {
        self.send_method(channel, &Method::new(60, 90).longlong(tag).bits(&[requeue]));
    }

    pub fn purge(&mut self, channel: u16, queue: &str) -> u32 {
        self.call(channel, Method::new(50, 30).short(0).shortstr(queue).bits(&[false])).long()
    }

    pub fn delete_queue(&mut self, channel: u16, queue: &str) -> u32 {
        self.call(channel, Method::new(50, 40).short(0).shortstr(queue).bits(&[false, false, false])).long()
    }
}
