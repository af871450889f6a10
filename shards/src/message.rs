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
