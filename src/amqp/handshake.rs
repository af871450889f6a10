//! From the first byte of a connection to `connection.open-ok`.

use amq_protocol::protocol::{AMQPClass, connection};
use amq_protocol::types::{AMQPValue, FieldTable};
use lepus_shards::shard::{NewConnection, Shard};

use super::failure::{ACCESS_REFUSED, COMMAND_INVALID, Failure, NOT_ALLOWED, SYNTAX_ERROR};
use super::front::HasFront;
use super::limits::{FRAME_MIN_BYTES, REFUSED_LOGIN_DELAY_MS};
use super::method;
use super::peer::{Capabilities, Phase};
use super::session::fail_connection;
use super::table::check_table;

const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// The first eight bytes; none while they cannot be told wrong and are not all there.
pub(super) fn take_header<E: HasFront>(fx: &mut E, slot: u32, bytes: &[u8]) -> Option<usize> {
    let given = &bytes[..bytes.len().min(PROTOCOL_HEADER.len())];
    if given != &PROTOCOL_HEADER[..given.len()] {
        fx.front().out(slot).extend_from_slice(&PROTOCOL_HEADER);
        fx.front().peer(slot).phase = Phase::Flushing;
        return Some(bytes.len());
    }
    if given.len() < PROTOCOL_HEADER.len() {
        return None;
    }
    let config = &fx.front().config;
    let start = connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties: server_properties(&config.product, &config.version, &config.cluster_name),
        mechanisms: "PLAIN AMQPLAIN".into(),
        locales: "en_US".into(),
    };
    let class = AMQPClass::Connection(connection::AMQPMethod::Start(start));
    method::write(fx.front().out(slot), 0, &class);
    fx.front().peer(slot).phase = Phase::Start;
    Some(PROTOCOL_HEADER.len())
}

fn server_properties(product: &str, version: &str, cluster_name: &str) -> FieldTable {
    let mut capabilities = FieldTable::default();
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ] {
        capabilities.insert(name.into(), AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    for (name, text) in [
        ("product", product),
        ("version", version),
        ("platform", "Rust"),
        ("copyright", "The Lepus authors"),
        ("information", "Licensed under the Apache License 2.0"),
        ("cluster_name", cluster_name),
    ] {
        properties.insert(name.into(), AMQPValue::LongString(text.into()));
    }
    properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    properties
}

/// A method of the handshake.
pub(super) fn take_method<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    method: connection::AMQPMethod,
) -> Result<(), Failure> {
    let phase = fx.front().peer(slot).phase;
    match (phase, method) {
        (Phase::Start, connection::AMQPMethod::StartOk(start_ok)) => log_in(shard, fx, slot, &start_ok),
        (Phase::Tune, connection::AMQPMethod::TuneOk(tune_ok)) => tune(fx, slot, &tune_ok),
        (Phase::Open, connection::AMQPMethod::Open(open)) => {
            open_vhost(shard, fx, slot, open.virtual_host.as_str())
        }
        _ => Err(Failure::new(COMMAND_INVALID, "a connection method that is not due", (0, 0))),
    }
}

