//! The C ABI declared in `kvasir_text_bridge.h`: conversions, ownership and the barrier that stops panics.
//! What tokenizers and templates do is in `tokenizer.rs` and `chat_template.rs`.

mod chat_template;
mod compiled_template;
mod guarded_ast;
mod jinja;
mod pre_tokenizer;
mod python;
mod template_source;
mod tokenizer;
mod value_guard;

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use chat_template::{ChatTemplate, RenderLimits};
use tokenizer::{ControlMatch, TextTokenizer, VocabularyView};

/// `kvasir_text_status` without its success.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    Invalid = 1,
    Raised = 2,
    Limit = 3,
    Internal = 4,
}

/// Why a call failed, and what to tell the user.
#[derive(Debug)]
pub struct Failure {
    pub status: Status,
    pub message: String,
}

impl Failure {
    pub fn invalid(message: impl Into<String>) -> Self {
        Failure { status: Status::Invalid, message: message.into() }
    }
    pub fn limit(message: impl Into<String>) -> Self {
        Failure { status: Status::Limit, message: message.into() }
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Failure { status: Status::Internal, message: message.into() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct Owned<T> {
    data: *mut T,
    size: usize,
}

#[repr(C)]
pub struct Vocabulary {
    model: View,
    pre_tokenizer: View,
    tokens: *const View,
    scores: *const f32,
    types: *const u8,
    num_tokens: usize,
    merges: *const View,
    num_merges: usize,
    add_space_prefix: bool,
}

/// # Safety
/// `data` points at `size` readable elements, or is null (then the slice is empty).
unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if data.is_null() || size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

impl View {
    unsafe fn as_str<'a>(self, what: &str) -> Result<&'a str, Failure> {
        std::str::from_utf8(slice(self.data, self.size))
            .map_err(|error| Failure::invalid(format!("{what} is not UTF-8 (byte {})", error.valid_up_to())))
    }
}

fn give<T>(items: Vec<T>) -> Owned<T> {
    let items = Box::leak(items.into_boxed_slice());
    Owned { data: items.as_mut_ptr(), size: items.len() }
}

unsafe fn take_back<T>(owned: Owned<T>) {
    if !owned.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(owned.data, owned.size)));
    }
}

pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_string());
    format!("the text library panicked: {text}")
}

/// Panics are reported through the ABI; the hook's own print to stderr would only repeat them.
fn silence_panic_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// Runs one entry point: panics become failures, failures become a status and a message.
unsafe fn entry(error: *mut Owned<u8>, body: impl FnOnce() -> Result<(), Failure>) -> Status {
    silence_panic_hook();
    let outcome = catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|payload| Err(Failure::internal(panic_message(payload.as_ref()))));
    let (status, message) = match outcome {
        Ok(()) => (Status::Ok, String::new()),
        Err(failure) => (failure.status, failure.message),
    };
    error.write(give(message.into_bytes()));
    status
}

/// Dropping can run foreign code too; a panic there leaks instead of unwinding into C++.
unsafe fn release<T>(pointer: *mut T) {
    if !pointer.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(pointer))));
    }
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_bytes_free(bytes: Owned<u8>) {
    take_back(bytes);
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_ids_free(ids: Owned<u32>) {
    take_back(ids);
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_matches_free(matches: Owned<ControlMatch>) {
    take_back(matches);
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_tokenizer_create(
    vocabulary: *const Vocabulary,
    tokenizer: *mut *mut TextTokenizer,
    error: *mut Owned<u8>,
) -> Status {
    tokenizer.write(std::ptr::null_mut());
    entry(error, || {
        let raw = &*vocabulary;
        let strings = |data, size, what: &str| -> Result<Vec<&str>, Failure> {
            slice::<View>(data, size)
                .iter()
                .enumerate()
                .map(|(index, view)| view.as_str(&format!("{what} {index}")))
                .collect()
        };
        let view = VocabularyView {
            model: raw.model.as_str("tokenizer.ggml.model")?,
            pre_tokenizer: raw.pre_tokenizer.as_str("tokenizer.ggml.pre")?,
            tokens: strings(raw.tokens, raw.num_tokens, "token")?,
            scores: slice(raw.scores, raw.num_tokens),
            types: slice(raw.types, raw.num_tokens),
            merges: strings(raw.merges, raw.num_merges, "merge")?,
            add_space_prefix: raw.add_space_prefix,
        };
        tokenizer.write(Box::into_raw(Box::new(TextTokenizer::new(&view)?)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_tokenizer_free(tokenizer: *mut TextTokenizer) {
    release(tokenizer);
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_tokenizer_encode(
    tokenizer: *const TextTokenizer,
    text: View,
    ids: *mut Owned<u32>,
    error: *mut Owned<u8>,
) -> Status {
    ids.write(give(Vec::new()));
    entry(error, || {
        ids.write(give((*tokenizer).encode(text.as_str("the text")?)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_tokenizer_find_control(
    tokenizer: *const TextTokenizer,
    text: View,
    matches: *mut Owned<ControlMatch>,
    error: *mut Owned<u8>,
) -> Status {
    matches.write(give(Vec::new()));
    entry(error, || {
        matches.write(give((*tokenizer).find_control(text.as_str("the text")?)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_template_create(
    source: View,
    limits: RenderLimits,
    chat_template: *mut *mut ChatTemplate,
    error: *mut Owned<u8>,
) -> Status {
    chat_template.write(std::ptr::null_mut());
    entry(error, || {
        let parsed = ChatTemplate::parse(source.as_str("the chat template")?, limits)?;
        chat_template.write(Box::into_raw(Box::new(parsed)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_template_free(chat_template: *mut ChatTemplate) {
    release(chat_template);
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_template_has_function(chat_template: *const ChatTemplate, name: View) -> bool {
    let known = || name.as_str("the name").is_ok_and(|name| (*chat_template).has_function(name));
    catch_unwind(AssertUnwindSafe(known)).unwrap_or(true)
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_template_render(
    chat_template: *const ChatTemplate,
    context: View,
    now: View,
    output: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> Status {
    output.write(give(Vec::new()));
    entry(error, || {
        let context = context.as_str("the template context")?;
        let now = now.as_str("the time")?;
        output.write(give((*chat_template).render(context, now)?.into_bytes()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn kvasir_text_panic_for_test(error: *mut Owned<u8>) -> Status {
    entry(error, || panic!("asked for by a test"))
}
