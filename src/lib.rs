//! Lepus, an AMQP 0-9-1 broker.
