//! Plots: ratios to raw TCP, with their spread, as bars around the line at 1.

use crate::stats::Spread;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Bars of a group stand together.
    pub group: String,
    /// Bars of a variant have one colour.
    pub variant: String,
    /// Its height, and the whisker on it.
    pub ratio: Spread,
    /// For the label of the axis.
    pub lower_is_better: bool,
}

const COLOURS: [RGBColor; 10] = [
    RGBColor(0x9a, 0xa5, 0xb1),
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0xbc, 0xbd, 0x22),
];
/// Ratios further apart than this are drawn on a logarithmic axis.
const LINEAR_SPAN_MAX: f64 = 5.0;

struct Layout {
    groups: Vec<String>,
    variants: Vec<String>,
    logarithmic: bool,
    low: f64,
    high: f64,
}

impl Layout {
    fn of(bars: &[Bar]) -> Self {
        let ends = || bars.iter().flat_map(|bar| [bar.ratio.p25, bar.ratio.median, bar.ratio.p75, 1.0]);
        let low = ends().filter(|v| *v > 0.0).fold(1.0, f64::min);
        let high = ends().fold(1.0, f64::max);
        let logarithmic = high / low > LINEAR_SPAN_MAX;
        let (low, high) =
            if logarithmic { (low.log10() - 0.1, high.log10() + 0.1) } else { (0.0, high * 1.1) };
        Self {
            groups: distinct(bars.iter().map(|bar| &bar.group)),
            variants: distinct(bars.iter().map(|bar| &bar.variant)),
            logarithmic,
            low,
            high,
        }
    }

    fn height(&self, ratio: f64) -> f64 {
        if self.logarithmic { ratio.max(1e-6).log10() } else { ratio }
    }

    fn label(&self, height: f64) -> String {
        crate::report::short(if self.logarithmic { 10f64.powf(height) } else { height })
    }

    /// Where bars grow from: 1 on a logarithmic axis, 0 on a linear one.
    fn floor(&self) -> f64 {
        0.0
    }

    fn place(&self, bar: &Bar) -> (f64, f64) {
        const FILLED: f64 = 0.8;
        let position =
            |list: &[String], name: &String| list.iter().position(|n| n == name).unwrap_or(0) as f64;
        let width = FILLED / self.variants.len().max(1) as f64;
        let left = position(&self.groups, &bar.group)
            + (1.0 - FILLED) / 2.0
            + width * position(&self.variants, &bar.variant);
        (left, left + width * 0.92)
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    for name in names {
        if !list.contains(name) {
            list.push(name.clone());
        }
    }
    list
}

/// Draws the bars into a file.
pub fn draw(path: &Path, title: &str, bars: &[Bar]) -> Result<()> {
    draw_svg(path, title, bars).map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

fn draw_svg(path: &Path, title: &str, bars: &[Bar]) -> Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::of(bars);
    let width = u32::try_from(160 + layout.groups.len() * layout.variants.len() * 22)?.clamp(640, 1800);
    let root = SVGBackend::new(path, (width, 480)).into_drawing_area();
    root.fill(&WHITE)?;
    let groups = layout.groups.len() as f64;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..groups, layout.low..layout.high)?;
    let lower = bars.first().is_some_and(|bar| bar.lower_is_better);
    let group_at = |x: &f64| {
        let at = (0..layout.groups.len()).find(|i| (*i as f64 + 0.5 - x).abs() < 1e-6);
        at.map_or_else(String::new, |i| layout.groups[i].clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(layout.groups.len() * 2 + 1)
        .x_label_formatter(&group_at)
        .y_label_formatter(&|y| layout.label(*y))
        .y_desc(if lower { "ratio to raw (lower is better)" } else { "ratio to raw (higher is better)" })
        .draw()?;
    for (index, variant) in layout.variants.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let of_variant = || bars.iter().filter(|bar| bar.variant == *variant);
        let rectangles = of_variant().map(|bar| {
            let (left, right) = layout.place(bar);
            Rectangle::new(
                [(left, layout.floor()), (right, layout.height(bar.ratio.median))],
                colour.filled(),
            )
        });
        chart
            .draw_series(rectangles)?
            .label(variant)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
        chart.draw_series(of_variant().map(|bar| {
            let (left, right) = layout.place(bar);
            let middle = f64::midpoint(left, right);
            let ends = [bar.ratio.p25, bar.ratio.p75].map(|ratio| (middle, layout.height(ratio)));
            PathElement::new(ends.to_vec(), BLACK)
        }))?;
    }
    let one = layout.height(1.0);
    chart.draw_series([PathElement::new(vec![(0.0, one), (groups, one)], BLACK.stroke_width(2))])?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(group: &str, variant: &str, median: f64) -> Bar {
        let ratio = Spread { median, p25: median * 0.9, p75: median * 1.1, repeats: 7 };
        Bar { group: group.to_owned(), variant: variant.to_owned(), ratio, lower_is_better: false }
    }

    #[test]
    fn far_apart_ratios_get_a_logarithmic_axis() {
        assert!(!Layout::of(&[bar("a", "x", 0.9), bar("a", "y", 1.2)]).logarithmic);
        assert!(Layout::of(&[bar("a", "x", 0.9), bar("a", "y", 60.0)]).logarithmic);
    }

    #[test]
    fn a_plot_is_a_picture_with_all_names() {
        let path = std::env::temp_dir().join(format!("outlast-plot-test-{}.svg", std::process::id()));
        draw(&path, "title", &[bar("64", "raw again", 1.0), bar("64", "session", 40.0)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for word in ["<svg", "title", "session", "raw again"] {
            assert!(text.contains(word), "{word}");
        }
    }
}
