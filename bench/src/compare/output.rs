//! A comparison as a table, as JSON, as CSV, and as bars.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::stats::{Row, Summary, Table};
use crate::report::csv::field;
use crate::report::figures::{shown, significant};
use crate::report::plot::bars::{Bar, Group, draw};
use crate::report::table::{columns, label};

/// Figures that tables and bars show; JSON and CSV have all.
const HEADLINES: [&str; 23] = [
    "delivered_per_s",
    "confirmed_per_s",
    "broker_cpu_s_per_million",
    "deliver_p50_us",
    "deliver_p99_us",
    "deliver_p99_9_us",
    "confirm_p50_us",
    "confirm_p99_us",
    "confirm_to_raw_write_ratio",
    "confirm_to_least_ratio",
    "together_per_s",
    "cpu_to_plain_delivery_ratio",
    "round_trips_per_s",
    "round_trip_p50_us",
    "round_trip_p99_us",
    "bytes_per_connection",
    "broker_cores",
    "connections_per_s",
    "channels_per_s",
    "queues_per_s",
    "fill_per_s",
    "drain_per_s",
    "best_rate_per_s",
];

fn headlines(table: &Table) -> impl Iterator<Item = &Row> {
    table.rows.iter().filter(|row| HEADLINES.contains(&row.figure.as_str()))
}

