//! An SVG document, element by element. Readable on light and dark pages: it brings its own background.

use std::fmt::Write as _;

/// Colours of lines and bars, in turn; they differ in brightness as well.
pub const COLOURS: [&str; 6] = ["#1b6ca8", "#e07b00", "#2e8b57", "#8b1a4f", "#6b5b95", "#444444"];

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    /// To its right.
    Start,
    /// Around it.
    Middle,
    /// To its left.
    End,
}

/// A document that is being written.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

impl Svg {
    /// A document of this size in pixels, with a title at its top.
    pub fn new(width: f64, height: f64, title: &str) -> Svg {
        let mut text = String::new();
        let _ = write!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        let mut svg = Svg { text };
        svg.text_at(12.0, 26.0, Anchor::Start, 16.0, title);
        svg
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let _ = writeln!(
            self.text,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through points.
    pub fn polyline(&mut self, points: impl Iterator<Item = (f64, f64)>, colour: &str) {
        self.text.push_str("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"");
        self.text.push_str(colour);
        self.text.push_str("\" points=\"");
        for (x, y) in points {
            let _ = write!(self.text, "{x:.1},{y:.1} ");
        }
        self.text.push_str("\"/>\n");
    }

    /// A filled rectangle.
    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>",
            width.max(0.0)
        );
    }

    /// A text.
    pub fn text_at(&mut self, x: f64, y: f64, anchor: Anchor, size: f64, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"#222222\">{escaped}</text>"
        );
    }

    /// The whole document.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_widths_are_not_negative() {
        let mut svg = Svg::new(10.0, 10.0, "a<b & c");
        svg.rect(0.0, 0.0, -1.0, 1.0, "#000000");
        let text = svg.finish();
        assert!(text.contains("a&lt;b &amp; c") && text.contains("width=\"0.0\""), "{text}");
    }
}
