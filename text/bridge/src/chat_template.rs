//! One chat template: parsed once, rendered many times, each time on a thread with a large stack of its own. A template
//! comes with a model file, and its size, steps, output and nesting are bounded here. What minijinja does within one step
//! is not: comparing (`==`, `in`, `sort`), or turning into a string (`~`, `upper`, `join`), a value that the template made
//! to hold itself, or the same list twice over and over, overflows the stack or does not end. Templates come from the
//! model file or `--chat-template` and must be trusted that far.

use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};

use chrono::NaiveDateTime;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};

use crate::jinja::{self, RENDERING};
use crate::python;
use crate::template_source::prepare;
use crate::{panic_message, Failure, Status};

/// The parser and the renderer recurse; template_source bounds how deep, and this is room for that many times over.
const STACK_BYTES: usize = 64 << 20;
const NAME: &str = "chat_template";

/// What one rendering may use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RenderLimits {
    pub max_steps: u64,
    pub max_output_bytes: usize,
}

pub struct ChatTemplate {
    environment: Environment<'static>,
    limits: RenderLimits,
}

impl ChatTemplate {
    pub fn parse(source: &str, limits: RenderLimits) -> Result<Self, Failure> {
        let environment = on_large_stack(|| {
            let fault = |error: Error| Failure::invalid(describe(&error));
            let mut environment = jinja::environment().map_err(fault)?;
            let source = prepare(source, environment.syntax().clone())?;
            environment.set_fuel(Some(limits.max_steps));
            environment.add_template_owned(NAME, source).map_err(fault)?;
            Ok(environment)
        })??;
        Ok(ChatTemplate { environment, limits })
    }

    /// `context` is a JSON object, `now` is "YYYY-MM-DDTHH:MM:SS" or empty.
    pub fn render(&self, context: &str, now: &str) -> Result<String, Failure> {
        let context: serde_json::Value = serde_json::from_str(context)
            .map_err(|error| Failure::invalid(format!("the template's context is not JSON: {error}")))?;
        let now = parse_time(now)?;
        on_large_stack(move || {
            RENDERING.set(jinja::Rendering { now, raised: None });
            python::limit_output(self.limits.max_output_bytes);
            let mut output = BoundedOutput { bytes: Vec::new(), max_bytes: self.limits.max_output_bytes, full: false };
            let rendered = self
                .environment
                .get_template(NAME)
                .and_then(|template| template.render_captured_to(Value::from(Serde(&context)), &mut output).map(|_| ()));
            match rendered {
                Ok(()) => String::from_utf8(output.bytes).map_err(|_| Failure::internal("the output is not UTF-8")),
                Err(error) => Err(why_it_failed(&error, output.full, self.limits)),
            }
        })?
    }
}

fn parse_time(now: &str) -> Result<Option<NaiveDateTime>, Failure> {
    if now.is_empty() {
        return Ok(None);
    }
    NaiveDateTime::parse_from_str(now, "%Y-%m-%dT%H:%M:%S")
        .map(Some)
        .map_err(|error| Failure::invalid(format!("'{now}' is not a time: {error}")))
}

/// Collects output up to a bound; past it, writing fails.
struct BoundedOutput {
    bytes: Vec<u8>,
    max_bytes: usize,
    full: bool,
}

impl io::Write for &mut BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max_bytes - self.bytes.len() {
            self.full = true;
            return Err(io::Error::other("the output is full"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn why_it_failed(error: &Error, output_full: bool, limits: RenderLimits) -> Failure {
    if let Some(message) = RENDERING.with_borrow_mut(|rendering| rendering.raised.take()) {
        return Failure { status: Status::Raised, message };
    }
    if output_full || python::is_output_used_up() {
        return Failure::limit(format!("the template's output is larger than {} bytes", limits.max_output_bytes));
    }
    if is_out_of_fuel(error) {
        return Failure::limit(format!("the template took more than {} steps", limits.max_steps));
    }
    Failure::invalid(describe(error))
}

fn is_out_of_fuel(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if current.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return true;
        }
        cause = current.source();
    }
    false
}

/// One line: what and where, with its causes.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        text.push_str(": ");
        text.push_str(&current.to_string());
        cause = current.source();
    }
    text.replace('\n', " ")
}

/// Runs `body` on a thread with STACK_BYTES; a panic there is a failure here.
fn on_large_stack<T: Send>(body: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("chat_template".to_string())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || catch_unwind(AssertUnwindSafe(body)))
            .map_err(|error| Failure::internal(format!("no thread for the chat template: {error}")))?
            .join()
            .unwrap_or_else(Err)
            .map_err(|payload| Failure::internal(panic_message(payload.as_ref())))
    })
}
