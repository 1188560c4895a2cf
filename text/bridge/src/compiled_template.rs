//! A template's instructions together with the source that they borrow from. How they are made is minijinja's compiler;
//! what it is given is the guarded form of the template (`guarded_ast`).

use std::collections::BTreeMap;

use minijinja::machinery::{eval, make_string_output, parse, CodeGenerator, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Value};

use crate::guarded_ast::guarded;

const NAME: &str = "chat_template";

pub struct CompiledTemplate {
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
    // Fields are dropped from first to last: the source goes after what borrows from it.
    _source: OwnedSource,
}

/// A string that stays where it is until it is dropped.
struct OwnedSource(*mut str);

// SAFETY: nothing but `drop` writes through the pointer.
unsafe impl Send for OwnedSource {}
unsafe impl Sync for OwnedSource {}

impl Drop for OwnedSource {
    fn drop(&mut self) {
        // SAFETY: it came out of a box in `compile`, once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

impl CompiledTemplate {
    pub fn compile(source: String, syntax: SyntaxConfig) -> Result<Self, Error> {
        let source = OwnedSource(Box::into_raw(source.into_boxed_str()));
        // SAFETY: the instructions that borrow from it are private to the struct that owns it, and are dropped first.
        let text: &'static str = unsafe { &*source.0 };
        let template = parse(text, NAME, syntax)?;
        let mut generator = CodeGenerator::new(NAME, text);
        generator.compile_stmt(&guarded(&template));
        let (instructions, blocks) = generator.finish();
        Ok(CompiledTemplate { instructions, blocks, _source: source })
    }

    /// Renders with the variables of the map `context`.
    pub fn render(&self, environment: &Environment<'static>, context: Value) -> Result<String, Error> {
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        eval(environment, &self.instructions, context, &self.blocks, &mut output, AutoEscape::None)?;
        drop(output);
        Ok(text)
    }
}
