//! What the machine itself can do, so that a broker's figure can be shown as a share of it: one thread that parses
//! publishes and frames deliveries over loopback, and does nothing else; a loopback round trip; and, in a given
//! directory, plain synchronous writes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::loopback::{self, Echo};
use super::parties::properties;
use super::raw_write::RawWriter;
use crate::engine::histograms::{latencies, record_duration};
use crate::engine::progress::ProgressLine;
use crate::error::BenchError;
use crate::limits::{FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES, READ_BYTES, WRITE_BYTES_MAX};
use crate::options::{Context, seconds};
use crate::report::figures::quantiles;
use crate::report::{Better, Figure, Report, Unit};
use crate::threads::join;
use crate::wire::deck::{BodySizes, Deck, Place};
use crate::wire::encode::{Envelope, put_delivery};
use crate::wire::scan::{Event, Frames, publish_route};

/// The largest body: it is one frame.
const BODY_MAX: usize = FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES;

/// What to measure.
#[derive(Args, Clone, Debug, Serialize)]
pub struct LimitArgs {
    /// Bytes of each body.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=BODY_MAX as i64))]
    pub body: u32,
    /// Measure synchronous writes of the body's size, in whole blocks, in a file of this directory.
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// How long for each part.
    #[arg(long, default_value = "3", value_parser = seconds)]
    pub seconds: Duration,
}

impl LimitArgs {
    /// Measures.
    ///
    /// # Errors
    /// When loopback fails, or the directory cannot be written.
    pub fn run(&self, context: &Context) -> Result<Report, BenchError> {
        let mut report = Report::new("limit", self);
        let mut line = ProgressLine::new("limit", context.quiet);
        line.show("parsing and framing over loopback");
        let reframed = self.reframe(context)?;
        report.push(Figure::count("sent", reframed.sent));
        report.push(Figure::count("reframed", reframed.reframed));
        report.push(Figure::count("received", reframed.received));
        let rate = reframed.reframed as f64 / reframed.seconds;
        report.push(Figure::good("reframed_per_s", rate, Unit::PerSecond, Better::Higher));
        let per_million = reframed.cpu_s * 1e6 / reframed.reframed.max(1) as f64;
        report.push(Figure::good("cpu_s_per_million", per_million, Unit::Seconds, Better::Lower));

        line.show("loopback round trips");
        let mut echo = Echo::start()?;
        let trips = repeat(self.seconds / 2, context, || echo.round_trip())?;
        report.figures.extend(quantiles("round-trip", &trips));
        report.histograms.0.insert("round-trip", trips);

        if let Some(directory) = &self.directory {
            line.show("synchronous writes");
            let mut writer = RawWriter::new(directory, self.body as usize)?;
            report.push(Figure::new("raw_write_bytes", writer.write_bytes() as f64, Unit::Bytes));
            let times = repeat(self.seconds, context, || writer.write())?;
            report.figures.extend(quantiles("raw-write", &times));
            report.histograms.0.insert("raw-write", times);
        }
        report.interrupted = context.stop.is_set();
        Ok(report)
    }

    fn reframe(&self, context: &Context) -> Result<Reframed, BenchError> {
        let envelope = Envelope::new("", false, &properties(false));
        let sizes = BodySizes::Fixed(self.body as usize);
        let deck = Deck::new(&[(envelope, "q".to_owned())], &sizes, FRAME_BYTES_MAX, 0, 1);
        let (to_middle, from_publisher) = loopback::connection()?;
        let (to_consumer, from_middle) = loopback::connection()?;
        let began = Instant::now();
        let on = || began.elapsed() < self.seconds && !context.stop.is_set();
        let (sent, middle, received) = thread::scope(|scope| {
            let publisher = scope.spawn(|| publish(to_middle, &deck, on));
            let middle = scope.spawn(|| reframe(from_publisher, to_consumer));
            let consumer = scope.spawn(|| count_deliveries(from_middle));
            (join(publisher), join(middle), join(consumer))
        });
        let (reframed, cpu_s) = middle?;
        Ok(Reframed {
            sent: sent?,
            reframed,
            received: received?,
            cpu_s,
            seconds: began.elapsed().as_secs_f64(),
        })
    }
}

