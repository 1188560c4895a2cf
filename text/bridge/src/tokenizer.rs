//! Text to ids over the `tokenizers` crate, built from a GGUF's own vocabulary: byte-level BPE by merges, or SPM by
//! scores with byte fallback. The crate merges; stretches (control tokens, user-defined pieces, the space prefix) are
//! cut here, so that one table serves texts with and without recognition, and memory is not doubled.

use std::cmp::Ordering;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind, MatchKind};
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::Tokenizer;

use crate::pre_tokenizer::pre_tokenizer_for;
use crate::Failure;

// GGUF's tokenizer.ggml.token_type.
const NORMAL: u8 = 1;
const UNKNOWN: u8 = 2;
const CONTROL: u8 = 3;
const USER_DEFINED: u8 = 4;

/// SPM writes a space as this letter, U+2581.
const SPM_SPACE: &str = "\u{2581}";

/// The word patterns walk a run of white space step by step, and the regex crate gives up at a million steps: the
/// tokenizer then takes all that is left for one word, which gives quietly different ids.
const MAX_WHITE_SPACE_RUN: usize = 500_000;

/// A vocabulary as the model file has it; `scores` and `merges` may be empty.
pub struct VocabularyView<'a> {
    pub model: &'a str,
    pub pre_tokenizer: &'a str,
    pub tokens: Vec<&'a str>,
    pub scores: &'a [f32],
    pub types: &'a [u8],
    pub merges: Vec<&'a str>,
    pub add_space_prefix: bool,
}

/// Bytes [offset, offset + size) of a text spell control token `id`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ControlMatch {
    offset: usize,
    size: usize,
    id: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ByteLevelBpe,
    Spm { add_space_prefix: bool },
}

/// Spellings found leftmost first, the longest of those.
struct Finder {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Finder {
    fn new(spellings: Vec<(String, u32)>) -> Result<Self, Failure> {
        let (patterns, ids): (Vec<String>, Vec<u32>) =
            spellings.into_iter().filter(|(spelling, _)| !spelling.is_empty()).unzip();
        let automaton = if patterns.is_empty() {
            None
        } else {
            Some(
                AhoCorasickBuilder::new()
                    .match_kind(MatchKind::LeftmostLongest)
                    // Thousands of pieces (Gemma) would make a full DFA large; the NFA is fast enough.
                    .kind(Some(AhoCorasickKind::ContiguousNFA))
                    .build(&patterns)
                    .map_err(|error| Failure::invalid(format!("the special tokens cannot be indexed: {error}")))?,
            )
        };
        Ok(Finder { automaton, ids })
    }

    fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = ControlMatch> + 'a {
        self.automaton.iter().flat_map(move |automaton| {
            automaton.find_iter(text).map(|found| ControlMatch {
                offset: found.start(),
                size: found.end() - found.start(),
                id: self.ids[found.pattern().as_usize()],
            })
        })
    }
}

pub struct TextTokenizer {
    kind: Kind,
    merger: Tokenizer,
    control: Finder,
    user_defined: Finder,
}

impl TextTokenizer {
    pub fn new(vocabulary: &VocabularyView) -> Result<Self, Failure> {
        let kind = match vocabulary.model {
            "gpt2" => Kind::ByteLevelBpe,
            "llama" => Kind::Spm { add_space_prefix: vocabulary.add_space_prefix },
            other => {
                return Err(Failure::invalid(format!(
                    "tokenizer.ggml.model is '{other}'; this build knows 'gpt2' (byte-level BPE) and 'llama' (SPM)"
                )))
            }
        };
        let merger = match kind {
            Kind::ByteLevelBpe => byte_level_bpe(vocabulary)?,
            Kind::Spm { .. } => spm(vocabulary)?,
        };
        Ok(TextTokenizer {
            kind,
            merger,
            control: Finder::new(spellings(vocabulary, &[CONTROL, UNKNOWN], str::to_string))?,
            user_defined: Finder::new(spellings(vocabulary, &[USER_DEFINED], |token| kind_spelling(kind, token)))?,
        })
    }

    /// Ids of a text in which nothing is a control token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let mut ids = Vec::new();
        if text.is_empty() {
            return Ok(ids);
        }
        match self.kind {
            Kind::ByteLevelBpe => self.encode_around_user_defined(text, &mut ids)?,
            Kind::Spm { add_space_prefix } => {
                let mut written = String::with_capacity(text.len() + SPM_SPACE.len());
                if add_space_prefix {
                    written.push_str(SPM_SPACE);
                }
                written.push_str(&text.replace(' ', SPM_SPACE));
                self.encode_around_user_defined(&written, &mut ids)?;
            }
        }
        Ok(ids)
    }

    pub fn find_control(&self, text: &str) -> Vec<ControlMatch> {
        self.control.find(text).collect()
    }

    fn encode_around_user_defined(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Failure> {
        let mut position = 0;
        for found in self.user_defined.find(text) {
            self.merge(&text[position..found.offset], ids)?;
            ids.push(found.id);
            position = found.offset + found.size;
        }
        self.merge(&text[position..], ids)
    }

    fn merge(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        if self.kind == Kind::ByteLevelBpe {
            check_white_space(text)?;
        }
        let encoding = self.merger.encode_fast(text, false).map_err(|error| Failure::internal(error.to_string()))?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }
}