/// For people: medians, in brackets how far the runs lie apart, and the ratio to the first broker.
pub fn text(table: &Table) -> String {
    let mut text = String::new();
    for target in &table.targets {
        let _ = writeln!(
            text,
            "{}: {} {} at {}",
            target.name, target.broker.product, target.broker.version, target.uri
        );
    }
    let _ = writeln!(
        text,
        "\nmedians of up to {} runs in turns; (n %): from the least to the most of them; xN: in parts of {}",
        table.rounds, table.targets[0].name
    );
    let mut head = vec!["workload".to_owned(), "figure".to_owned()];
    for (number, target) in table.targets.iter().enumerate() {
        head.push(target.name.clone());
        if number > 0 {
            head.push(String::new());
        }
    }
    let mut rows = vec![head];
    let mut last = "";
    for row in headlines(table) {
        let name = if row.workload == last { "" } else { &row.workload };
        last = &row.workload;
        let mut cells = vec![name.to_owned(), label(&row.figure)];
        for target in 0..table.targets.len() {
            cells.push(row.summary(target).map_or_else(|| "-".to_owned(), |summary| cell(row, &summary)));
            if target > 0 {
                let ratio = row.ratio(target);
                cells.push(
                    ratio.map_or_else(String::new, |ratio| format!("x{}", significant(ratio.of_medians))),
                );
            }
        }
        rows.push(cells);
    }
    text.push_str(&columns(&rows));
    for note in &table.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn cell(row: &Row, summary: &Summary) -> String {
    format!("{} ({:.0} %)", shown(summary.median, row.unit), summary.spread * 100.0)
}

/// One object: brokers, and for each workload and figure the medians, bounds and ratios by broker.
pub fn json(table: &Table) -> Value {
    let targets = table.targets.iter().map(|target| {
        json!({
            "name": target.name,
            "uri": target.uri.to_string(),
            "product": target.broker.product,
            "version": target.broker.version,
        })
    });
    let mut workloads = Map::new();
    for row in &table.rows {
        let figures = workloads.entry(row.workload.clone()).or_insert_with(|| json!({}));
        let mut by_target = Map::new();
        for (number, target) in table.targets.iter().enumerate() {
            let Some(summary) = row.summary(number) else { continue };
            let ratio = row.ratio(number);
            by_target.insert(
                target.name.clone(),
                json!({
                    "median": summary.median,
                    "min": summary.min,
                    "max": summary.max,
                    "spread": summary.spread,
                    "runs": summary.runs,
                    "ratio": ratio.map(|ratio| ratio.of_medians),
                    "ratio_min": ratio.map(|ratio| ratio.min),
                    "ratio_max": ratio.map(|ratio| ratio.max),
                }),
            );
        }
        figures[&row.figure] = Value::Object(by_target);
    }
    json!({
        "targets": targets.collect::<Vec<_>>(),
        "rounds": table.rounds,
        "workloads": workloads,
        "notes": table.notes,
    })
}

/// One line for each figure and broker.
pub fn csv(table: &Table) -> String {
    let mut text = String::from("workload,figure,broker,median,min,max,spread,runs,ratio\n");
    for row in &table.rows {
        for (number, target) in table.targets.iter().enumerate() {
            let Some(Summary { median, min, max, spread, runs }) = row.summary(number) else { continue };
            let ratio = row.ratio(number).map_or_else(String::new, |ratio| ratio.of_medians.to_string());
            let names = [&row.workload, &row.figure, &target.name].map(|name| field(name)).join(",");
            let _ = writeln!(text, "{names},{median},{min},{max},{spread},{runs},{ratio}");
        }
    }
    text
}

/// Bars of what the table shows.
pub fn svg(table: &Table) -> String {
    let groups: Vec<Group> = headlines(table)
        .map(|row| {
            let bars = table.targets.iter().enumerate().filter_map(|(number, target)| {
                let summary = row.summary(number)?;
                let ratio = row.ratio(number).filter(|_| number > 0);
                let ratio =
                    ratio.map_or_else(String::new, |ratio| format!("  x{}", significant(ratio.of_medians)));
                Some(Bar {
                    name: target.name.clone(),
                    value: summary.median,
                    spread: (summary.min, summary.max),
                    text: format!("{}{ratio}", shown(summary.median, row.unit)),
                })
            });
            Group { title: format!("{}: {}", row.workload, label(&row.figure)), bars: bars.collect() }
        })
        .collect();
    let brokers =
        table.targets.iter().map(|target| format!("{} {}", target.broker.product, target.broker.version));
    let title =
        format!("{}: medians of {} runs in turns", brokers.collect::<Vec<_>>().join(", "), table.rounds);
    draw(&title, &groups)
}

#[cfg(test)]
mod tests {
    use super::super::stats::tests::a_table;
    use super::*;

    #[test]
    fn the_table_shows_medians_spread_ratios_and_what_is_missing() {
        let text = text(&a_table());
        for part in ["a: A 1 at amqp://h", "110/s (91 %)", "400/s (35 %)", "x3.64", "note: 16-B on b: slow"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let missing = text.lines().find(|line| line.starts_with("lat")).unwrap();
        assert!(missing.split_whitespace().any(|cell| cell == "-"), "{missing}");
    }

    #[test]
    fn json_has_every_figure_by_workload_and_broker() {
        let value = json(&a_table());
        let figure = &value["workloads"]["16-B"]["delivered_per_s"];
        assert_eq!(
            (figure["a"]["median"].as_f64(), figure["b"]["ratio_max"].as_f64()),
            (Some(110.0), Some(4.0))
        );
        assert_eq!(value["workloads"]["lat"]["deliver_p99_us"]["b"]["ratio"], Value::Null);
        assert_eq!(value["targets"][1]["product"], "B");
    }

    #[test]
    fn csv_has_a_line_for_each_figure_and_broker() {
        let csv = csv(&a_table());
        assert_eq!(csv.lines().count(), 4);
        assert!(csv.contains("16-B,delivered_per_s,a,110,100,200,"), "{csv}");
        assert!(csv.ends_with("lat,deliver_p99_us,b,5,5,5,0,1,\n"), "{csv}");
    }

    #[test]
    fn bars_are_drawn_for_what_the_table_shows() {
        let svg = svg(&a_table());
        assert!(svg.contains(">16-B: delivered per s<") && svg.contains("400/s  x3.64<"), "{svg}");
    }
}
