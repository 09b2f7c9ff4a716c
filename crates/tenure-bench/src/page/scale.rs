//! Maps a value to a place on a line of 100.

/// A linear scale from 0, or a logarithmic one where a linear one would hide the small values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    Linear { most: f64 },
    Logarithmic { least: f64, most: f64 },
}

/// Past this ratio of the largest to the smallest, small bars all look alike.
const LINEAR_RATIO: f64 = 25.0;

impl Scale {
    /// A scale on which all of these values lie. The `middle` ones, which are compared, decide its
    /// kind.
    pub fn of(values: &[f64], middle: &[f64]) -> Scale {
        let most = values.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
        let (least, largest) = bounds(middle);
        if least > 0.0 && largest / least > LINEAR_RATIO {
            let (least, _) = bounds(values);
            return Scale::logarithmic(least, most);
        }
        Scale::Linear { most: if most > 0.0 { most } else { 1.0 } }
    }

    /// From a power of ten to another.
    pub fn logarithmic(least: f64, most: f64) -> Scale {
        let least = 10f64.powf(least.max(f64::MIN_POSITIVE).log10().floor());
        let most = 10f64.powf(most.max(least * 10.0).log10().ceil());
        Scale::Logarithmic { least, most }
    }

    /// The place, 0 to 100.
    pub fn place(self, value: f64) -> f64 {
        let share = match self {
            Scale::Linear { most } => value / most,
            Scale::Logarithmic { least, most } => (value / least).ln() / (most / least).ln(),
        };
        // A value that is not a number is at the beginning.
        100.0 * share.clamp(0.0, 1.0).max(0.0)
    }

    pub fn is_logarithmic(self) -> bool {
        matches!(self, Scale::Logarithmic { .. })
    }

    /// The marks at the axis: values with their places.
    pub fn marks(self) -> Vec<f64> {
        match self {
            Scale::Linear { most } => vec![0.0, most / 2.0, most],
            Scale::Logarithmic { least, most } => {
                let decades = (most / least).log10().round() as i32;
                // At most five, so that they fit on a phone.
                let step = (decades / 4).max(1);
                (0..=decades).step_by(step as usize).map(|n| least * 10f64.powi(n)).collect()
            }
        }
    }
}

/// The least value above zero, and the largest.
fn bounds(values: &[f64]) -> (f64, f64) {
    let positive = || values.iter().copied().filter(|value| *value > 0.0 && value.is_finite());
    let least = positive().fold(f64::INFINITY, f64::min);
    let largest = positive().fold(0.0, f64::max);
    match values.iter().all(|value| *value > 0.0) && least.is_finite() {
        true => (least, largest),
        false => (if least.is_finite() { least } else { 0.0 }, largest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_near_are_on_a_linear_scale() {
        let scale = Scale::of(&[10.0, 40.0], &[10.0, 40.0]);
        assert_eq!(scale, Scale::Linear { most: 40.0 });
        assert_eq!((scale.place(0.0), scale.place(10.0), scale.place(80.0)), (0.0, 25.0, 100.0));
        assert_eq!(scale.marks(), [0.0, 20.0, 40.0]);
    }

    #[test]
    fn values_that_are_far_apart_are_on_a_logarithmic_one() {
        let scale = Scale::of(&[3.0, 4000.0], &[3.0, 4000.0]);
        assert_eq!(scale, Scale::Logarithmic { least: 1.0, most: 10_000.0 });
        assert!((scale.place(100.0) - 50.0).abs() < 1e-9);
        assert_eq!(scale.marks(), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert!(Scale::logarithmic(1e-3, 1e9).marks().len() <= 5);
    }

    #[test]
    fn nothing_and_zeros_have_a_place() {
        for values in [&[][..], &[0.0, 0.0], &[f64::NAN], &[0.0, 1e9]] {
            let scale = Scale::of(values, values);
            for value in [0.0, 1.0, f64::NAN, f64::INFINITY, -1.0] {
                assert!((0.0..=100.0).contains(&scale.place(value)), "{scale:?} {value}");
            }
        }
    }
}