/// The times of something that is done over and over.
fn repeat(
    time: Duration,
    context: &Context,
    mut once: impl FnMut() -> Result<Duration, BenchError>,
) -> Result<Histogram<u64>, BenchError> {
    let (mut times, began) = (latencies(), Instant::now());
    while began.elapsed() < time && !context.stop.is_set() {
        record_duration(&mut times, once()?);
    }
    Ok(times)
}

struct Reframed {
    sent: u64,
    reframed: u64,
    received: u64,
    cpu_s: f64,
    seconds: f64,
}

/// Fills the socket with whole messages. Gives their number.
fn publish(mut socket: TcpStream, deck: &Deck, on: impl Fn() -> bool) -> Result<u64, BenchError> {
    let (mut place, mut sent) = (Place::default(), 0);
    while on() {
        let slice = place.slice(deck, u64::MAX);
        socket.write_all(slice)?;
        let bytes = slice.len();
        sent += place.advance(deck, bytes);
    }
    Ok(sent)
}

/// The least that a broker does: reads publishes, writes deliveries. Gives their number and the thread's CPU seconds.
fn reframe(mut from: TcpStream, mut to: TcpStream) -> Result<(u64, f64), BenchError> {
    let mut input = vec![0; READ_BYTES];
    let mut output = Vec::with_capacity(2 * READ_BYTES);
    let (mut kept, mut count) = (0, 0);
    loop {
        let read = from.read(&mut input[kept..])?;
        if read == 0 {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            return Ok((count, time.tv_sec as f64 + time.tv_nsec as f64 / 1e9));
        }
        let whole = kept + read;
        let mut frames = Frames::new(&input[..whole]);
        let mut message = Pending::default();
        let mut consumed = 0;
        while let Some(frame) = frames.next_frame()? {
            match frame.event() {
                Some(Event::Other(publish)) => message = Pending { publish, header: &[] },
                Some(Event::Header(_)) => message.header = frame.payload,
                Some(Event::Body(body)) => {
                    let (exchange, key) = publish_route(message.publish)
                        .ok_or_else(|| BenchError::Unexpected("no publish".to_owned()))?;
                    count += 1;
                    put_delivery(&mut output, b"c0", count, exchange, key, message.header, body);
                    // A message that is here in part is read again, from its first frame on.
                    consumed = frames.consumed();
                }
                _ => return Err(BenchError::Unexpected("neither publish nor content".to_owned())),
            }
        }
        to.write_all(&output)?;
        output.clear();
        input.copy_within(consumed..whole, 0);
        kept = whole - consumed;
    }
}

/// A message whose body is still to come.
#[derive(Default)]
struct Pending<'a> {
    publish: &'a [u8],
    header: &'a [u8],
}

fn count_deliveries(mut socket: TcpStream) -> Result<u64, BenchError> {
    let mut input = vec![0; READ_BYTES];
    let (mut kept, mut count) = (0, 0);
    loop {
        let read = socket.read(&mut input[kept..])?;
        if read == 0 {
            return Ok(count);
        }
        let whole = kept + read;
        let mut frames = Frames::new(&input[..whole]);
        while let Some(event) = frames.next_event()? {
            count += u64::from(matches!(event, Event::Deliver(_)));
        }
        let consumed = frames.consumed();
        input.copy_within(consumed..whole, 0);
        kept = whole - consumed;
    }
}

const _: () = assert!(WRITE_BYTES_MAX <= READ_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_sent_is_framed_again_and_received() {
        for body in [1, 1024, BODY_MAX as u32] {
            let args = LimitArgs { body, directory: None, seconds: Duration::from_millis(50) };
            let report = args.run(&Context { quiet: true, ..Context::default() }).unwrap();
            let figure = |name| report.figure(name).unwrap();
            assert!(figure("sent") > 0.0 && figure("round_trip_count") > 0.0);
            assert_eq!((figure("sent"), figure("sent")), (figure("reframed"), figure("received")), "{body}");
        }
    }
}
