//! Situations before a vhost is open.

use lepus_tests::wire::PROTOCOL_HEADER;
use lepus_tests::{Close, Event, Login, Wire};

use super::bench::Bench;

/// What a client hears that is not let in; then the socket is closed as the rules say, and others notice nothing.
fn refused(bench: &mut Bench, login: &Login) -> Option<Close> {
    let mut wire = Wire::raw(bench.broker.address);
    let event = match wire.begin(login) {
        Err(event) => *event,
        Ok(()) => {
            wire.send_method(
                0,
                &lepus_tests::Method::new(10, 40).shortstr(&login.vhost).shortstr("").bits(&[false]),
            );
            wire.wait_for(|event| matches!(event, Event::Close(_) | Event::End | Event::Method(..)))
        }
    };
    match event {
        Event::Close(close) => {
            bench.ends(wire);
            Some(close)
        }
        Event::End => None,
        other => panic!("{other:?} instead of a refusal"),
    }
}

fn close(code: u16, text: &str, ids: (u16, u16)) -> Option<Close> {
    Some(Close { channel: 0, code, text: text.to_owned(), ids })
}

#[test]
fn another_protocol_is_answered_with_ours() {
    let bench = Bench::new();
    for header in [
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x01\x01\x00\x0a",
        b"HTTP/1.1",
        b"GET / HT",
        b"\0\0\0\0\0\0\0\0",
        b"AMQP\x00\x00\x09\x02",
    ] {
        let mut wire = Wire::raw(bench.broker.address);
        wire.send(header);
        let answer = wire.bytes_until_end();
        if bench.broker.is_lepus() {
            assert_eq!(answer, PROTOCOL_HEADER, "answer to {header:?}");
        } else {
            // RabbitMQ 4 would rather speak AMQP 1.0.
            assert!(answer.starts_with(b"AMQP"), "answer to {header:?}: {answer:?}");
        }
    }
}

#[test]
fn wrong_credentials_are_told_to_clients_that_can_hear_it() {
    let mut bench = Bench::new();
    let plain = |response: &[u8]| Login { response: response.to_vec(), ..Login::default() };
    let table = [&b"\x05LOGINS\x00\x00\x00\x05guest"[..], b"\x08PASSWORDS\x00\x00\x00\x05wrong"].concat();
    let amqplain = Login { mechanism: "AMQPLAIN".to_owned(), response: table, ..Login::default() };
    for login in [plain(b"\0guest\0wrong"), plain(b"\0nobody\0guest"), amqplain] {
        let text = format!(
            "ACCESS_REFUSED - Login was refused using authentication mechanism {}. For details see the broker logfile.",
            login.mechanism
        );
        assert_eq!(refused(&mut bench, &login), close(403, &text, (0, 0)));
        let deaf = Login { capabilities: false, ..login };
        assert_eq!(refused(&mut bench, &deaf), None);
    }
}

#[test]
fn an_unknown_mechanism_is_refused() {
    let mut bench = Bench::new();
    let login = Login { mechanism: "X".to_owned(), ..Login::default() };
    let text = "COMMAND_INVALID - unknown authentication mechanism 'X'";
    // RabbitMQ 4.3 says nothing to whom it does not know.
    let answer = if bench.broker.is_lepus() { close(503, text, (10, 11)) } else { None };
    assert_eq!(refused(&mut bench, &login), answer);
}

#[test]
fn an_unknown_vhost_is_named() {
    let mut bench = Bench::new();
    let login = Login { vhost: "foo".to_owned(), ..Login::default() };
    assert_eq!(refused(&mut bench, &login), close(530, "NOT_ALLOWED - vhost foo not found", (10, 40)));
}