fn log_in<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    slot: u32,
    start_ok: &connection::StartOk,
) -> Result<(), Failure> {
    const IDS: (u16, u16) = (10, 11);
    let peer = fx.front().peer(slot);
    peer.capabilities = read_capabilities(&start_ok.client_properties);
    let (mechanism, response) = (start_ok.mechanism.as_str(), start_ok.response.as_bytes());
    let credentials = match mechanism {
        "PLAIN" => read_plain(response),
        "AMQPLAIN" => read_amqplain(response),
        other => {
            let text = format!("unknown authentication mechanism '{other}'");
            return Err(Failure::new(COMMAND_INVALID, text, IDS));
        }
    };
    let Some((user, password)) = credentials else {
        return Err(Failure::new(
            SYNTAX_ERROR,
            format!("response of mechanism {mechanism} cannot be read"),
            IDS,
        ));
    };
    let from_loopback = peer.from_loopback;
    let front = fx.front();
    if front.config.authenticate.check(&user, &password, from_loopback) {
        let tune = connection::Tune {
            channel_max: front.config.channel_max,
            frame_max: front.config.frame_max,
            heartbeat: front.config.heartbeat_s,
        };
        let peer = front.peer(slot);
        peer.user = String::from_utf8_lossy(&user).into_owned();
        peer.phase = Phase::Tune;
        method::write(front.out(slot), 0, &AMQPClass::Connection(connection::AMQPMethod::Tune(tune)));
        return Ok(());
    }
    tracing::warn!(user = %String::from_utf8_lossy(&user), "login refused");
    if front.peer(slot).capabilities.authentication_failure_close {
        let text = format!(
            "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        );
        fail_connection(shard, fx, slot, &Failure::new(ACCESS_REFUSED, text, (0, 0)));
        return Ok(());
    }
    let deadline_ms = front.now_ms + REFUSED_LOGIN_DELAY_MS;
    let peer = front.peer(slot);
    peer.phase = Phase::LoginRefused;
    peer.deadline_ms = Some(deadline_ms);
    Ok(())
}

fn read_capabilities(properties: &FieldTable) -> Capabilities {
    let Some(AMQPValue::FieldTable(table)) = properties.inner().get("capabilities") else {
        return Capabilities::default();
    };
    let has = |name| matches!(table.inner().get(name), Some(AMQPValue::Boolean(true)));
    Capabilities {
        blocked: has("connection.blocked"),
        cancel_notify: has("consumer_cancel_notify"),
        authentication_failure_close: has("authentication_failure_close"),
    }
}

/// RFC 4616: authorization identity, user, password, separated by NUL.
fn read_plain(response: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut parts = response.splitn(3, |byte| *byte == 0);
    let (_identity, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    (!password.contains(&0)).then(|| (user.to_vec(), password.to_vec()))
}

/// A table without its length: LOGIN and PASSWORD.
fn read_amqplain(response: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut table = u32::try_from(response.len()).ok()?.to_be_bytes().to_vec();
    table.extend_from_slice(response);
    check_table(&table).ok()?;
    let (_, table) = amq_protocol::types::parsing::parse_field_table(table.as_slice()).ok()?;
    let text = |name| match table.inner().get(name) {
        Some(AMQPValue::LongString(text)) => Some(text.as_bytes().to_vec()),
        _ => None,
    };
    Some((text("LOGIN")?, text("PASSWORD")?))
}

fn tune<E: HasFront>(fx: &mut E, slot: u32, tune_ok: &connection::TuneOk) -> Result<(), Failure> {
    const IDS: (u16, u16) = (10, 31);
    let front = fx.front();
    let (frame_max, channel_max) = (front.config.frame_max, front.config.channel_max);
    if tune_ok.frame_max != 0 && tune_ok.frame_max < FRAME_MIN_BYTES {
        let text = format!(
            "negotiated frame_max = {} is lower than the minimum allowed value ({FRAME_MIN_BYTES})",
            tune_ok.frame_max
        );
        return Err(Failure::new(NOT_ALLOWED, text, IDS));
    }
    if tune_ok.frame_max > frame_max {
        let text = format!(
            "negotiated frame_max = {} is higher than the maximum allowed value ({frame_max})",
            tune_ok.frame_max
        );
        return Err(Failure::new(NOT_ALLOWED, text, IDS));
    }
    if tune_ok.channel_max > channel_max && channel_max != 0 {
        let text = format!(
            "negotiated channel_max = {} is higher than the maximum allowed value ({channel_max})",
            tune_ok.channel_max
        );
        return Err(Failure::new(NOT_ALLOWED, text, IDS));
    }
    let peer = front.peer(slot);
    // 0 asks for no limit of the client's own: ours stays.
    if tune_ok.frame_max != 0 {
        peer.frame_max = tune_ok.frame_max as usize;
    }
    if tune_ok.channel_max != 0 {
        peer.channel_max = tune_ok.channel_max;
    }
    peer.heartbeat_ms = u64::from(tune_ok.heartbeat) * 1000;
    peer.phase = Phase::Open;
    Ok(())
}

fn open_vhost<E: HasFront>(shard: &mut Shard, fx: &mut E, slot: u32, name: &str) -> Result<(), Failure> {
    let Some(vhost) = shard.topology().vhost(name) else {
        return Err(Failure::new(NOT_ALLOWED, format!("vhost {name} not found"), (10, 40)));
    };
    let connection = shard.open_connection(slot, NewConnection { vhost });
    let peer = fx.front().peer(slot);
    peer.vhost = vhost;
    peer.connection = Some(connection);
    peer.phase = Phase::Running;
    peer.deadline_ms = None;
    let ok = connection::AMQPMethod::OpenOk(connection::OpenOk {});
    method::write(fx.front().out(slot), 0, &AMQPClass::Connection(ok));
    Ok(())
}
