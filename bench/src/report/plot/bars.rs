//! Bars for comparison: groups of horizontal bars, each group on a scale of its own, with the spread of the runs.

use super::svg::{Anchor, COLOURS, Svg};

const WIDTH: f64 = 860.0;
const BARS_LEFT: f64 = 130.0;
const BARS_WIDTH: f64 = 520.0;
const BAR_HEIGHT: f64 = 18.0;
const GROUP_HEAD: f64 = 26.0;
const GROUP_GAP: f64 = 10.0;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Whose it is.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// Least and most of all runs.
    pub spread: (f64, f64),
    /// Behind it.
    pub text: String,
}

/// Bars of one figure.
#[derive(Clone, Debug)]
pub struct Group {
    /// Above them.
    pub title: String,
    /// One for each broker.
    pub bars: Vec<Bar>,
}

/// The whole picture.
pub fn draw(title: &str, groups: &[Group]) -> String {
    let height_of = |group: &Group| GROUP_HEAD + BAR_HEIGHT * group.bars.len() as f64 + GROUP_GAP;
    let height = 44.0 + groups.iter().map(height_of).sum::<f64>();
    let mut svg = Svg::new(WIDTH, height, title);
    let mut top = 44.0;
    for group in groups {
        svg.text_at(12.0, top + 16.0, Anchor::Start, 13.0, &group.title);
        let longest = group.bars.iter().map(|bar| bar.value.max(bar.spread.1)).fold(0.0, f64::max);
        let x = |value: f64| BARS_LEFT + BARS_WIDTH * if longest > 0.0 { value / longest } else { 0.0 };
        for (number, bar) in group.bars.iter().enumerate() {
            let y = top + GROUP_HEAD + BAR_HEIGHT * number as f64;
            let middle = y + BAR_HEIGHT / 2.0;
            svg.text_at(BARS_LEFT - 8.0, middle + 4.0, Anchor::End, 12.0, &bar.name);
            svg.rect(
                BARS_LEFT,
                y + 2.0,
                x(bar.value) - BARS_LEFT,
                BAR_HEIGHT - 4.0,
                COLOURS[number % COLOURS.len()],
            );
            svg.line((x(bar.spread.0), middle), (x(bar.spread.1), middle), "#000000", 1.5);
            svg.text_at(x(bar.value.max(bar.spread.1)) + 8.0, middle + 4.0, Anchor::Start, 12.0, &bar.text);
        }
        top += height_of(group);
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_has_the_whole_width_and_others_their_share() {
        let bar = |name: &str, value| Bar {
            name: name.into(),
            value,
            spread: (value, value),
            text: format!("{value} us"),
        };
        let group = Group { title: "latency".into(), bars: vec![bar("a", 100.0), bar("b", 25.0)] };
        let svg = draw("all", &[group]);
        assert!(svg.contains("width=\"520.0\"") && svg.contains("width=\"130.0\""), "{svg}");
        assert!(svg.contains(">25 us<") && svg.contains(">latency<"));
        let nothing = Group { title: "none".into(), bars: vec![bar("a", 0.0)] };
        assert!(!draw("all", &[nothing]).contains("NaN"));
    }
}
