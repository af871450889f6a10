//! Percentile distributions in the text form that HdrHistogram's tools read and plot, in microseconds.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;

/// Steps for each halving of the distance to 100 %, as HdrHistogram's own tools have it.
const TICKS_PER_HALF: u32 = 5;
const NANOS_PER_MICRO: f64 = 1e3;

/// The distribution of a histogram in nanoseconds.
pub fn write(histogram: &Histogram<u64>) -> String {
    let mut text = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    let mut below = 0;
    for value in histogram.iter_quantiles(TICKS_PER_HALF) {
        let us = value.value_iterated_to() as f64 / NANOS_PER_MICRO;
        let quantile = value.quantile_iterated_to();
        below += value.count_since_last_iteration();
        let _ = match quantile < 1.0 {
            true => writeln!(text, "{us:12.3} {quantile:2.12} {below:10} {:14.2}", 1.0 / (1.0 - quantile)),
            false => writeln!(text, "{us:12.3} {quantile:2.12} {below:10}"),
        };
    }
    let _ = writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n#[Max     = {:12.3}, Total count    = {:12}]",
        histogram.mean() / NANOS_PER_MICRO,
        histogram.stdev() / NANOS_PER_MICRO,
        histogram.max() as f64 / NANOS_PER_MICRO,
        histogram.len(),
    );
    text
}

/// Where a histogram goes when there are several: `run.hgrm` becomes `run-deliver.hgrm`.
pub fn path_for(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let extension = path.extension().map_or_else(String::new, |end| format!(".{}", end.to_string_lossy()));
    path.with_file_name(format!("{stem}-{name}{extension}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::histograms::{latencies, record};

    #[test]
    fn the_distribution_rises_to_all_of_the_counts() {
        let mut histogram = latencies();
        (1..=1000).for_each(|us| record(&mut histogram, us * 1000));
        let text = write(&histogram);
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|field| field.parse().unwrap()).collect())
            .collect();
        assert!(rows.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1]));
        let last = rows.last().unwrap();
        assert_eq!((last[1], last[2], last.len()), (1.0, 1000.0, 3));
        let median = rows.iter().find(|row| row[1] >= 0.5).unwrap();
        assert!((median[0] - 500.0).abs() < 1.0 && (median[3] - 2.0).abs() < 0.01, "{median:?}");
        assert!(text.contains("Total count    =         1000"));
    }

    #[test]
    fn an_empty_histogram_can_be_written() {
        assert!(write(&latencies()).contains("Total count    =            0"));
    }

    #[test]
    fn several_histograms_have_a_file_each() {
        assert_eq!(path_for(Path::new("d/run.hgrm"), "deliver"), Path::new("d/run-deliver.hgrm"));
        assert_eq!(path_for(Path::new("run"), "confirm"), Path::new("run-confirm"));
    }
}
