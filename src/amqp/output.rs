//! What waits to be written to a connection's socket.

/// Bytes to write, oldest first. An empty one holds no memory.
#[derive(Default, Debug)]
pub struct Output {
    buffer: Vec<u8>,
    start: usize,
    written: u64,
}

impl Output {
    /// What is to be written next.
    pub fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// So many of the pending bytes have been written.
    ///
    /// # Panics
    /// When that is more than were pending.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.pending().len(), "only pending bytes are written");
        self.start += count;
        self.written += count as u64;
        // A consumer that never quite catches up must not make the buffer grow for ever.
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start >= 1 << 20 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
    }

    /// Bytes ever written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// The end of the buffer, to append to.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Takes the memory of an output that has nothing pending.
    pub(super) fn take_empty(&mut self) -> Option<Vec<u8>> {
        if self.pending().is_empty() && self.buffer.capacity() > 0 {
            self.start = 0;
            return Some(std::mem::take(&mut self.buffer));
        }
        None
    }
}
