//! How Python prints: `str()`, `repr()`, floats and `json.dumps`, over minijinja's values. Chat templates are written
//! for Jinja on Python, and a model has seen exactly what that prints. A small value can print as a huge one (a list of
//! itself twice, forty times over), so all of it is bounded.

use std::cell::Cell;
use std::thread::LocalKey;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deeper values are refused: they come from a template that nests on purpose, and recursion has a stack to keep.
pub const MAX_DEPTH: usize = 200;

pub fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested more than {MAX_DEPTH} deep"))
}

/// A longer indent of `json.dumps` is cut: what a template can use is small, and a long one is only memory.
pub const MAX_INDENT: usize = 64;

thread_local! {
    /// Bytes that the rendering of this thread may still print here, all its values together; None once it wanted more.
    static BYTES_LEFT: Cell<Option<usize>> = const { Cell::new(Some(0)) };
    /// Bytes that it may still write, what goes into macros and blocks first included; None once it wanted more.
    static WRITABLE_BYTES: Cell<Option<usize>> = const { Cell::new(Some(0)) };
}

/// What a macro writes is written again where it is called, so that writing has more room than the output.
const WRITTEN_PER_OUTPUT: usize = 4;

/// Starts a rendering on this thread: its values may print as `max_bytes` together.
pub fn limit_output(max_bytes: usize) {
    BYTES_LEFT.set(Some(max_bytes));
    WRITABLE_BYTES.set(Some(max_bytes.saturating_mul(WRITTEN_PER_OUTPUT)));
}

/// Whether this thread's rendering has failed because it printed or wrote more than it may.
pub fn is_output_used_up() -> bool {
    BYTES_LEFT.get().is_none() || WRITABLE_BYTES.get().is_none()
}

/// To be called before so many bytes are written.
pub fn count_output(bytes: usize) -> Result<(), Error> {
    take(&WRITABLE_BYTES, bytes)
}

fn take(left: &'static LocalKey<Cell<Option<usize>>>, bytes: usize) -> Result<(), Error> {
    left.set(left.get().and_then(|left| left.checked_sub(bytes)));
    match left.get() {
        Some(_) => Ok(()),
        None => Err(Error::new(ErrorKind::InvalidOperation, "a value is too large to print")),
    }
}

/// A string that is paid for from BYTES_LEFT before it grows.
struct Printed {
    text: String,
}

impl Printed {
    fn new() -> Self {
        Printed { text: String::new() }
    }

    fn push_str(&mut self, text: &str) -> Result<(), Error> {
        take(&BYTES_LEFT, text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn push(&mut self, letter: char) -> Result<(), Error> {
        self.push_str(letter.encode_utf8(&mut [0; 4]))
    }
}

/// `str(value)`; undefined prints as nothing.
pub fn display(value: &Value) -> Result<String, Error> {
    let mut out = Printed::new();
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default())?,
        _ => write_repr(value, 0, &mut out)?,
    }
    Ok(out.text)
}

fn write_repr(value: &Value, depth: usize, out: &mut Printed) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined")?,
        ValueKind::None => out.push_str("None")?,
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" })?,
        ValueKind::Number => out.push_str(&number(value))?,
        ValueKind::String => write_string_repr(value.as_str().unwrap_or_default(), out)?,
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            out.push(if is_tuple { '(' } else { '[' })?;
            for (index, item) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ")?;
                }
                write_repr(&item, depth + 1, out)?;
            }
            if is_tuple && value.len() == Some(1) {
                out.push(',')?;
            }
            out.push(if is_tuple { ')' } else { ']' })?;
        }
        ValueKind::Map => {
            out.push('{')?;
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ")?;
                }
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ")?;
                write_repr(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}')?;
        }
        _ => out.push_str(&value.to_string())?,
    }
    Ok(())
}

