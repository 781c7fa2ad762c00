//! Numbers with a unit, as in `100m`, `1.5Gi` and `1e3`, in the one form in which they are stored.
//!
//! A number has no fraction and the largest unit with which that is so. Decimal units go by thousands, binary ones by
//! 1,024; what has a fraction of a binary unit below one gets a decimal unit. Nothing is smaller than `n`: the rest is
//! rounded up.

/// Decimal units by their power of ten.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Binary units by their power of two.
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
/// Digits of a number at most.
const MAX_DIGITS: usize = 24;
/// Parts of one: the smallest unit is `n`.
const NANO: i128 = 1_000_000_000;
/// The largest number, as in kube-apiserver that of 64 bits.
const MAX: i128 = i64::MAX as i128;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Decimal,
    Exponent,
    Binary,
}

/// The form in which a quantity is stored; `None` if the text is none.
pub(super) fn canonical(text: &str) -> Option<String> {
    let (is_negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, unit) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !(whole.is_empty() && fraction.is_empty());
    if !has_digits || fraction.contains('.') || whole.len() + fraction.len() > MAX_DIGITS {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = i32::try_from(fraction.len()).ok()?;
    let (nanos, format) = match unit_of(unit)? {
        Unit::Ten(power, format) => (scaled(digits, power - scale + 9)?, format),
        Unit::Two(power) => {
            (divided(digits.checked_mul(1 << power)?.checked_mul(NANO)?, scale)?, Format::Binary)
        }
    };
    let nanos = nanos.min(MAX.checked_mul(NANO)?);
    let text = print(nanos, format);
    Some(if is_negative && nanos != 0 { format!("-{text}") } else { text })
}

enum Unit {
    Ten(i32, Format),
    Two(u32),
}

fn unit_of(unit: &str) -> Option<Unit> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == unit) {
        return Some(Unit::Ten(*power, Format::Decimal));
    }
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == unit) {
        return Some(Unit::Two(*power));
    }
    let exponent = unit.strip_prefix(['e', 'E'])?;
    let power: i32 = exponent.parse().ok().filter(|power: &i32| power.abs() <= 30)?;
    Some(Unit::Ten(power, Format::Exponent))
}

/// A number times a power of ten, rounded up.
fn scaled(number: i128, power: i32) -> Option<i128> {
    match u32::try_from(power) {
        Ok(power) => number.checked_mul(10i128.checked_pow(power)?),
        Err(_) => divided(number, -power),
    }
}

/// A number by a power of ten, rounded up.
fn divided(number: i128, power: i32) -> Option<i128> {
    let divisor = 10i128.checked_pow(u32::try_from(power).ok()?)?;
    Some(number / divisor + i128::from(number % divisor != 0))
}

fn print(nanos: i128, format: Format) -> String {
    if nanos == 0 {
        return "0".to_owned();
    }
    // Less than a Ki has no binary unit.
    if format == Format::Binary && nanos >= 1024 * NANO && nanos % NANO == 0 {
        let mut number = nanos / NANO;
        let mut unit = "";
        for (name, _) in BINARY {
            if number % 1024 != 0 {
                break;
            }
            (number, unit) = (number / 1024, name);
        }
        return format!("{number}{unit}");
    }
    let (mut number, mut unit) = (nanos, 0);
    while number % 1000 == 0 && unit + 1 < DECIMAL.len() {
        (number, unit) = (number / 1000, unit + 1);
    }
    let (name, power) = DECIMAL[unit];
    match format {
        Format::Exponent if power != 0 => format!("{number}e{power}"),
        _ => format!("{number}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_one_form() {
        for (text, expected) in [
            ("0", "0"),
            ("100m", "100m"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1024Mi", "1Gi"),
            ("128Mi", "128Mi"),
            ("1023", "1023"),
            ("0.5Ki", "512"),
            ("1e3", "1e3"),
            ("1000", "1k"),
            ("12e6", "12e6"),
            ("-1.5", "-1500m"),
            ("+4", "4"),
            (".5", "500m"),
            ("5.", "5"),
            ("4000m", "4"),
            ("8192Ki", "8Mi"),
            ("0.0000000001", "1n"),
            ("100000000", "100M"),
            ("-0", "0"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "abc", "1K", "1.2.3", "--1", "1 Gi", "1e", "1ki", "m", ".", "1e99"] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    #[test]
    fn the_form_of_a_form_is_the_same() {
        for text in ["3500m", "7Gi", "1025", "3e9", "1500Ki", "17n", "9223372036854775807", "99Ei"] {
            let once = canonical(text).expect(text);
            assert_eq!(canonical(&once).as_ref(), Some(&once), "{text}");
        }
    }
}
