//! The environment that chat templates expect, where minijinja's own differs from Jinja on Python: filters, tests,
//! functions and string methods. Limits and threads are `chat_template.rs`'s.

use std::cell::RefCell;
use std::fmt::Write;

use chrono::NaiveDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::python;
use crate::value_guard;

thread_local! {
    /// What one rendering has of its own; set on the thread that renders.
    pub static RENDERING: RefCell<Rendering> = const { RefCell::new(Rendering { now: None, raised: None }) };
}

pub struct Rendering {
    /// What strftime_now sees.
    pub now: Option<NaiveDateTime>,
    /// The message of raise_exception.
    pub raised: Option<String>,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// An environment without templates or limits.
pub fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| {
        let printed = if value.as_str().is_none() { python::display(value)? } else { String::new() };
        let text = value.as_str().unwrap_or(&printed);
        python::count_output(text.len())?;
        Ok(out.write_str(text)?)
    });
    minijinja_contrib::add_to_environment(&mut environment);
    // Prints all variables, of any size, and is no part of Jinja.
    environment.remove_global("debug");
    value_guard::add_to(&mut environment);
    add_functions(&mut environment);
    add_filters(&mut environment);
    environment.add_test("sequence", |value: Value| is_iterable(&value));
    environment.add_test("iterable", |value: Value| is_iterable(&value) || value.is_undefined());
    environment.add_test("callable", |value: Value| value.kind() == ValueKind::Plain);
    environment.set_unknown_method_callback(method);
    Ok(environment)
}

fn is_iterable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable)
}

fn add_functions(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = python::display(&message)?;
        RENDERING.with_borrow_mut(|rendering| rendering.raised = Some(message));
        Err(invalid("raise_exception"))
    });
    environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
        let now = RENDERING.with_borrow(|rendering| rendering.now).ok_or_else(|| invalid("strftime_now has no time"))?;
        let mut text = String::new();
        write!(text, "{}", now.format(&format))
            .map_err(|_| invalid(format!("strftime_now does not know the format '{format}'")))?;
        Ok(text)
    });
}

fn add_filters(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: Value| python::display(&value));
    environment.add_filter("title", |text: String| title(&text, |letter| " -([{<\n\t\r".contains(letter)));
    environment.add_filter("e", html_escape);
    environment.add_filter("escape", html_escape);
    environment.add_filter("wordcount", |text: String| text.split_whitespace().count());
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("float", |value: Value, fallback: Option<f64>| {
        to_float(&value).unwrap_or(fallback.unwrap_or(0.0))
    });
    environment.add_filter("int", |value: Value, fallback: Option<i64>| {
        to_int(&value).unwrap_or(fallback.unwrap_or(0))
    });
}

fn to_json(value: Value, keywords: Kwargs) -> Result<Value, Error> {
    let indent = match keywords.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match indent.as_str() {
            Some(text) => Some(text.chars().take(python::MAX_INDENT).collect()),
            None => Some(" ".repeat(i64::try_from(indent)?.clamp(0, python::MAX_INDENT as i64) as usize)),
        },
    };
    let separators = keywords.get::<Option<Value>>("separators")?.filter(|separators| !separators.is_none());
    let (item_separator, key_separator) = match separators {
        Some(pair) => (python::display(&pair.get_item_by_index(0)?)?, python::display(&pair.get_item_by_index(1)?)?),
        None => ((if indent.is_some() { "," } else { ", " }).to_string(), ": ".to_string()),
    };
    let style = python::JsonStyle {
        ensure_ascii: keywords.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: keywords.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
    };
    keywords.assert_all_used()?;
    Ok(Value::from(python::json(&value, &style)?))
}

fn default(value: Value, fallback: Option<Value>, falsy_too: Option<bool>, keywords: Kwargs) -> Result<Value, Error> {
    let falsy_too = falsy_too.or(keywords.get("boolean")?).unwrap_or(false);
    let fallback = fallback.or(keywords.get("default_value")?).unwrap_or_else(|| Value::from(""));
    keywords.assert_all_used()?;
    Ok(if value.is_undefined() || (falsy_too && !value.is_true()) { fallback } else { value })
}