/// Single quotes, unless the string has those and no double ones.
fn write_string_repr(text: &str, out: &mut Printed) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote)?;
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\")?,
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            _ if letter == quote => {
                out.push('\\')?;
                out.push(letter)?;
            }
            _ if is_printable(letter) => out.push(letter)?,
            _ => out.push_str(&match letter as u32 {
                code @ 0..=0xFF => format!("\\x{code:02x}"),
                code @ 0x100..=0xFFFF => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            })?,
        }
    }
    out.push(quote)
}

/// The common part of Python's `str.isprintable`: controls, formats, separators and private use are not.
fn is_printable(letter: char) -> bool {
    !matches!(letter as u32,
        0..=0x1F | 0x7F..=0xA0 | 0xAD | 0x600..=0x605 | 0x61C | 0x6DD | 0x1680 | 0x180E | 0x2000..=0x200F
        | 0x2028..=0x202F | 0x205F..=0x206F | 0x3000 | 0xE000..=0xF8FF | 0xFEFF | 0xFFF9..=0xFFFB
        | 0xE0001..=0xE007F | 0xF0000..=0x10FFFF)
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), |number| float(number, "inf", "nan"))
}

/// `repr(float)`: the shortest digits, an exponent outside [1e-4, 1e16).
fn float(number: f64, infinity: &str, not_a_number: &str) -> String {
    if number.is_nan() {
        return not_a_number.to_string();
    }
    if number.is_infinite() {
        return format!("{}{infinity}", if number < 0.0 { "-" } else { "" });
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        return format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs());
    }
    format!("{number:?}")
}

/// The keywords of `json.dumps` that templates use.
pub struct JsonStyle {
    pub ensure_ascii: bool,
    pub indent: Option<String>,
    pub sort_keys: bool,
    pub item_separator: String,
    pub key_separator: String,
}

/// `json.dumps(value)`.
pub fn json(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = Printed::new();
    write_json(value, style, 0, &mut out)?;
    Ok(out.text)
}

fn write_json(value: &Value, style: &JsonStyle, depth: usize, out: &mut Printed) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::None => out.push_str("null")?,
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" })?,
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string())?,
        ValueKind::Number => {
            out.push_str(&f64::try_from(value.clone()).map(|number| float(number, "Infinity", "NaN"))?)?
        }
        ValueKind::String => write_json_string(value.as_str().unwrap_or_default(), style.ensure_ascii, out)?,
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            write_json_items('[', ']', style, depth, &items, out, |item, out| {
                write_json(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_json_items('{', '}', style, depth, &keys, out, |key, out| {
                let name = if key.as_str().is_some() { display(key)? } else { json(key, style)? };
                write_json_string(&name, style.ensure_ascii, out)?;
                out.push_str(&style.key_separator)?;
                write_json(&value.get_item(key)?, style, depth + 1, out)
            })?;
        }
        kind => {
            return Err(Error::new(ErrorKind::UndefinedError, format!("tojson: {kind} is not JSON serializable")));
        }
    }
    Ok(())
}

fn write_json_items(
    open: char,
    close: char,
    style: &JsonStyle,
    depth: usize,
    items: &[Value],
    out: &mut Printed,
    mut write_item: impl FnMut(&Value, &mut Printed) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |levels: usize, out: &mut Printed| -> Result<(), Error> {
        if let Some(indent) = &style.indent {
            out.push('\n')?;
            out.push_str(&indent.repeat(levels))?;
        }
        Ok(())
    };
    out.push(open)?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator)?;
        }
        new_line(depth + 1, out)?;
        write_item(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out)?;
    }
    out.push(close)
}

fn write_json_string(text: &str, ensure_ascii: bool, out: &mut Printed) -> Result<(), Error> {
    out.push('"')?;
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\"")?,
            '\\' => out.push_str("\\\\")?,
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            '\u{8}' => out.push_str("\\b")?,
            '\u{c}' => out.push_str("\\f")?,
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", letter as u32))?,
            _ if ensure_ascii && !letter.is_ascii() => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"))?;
                }
            }
            _ => out.push(letter)?,
        }
    }
    out.push('"')
}
