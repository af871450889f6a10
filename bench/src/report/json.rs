//! A report as JSON: one object, numbers by name.
//!
//! ```json
//! {"workload": "throughput", "broker": {"uri": "...", "product": "Lepus", "version": "0.1.0"}, "options": {},
//!  "figures": {"sent": 1000, "sent_per_s": 998.2}, "steps": [{"name": "...", "figures": {}}],
//!  "samples": [{"seconds": 0.2, "sent": 990.0, "delivered": 990.0, "confirmed": 0.0}],
//!  "notes": [], "interrupted": false}
//! ```

use serde_json::{Map, Number, Value, json};

use super::{Figure, Report, Unit};

/// The report as one value.
pub fn value(report: &Report) -> Value {
    let steps =
        report.steps.iter().map(|step| json!({ "name": step.name, "figures": figures(&step.figures) }));
    let samples = report.samples.iter().map(|sample| {
        json!({
            "seconds": sample.seconds,
            "sent": sample.sent,
            "delivered": sample.delivered,
            "confirmed": sample.confirmed,
        })
    });
    json!({
        "workload": report.workload,
        "broker": report.broker,
        "options": report.options,
        "figures": figures(&report.figures),
        "steps": steps.collect::<Vec<_>>(),
        "samples": samples.collect::<Vec<_>>(),
        "notes": report.notes,
        "interrupted": report.interrupted,
    })
}

/// Numbers by name; counts and bytes are whole.
pub fn figures(figures: &[Figure]) -> Value {
    let pairs = figures.iter().map(|figure| (figure.name.to_string(), number(figure)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn number(figure: &Figure) -> Value {
    match figure.unit {
        Unit::Count | Unit::Bytes if figure.value >= 0.0 => Value::from(figure.value.round() as u64),
        // What is not finite has no form in JSON.
        _ => Number::from_f64(figure.value).map_or(Value::Null, Value::Number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_whole_and_what_is_no_number_is_null() {
        let all = [
            Figure::count("sent", 12_345_678_901),
            Figure::new("a_s", 1.5, Unit::Seconds),
            Figure::new("b", f64::NAN, Unit::Ratio),
        ];
        assert_eq!(figures(&all).to_string(), r#"{"a_s":1.5,"b":null,"sent":12345678901}"#);
    }

    #[test]
    fn a_report_is_one_object() {
        let report = Report { workload: "idle", notes: vec!["n".into()], ..Report::default() };
        let value = value(&report);
        assert_eq!((&value["workload"], &value["notes"][0]), (&json!("idle"), &json!("n")));
        assert_eq!(value["broker"], Value::Null);
    }
}