fn to_float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => f64::try_from(value.clone()).ok(),
    }
}

fn to_int(value: &Value) -> Option<i64> {
    let whole = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.is_integer() => i64::try_from(value.clone()).ok(),
        None => None,
    };
    whole.or_else(|| to_float(value).filter(|number| number.is_finite()).map(|number| number as i64))
}

fn html_escape(text: String) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// Upper case for the first letter and after each `boundary`, lower case elsewhere.
fn title(text: &str, boundary: impl Fn(char) -> bool) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut at_start = true;
    for letter in text.chars() {
        if at_start {
            titled.extend(letter.to_uppercase());
        } else {
            titled.extend(letter.to_lowercase());
        }
        at_start = boundary(letter);
    }
    titled
}

fn swap_case(text: &str) -> String {
    let mut swapped = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_uppercase() {
            swapped.extend(letter.to_lowercase());
        } else {
            swapped.extend(letter.to_uppercase());
        }
    }
    swapped
}

/// Python's methods that pycompat lacks or does otherwise; the rest is pycompat's.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = string_method(state, text, name, arguments)? {
            return Ok(result);
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

fn string_method(state: &State, text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let argument = arguments.first().and_then(Value::as_str);
    let result = match (name, argument) {
        ("swapcase", None) => Value::from(swap_case(text)),
        ("title", None) => Value::from(title(text, |letter| !letter.is_alphabetic())),
        ("removeprefix", Some(prefix)) => Value::from(text.strip_prefix(prefix).unwrap_or(text)),
        ("removesuffix", Some(suffix)) => Value::from(text.strip_suffix(suffix).unwrap_or(text)),
        ("index", Some(part)) => {
            let offset = text.find(part).ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..offset].chars().count())
        }
        ("rsplit", Some(separator)) if !separator.is_empty() => rsplit(text, separator, arguments.get(1)),
        ("partition", Some(separator)) if !separator.is_empty() => match text.split_once(separator) {
            Some((left, right)) => triple(left, separator, right),
            None => triple(text, "", ""),
        },
        ("rpartition", Some(separator)) if !separator.is_empty() => match text.rsplit_once(separator) {
            Some((left, right)) => triple(left, separator, right),
            None => triple("", "", text),
        },
        ("zfill" | "center" | "ljust" | "rjust", None) => padded(state, text, name, arguments.first())?,
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn triple(left: &str, separator: &str, right: &str) -> Value {
    Value::from(Tuple::from([Value::from(left), Value::from(separator), Value::from(right)]))
}

fn rsplit(text: &str, separator: &str, limit: Option<&Value>) -> Value {
    let limit = limit.and_then(|limit| usize::try_from(limit.clone()).ok());
    let mut parts: Vec<Value> = match limit {
        Some(limit) => text.rsplitn(limit.saturating_add(1), separator).map(Value::from).collect(),
        None => text.rsplit(separator).map(Value::from).collect(),
    };
    parts.reverse();
    Value::from(parts)
}

fn padded(state: &State, text: &str, name: &str, width: Option<&Value>) -> Result<Value, Error> {
    let width = width.and_then(|width| i64::try_from(width.clone()).ok()).ok_or_else(|| invalid("a width is missing"))?;
    let missing = (width.max(0) as usize).saturating_sub(text.chars().count());
    // Paid before it is made: a width can be much larger than any text.
    state.consume_fuel((missing / 64) as u64)?;
    let (left, right) = match name {
        "ljust" => (0, missing),
        "rjust" | "zfill" => (missing, 0),
        // Python puts the odd space on the left where the width is odd.
        _ => (missing / 2 + (missing & width.max(0) as usize & 1), missing - missing / 2 - (missing & width.max(0) as usize & 1)),
    };
    let letter = if name == "zfill" { "0" } else { " " };
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) if name == "zfill" => text.split_at(text.len() - digits.len()),
        _ => ("", text),
    };
    Ok(Value::from(format!("{sign}{}{digits}{}", letter.repeat(left), letter.repeat(right))))
}
