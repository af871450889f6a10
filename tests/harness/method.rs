//! AMQP 0-9-1 methods, tables and properties as bytes, written by hand so that a test can also write wrong ones.
#![forbid(unsafe_code)]

/// A method under construction: class and method id, then arguments in the order of the specification.
#[derive(Clone, Debug)]
pub struct Method {
    bytes: Vec<u8>,
}

impl Method {
    /// A method without arguments so far.
    pub fn new(class: u16, method: u16) -> Method {
        let mut bytes = class.to_be_bytes().to_vec();
        bytes.extend(method.to_be_bytes());
        Method { bytes }
    }

    pub fn octet(self, value: u8) -> Method {
        self.raw(&[value])
    }

    pub fn short(self, value: u16) -> Method {
        self.raw(&value.to_be_bytes())
    }

    pub fn long(self, value: u32) -> Method {
        self.raw(&value.to_be_bytes())
    }

    pub fn longlong(self, value: u64) -> Method {
        self.raw(&value.to_be_bytes())
    }

    pub fn shortstr(self, text: &str) -> Method {
        let length = u8::try_from(text.len()).expect("a short string has at most 255 bytes");
        self.octet(length).raw(text.as_bytes())
    }

    pub fn longstr(self, bytes: &[u8]) -> Method {
        let length = u32::try_from(bytes.len()).expect("a long string fits a frame");
        self.long(length).raw(bytes)
    }

    /// Consecutive bits share octets, at most eight of them here.
    pub fn bits(self, bits: &[bool]) -> Method {
        assert!(bits.len() <= 8, "one octet of bits");
        let octet = bits.iter().enumerate().fold(0, |octet, (at, bit)| octet | u8::from(*bit) << at);
        self.octet(octet)
    }

    pub fn table(self, arguments: &Arguments) -> Method {
        self.longstr(&arguments.0)
    }

    fn raw(mut self, bytes: &[u8]) -> Method {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The payload of the method frame.
    pub fn payload(&self) -> &[u8] {
        &self.bytes
    }
}

/// The fields of a table, without the length in front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    pub fn new() -> Arguments {
        Arguments::default()
    }

    pub fn text(self, name: &str, value: &str) -> Arguments {
        let mut field = vec![b'S'];
        field.extend(u32::try_from(value.len()).expect("short enough").to_be_bytes());
        field.extend(value.as_bytes());
        self.field(name, &field)
    }

    pub fn int(self, name: &str, value: i32) -> Arguments {
        let mut field = vec![b'I'];
        field.extend(value.to_be_bytes());
        self.field(name, &field)
    }

    pub fn bool(self, name: &str, value: bool) -> Arguments {
        self.field(name, &[b't', u8::from(value)])
    }

    pub fn nested(self, name: &str, value: &Arguments) -> Arguments {
        let mut field = vec![b'F'];
        field.extend(value.wire());
        self.field(name, &field)
    }

    /// A field whose type octet and value the test wrote itself.
    pub fn field(mut self, name: &str, value: &[u8]) -> Arguments {
        self.0.push(u8::try_from(name.len()).expect("a field name is a short string"));
        self.0.extend(name.as_bytes());
        self.0.extend(value);
        self
    }

    /// Length and fields.
    pub fn wire(&self) -> Vec<u8> {
        let mut wire = u32::try_from(self.0.len()).expect("fits a frame").to_be_bytes().to_vec();
        wire.extend(&self.0);
        wire
    }
}

/// Property flags and list of a content header: opaque bytes, compared as such.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties(pub Vec<u8>);

impl Properties {
    pub fn none() -> Properties {
        Properties(vec![0, 0])
    }

    /// Delivery mode 2 and nothing else.
    pub fn persistent() -> Properties {
        Properties(vec![0x10, 0x00, 2])
    }

    /// A headers table and nothing else.
    pub fn headers(headers: &Arguments) -> Properties {
        let mut wire = vec![0x20, 0x00];
        wire.extend(headers.wire());
        Properties(wire)
    }
}

/// Reads arguments in the order of the specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    pub fn new(bytes: Vec<u8>) -> Reader {
        Reader { bytes, at: 0 }
    }

    pub fn octet(&mut self) -> u8 {
        self.take(1)[0]
    }

    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("two bytes"))
    }

    pub fn long(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    pub fn longlong(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    pub fn shortstr(&mut self) -> String {
        let length = usize::from(self.octet());
        String::from_utf8(self.take(length).to_vec()).expect("short strings are UTF-8")
    }

    pub fn longstr(&mut self) -> Vec<u8> {
        let length = self.long() as usize;
        self.take(length).to_vec()
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn take(&mut self, length: usize) -> &[u8] {
        let from = self.at;
        self.at += length;
        assert!(
            self.at <= self.bytes.len(),
            "the broker sent arguments that are too short: {:?}",
            self.bytes
        );
        &self.bytes[from..self.at]
    }
}
