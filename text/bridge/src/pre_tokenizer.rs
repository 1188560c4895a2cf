//! The named pre-tokenizers of byte-level BPE (GGUF's `tokenizer.ggml.pre`): how a text is cut into words before
//! merging. A name that is not listed is refused, because a near miss gives quietly different tokens.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;

use crate::Failure;

/// How the words of one family of models are cut.
pub struct PreTokenizerRecipe {
    pub pre_tokenizer: PreTokenizerWrapper,
    pub normalizer: Option<NormalizerWrapper>,
    /// A word that is a token as a whole is taken as it is, even where no chain of merges leads to it.
    pub whole_words_first: bool,
}

// The words of Llama 3: at most three digits together.
const LLAMA3_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
// The words of Qwen 2: each digit alone.
const QWEN2_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The recipe for a name; an error names the name.
pub fn pre_tokenizer_for(name: &str) -> Result<PreTokenizerRecipe, Failure> {
    let recipe = |pre_tokenizer| PreTokenizerRecipe { pre_tokenizer, normalizer: None, whole_words_first: false };
    match name {
        // Files from before names existed say "default" or nothing; GPT-2's words are what such models used.
        "gpt-2" | "gpt2" | "phi-2" | "default" | "" => Ok(recipe(byte_level(true))),
        "smollm" | "starcoder" | "refact" => Ok(recipe(chain(vec![Digits::new(true).into(), byte_level(true)]))),
        "llama-bpe" | "llama3" | "llama-v3" => {
            Ok(PreTokenizerRecipe { whole_words_first: true, ..recipe(words(LLAMA3_WORDS)?) })
        }
        // Qwen's own tokenizer composes characters (NFC) first.
        "qwen2" | "deepseek-r1-qwen" => {
            Ok(PreTokenizerRecipe { normalizer: Some(NFC.into()), ..recipe(words(QWEN2_WORDS)?) })
        }
        _ => Err(Failure::invalid(format!(
            "tokenizer.ggml.pre is '{name}', a pre-tokenizer that this build does not know; known are gpt-2 (also \
             'default'), phi-2, smollm, starcoder, refact, llama-bpe, qwen2, deepseek-r1-qwen"
        ))),
    }
}

/// Bytes as the letters of the byte-level alphabet; with GPT-2's own words or on words already cut.
fn byte_level(gpt2_words: bool) -> PreTokenizerWrapper {
    ByteLevel::new(false, true, gpt2_words).into()
}

fn chain(steps: Vec<PreTokenizerWrapper>) -> PreTokenizerWrapper {
    Sequence::new(steps).into()
}

fn words(pattern: &str) -> Result<PreTokenizerWrapper, Failure> {
    let split = Split::new(SplitPattern::Regex(pattern.to_string()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| Failure::internal(format!("a word pattern does not compile: {error}")))?;
    Ok(chain(vec![split.into(), byte_level(false)]))
}