fn check_white_space(text: &str) -> Result<(), Failure> {
    let mut run = 0;
    for letter in text.chars() {
        run = if letter.is_whitespace() { run + 1 } else { 0 };
        if run > MAX_WHITE_SPACE_RUN {
            return Err(Failure::limit(format!(
                "the text has more than {MAX_WHITE_SPACE_RUN} white-space characters in a row, which this model's \
                 tokenizer cannot cut into words"
            )));
        }
    }
    Ok(())
}

fn kind_spelling(kind: Kind, token: &str) -> String {
    match kind {
        Kind::ByteLevelBpe => token.to_string(),
        Kind::Spm { .. } => token.replace(' ', SPM_SPACE),
    }
}

fn spellings(vocabulary: &VocabularyView, of_types: &[u8], spell: impl Fn(&str) -> String) -> Vec<(String, u32)> {
    (vocabulary.tokens.iter().zip(vocabulary.types).enumerate())
        .filter(|(_, (_, kind))| of_types.contains(kind))
        .map(|(id, (token, _))| (spell(token), id as u32))
        .collect()
}

/// Spelling to id; where two tokens share a spelling the first keeps it.
fn vocabulary_map(vocabulary: &VocabularyView) -> Vocab {
    let mut map = Vocab::default();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        map.entry((*token).to_string()).or_insert(id as u32);
    }
    map
}

fn byte_level_bpe(vocabulary: &VocabularyView) -> Result<Tokenizer, Failure> {
    if vocabulary.merges.is_empty() {
        return Err(Failure::invalid("tokenizer.ggml.merges is missing or empty; byte-level BPE needs it"));
    }
    let merges: Merges = (vocabulary.merges.iter().enumerate())
        .map(|(index, merge)| {
            merge.split_once(' ').map(|(left, right)| (left.to_string(), right.to_string())).ok_or_else(|| {
                Failure::invalid(format!("tokenizer.ggml.merges[{index}] is '{merge}', expected two tokens and a space"))
            })
        })
        .collect::<Result<_, _>>()?;
    let recipe = pre_tokenizer_for(vocabulary.pre_tokenizer)?;
    let model = BPE::builder()
        .vocab_and_merges(vocabulary_map(vocabulary), merges)
        .ignore_merges(recipe.whole_words_first)
        .build()
        .map_err(|error| Failure::invalid(format!("tokenizer.ggml.merges: {error}")))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(recipe.pre_tokenizer));
    let _ = tokenizer.with_normalizer(recipe.normalizer);
    Ok(tokenizer)
}

fn spm(vocabulary: &VocabularyView) -> Result<Tokenizer, Failure> {
    let num_tokens = vocabulary.tokens.len();
    if vocabulary.scores.len() != num_tokens || vocabulary.types.len() != num_tokens {
        return Err(Failure::invalid("tokenizer.ggml.scores and token_type are needed for SPM, one for each token"));
    }
    let map = vocabulary_map(vocabulary);
    let merges = merges_from_scores(vocabulary, &map)?;
    let mut builder = BPE::builder().vocab_and_merges(map, merges).byte_fallback(true).fuse_unk(true);
    if let Some(unknown) = vocabulary.types.iter().position(|&kind| kind == UNKNOWN) {
        builder = builder.unk_token(vocabulary.tokens[unknown].to_string());
    }
    let model = builder.build().map_err(|error| Failure::invalid(format!("the SPM vocabulary: {error}")))?;
    Ok(Tokenizer::new(model))
}

/// Every way to make a normal piece of two normal pieces, the best score first; ties by the ids of the two halves.
fn merges_from_scores(vocabulary: &VocabularyView, map: &Vocab) -> Result<Merges, Failure> {
    struct Candidate<'a> {
        score: f32,
        left_id: u32,
        right_id: u32,
        left: &'a str,
        right: &'a str,
    }
    let normal = |piece: &str| map.get(piece).copied().filter(|&id| vocabulary.types[id as usize] == NORMAL);
    let mut candidates = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate().filter(|(id, _)| vocabulary.types[*id] == NORMAL) {
        if vocabulary.scores[id].is_nan() {
            return Err(Failure::invalid(format!("tokenizer.ggml.scores[{id}] is not a number")));
        }
        for (cut, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(cut);
            if let (Some(left_id), Some(right_id)) = (normal(left), normal(right)) {
                candidates.push(Candidate { score: vocabulary.scores[id], left_id, right_id, left, right });
            }
        }
    }
    // No NaN is left, and 0 equals -0 here, which total_cmp would part.
    let by_score = |a: &Candidate, b: &Candidate| b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal);
    candidates.sort_by(|a, b| by_score(a, b).then((a.left_id, a.right_id).cmp(&(b.left_id, b.right_id))));
    Ok(candidates.into_iter().map(|merge| (merge.left.to_string(), merge.right.to_string())).collect())
}
