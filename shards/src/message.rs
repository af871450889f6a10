//! A message as the kernel sees it: routing data, opaque properties, body. Borrowed on its way in,
//! stored as one record where it waits.

/// A message whose bytes somebody else holds: a read buffer, a batch, or a stored record.
///
/// `properties` is opaque to the kernel: the protocol's own wire form (in AMQP 0-9-1 the property
/// flags and property list of the content header), so that delivery is a copy and not an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageView<'a> {
    /// Name of the exchange it was published to, at most 255 bytes of UTF-8.
    pub exchange: &'a [u8],
    /// Routing key, at most 255 bytes.
    pub routing_key: &'a [u8],
    /// Properties in the protocol's wire form.
    pub properties: &'a [u8],
    /// The body.
    pub body: &'a [u8],
}

impl MessageView<'_> {
    /// Bytes of all parts together.
    pub fn size(&self) -> usize {
        self.exchange.len() + self.routing_key.len() + self.properties.len() + self.body.len()
    }
}

/// What a message outlives: a queue and a message each say so, and the lesser holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Durability {
    /// Nothing: the owning shard has it.
    #[default]
    Memory,
    /// The process: the kernel has it.
    Os,
    /// Power: it is on stable storage.
    Fsync,
}

impl Durability {
    /// By the name that configuration, queue arguments and headers use.
    pub fn from_name(name: &str) -> Option<Durability> {
        match name {
            "memory" => Some(Durability::Memory),
            "os" => Some(Durability::Os),
            "fsync" => Some(Durability::Fsync),
            _ => None,
        }
    }
}
