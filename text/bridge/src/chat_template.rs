//! One chat template: parsed once, rendered many times, each time on a thread with a large stack of its own. A template
//! comes with a model file and nothing in it is trusted: its size, nesting, steps and output are bounded here, and what
//! the engine does not bound by itself (`value_guard`) is checked before it runs.

use std::panic::{catch_unwind, AssertUnwindSafe};

use chrono::NaiveDateTime;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};

use crate::compiled_template::CompiledTemplate;
use crate::jinja::{self, RENDERING};
use crate::python;
use crate::template_source::prepare;
use crate::{panic_message, Failure, Status};

/// The parser and the renderer recurse; template_source bounds how deep, and this is room for that many times over.
const STACK_BYTES: usize = 64 << 20;

/// What one rendering may use.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RenderLimits {
    pub max_steps: u64,
    pub max_output_bytes: usize,
}

pub struct ChatTemplate {
    template: CompiledTemplate,
    environment: Environment<'static>,
    limits: RenderLimits,
}

impl ChatTemplate {
    pub fn parse(source: &str, limits: RenderLimits) -> Result<Self, Failure> {
        on_large_stack(|| {
            let fault = |error: Error| Failure::invalid(describe(&error));
            let mut environment = jinja::environment().map_err(fault)?;
            environment.set_fuel(Some(limits.max_steps));
            let source = prepare(source, environment.syntax().clone())?;
            let template = CompiledTemplate::compile(source, environment.syntax().clone()).map_err(fault)?;
            Ok(ChatTemplate { template, environment, limits })
        })?
    }

    /// `context` is a JSON object, `now` is "YYYY-MM-DDTHH:MM:SS" or empty.
    pub fn render(&self, context: &str, now: &str) -> Result<String, Failure> {
        let context: serde_json::Value = serde_json::from_str(context)
            .map_err(|error| Failure::invalid(format!("the template's context is not JSON: {error}")))?;
        let now = parse_time(now)?;
        on_large_stack(move || {
            RENDERING.set(jinja::Rendering { now, raised: None });
            python::limit_output(self.limits.max_output_bytes);
            let rendered = self
                .template
                .render(&self.environment, Value::from(Serde(&context)))
                .map_err(|error| why_it_failed(&error, self.limits))?;
            if rendered.len() > self.limits.max_output_bytes {
                return Err(too_much_output(self.limits));
            }
            Ok(rendered)
        })?
    }

    /// Whether templates know a function of that name.
    pub fn has_function(&self, name: &str) -> bool {
        self.environment.globals().any(|(known, _)| known == name)
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

fn too_much_output(limits: RenderLimits) -> Failure {
    Failure::limit(format!("the template's output is larger than {} bytes", limits.max_output_bytes))
}

fn why_it_failed(error: &Error, limits: RenderLimits) -> Failure {
    if let Some(message) = RENDERING.with_borrow_mut(|rendering| rendering.raised.take()) {
        return Failure { status: Status::Raised, message };
    }
    if python::is_output_used_up() {
        return too_much_output(limits);
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
