//! What is done to a template's source before minijinja compiles it: bounds that keep compiling fast and its recursion
//! shallow, and `generation` blocks, which minijinja does not have. The tokens are minijinja's own lexer's.

use minijinja::machinery::{tokenize, Token};
use minijinja::syntax::SyntaxConfig;

use crate::Failure;

const MAX_BYTES: usize = 64 << 10;
/// The compiler folds constants by walking each chain of operators once for every link, and a fold that fails costs a
/// microsecond or so a step: 65,000 minus signs before a string took minutes, 250 in each of 260 tags take 0.2 s.
const MAX_OPERATORS_PER_TAG: usize = 250;

/// The source to compile. Errors name the bound that it breaks; syntax is left to the compiler to judge.
pub fn prepare(source: &str, syntax: SyntaxConfig) -> Result<String, Failure> {
    if source.len() > MAX_BYTES {
        return Err(Failure::invalid(format!(
            "it has {} bytes, more than the {MAX_BYTES} that are allowed",
            source.len()
        )));
    }
    let mut prepared = String::with_capacity(source.len());
    let mut copied = 0;
    let mut operators = 0;
    let mut at_tag_name = false;
    for token in tokenize(source, false, syntax) {
        let Ok((token, span)) = token else { break };
        match token {
            Token::BlockStart | Token::VariableStart => operators = 0,
            Token::Ident(name) if at_tag_name => {
                if let Some(block) = plain_block(name) {
                    prepared.push_str(&source[copied..span.start_offset as usize]);
                    prepared.push_str(block);
                    copied = span.end_offset as usize;
                }
            }
            _ if is_operator(&token) => operators += 1,
            _ => {}
        }
        if operators > MAX_OPERATORS_PER_TAG {
            return Err(Failure::invalid(format!(
                "line {} has a tag with more than {MAX_OPERATORS_PER_TAG} operators",
                span.start_line
            )));
        }
        at_tag_name = matches!(token, Token::BlockStart);
    }
    prepared.push_str(&source[copied..]);
    Ok(prepared)
}

/// `{% generation %}` marks what the assistant wrote, for training; for rendering it is a block that is always taken.
fn plain_block(name: &str) -> Option<&'static str> {
    match name {
        "generation" => Some("if true"),
        "endgeneration" => Some("endif"),
        _ => None,
    }
}

/// Whatever can be chained in an expression, so that the depth of the tree grows with its length.
fn is_operator(token: &Token) -> bool {
    match token {
        Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::FloorDiv | Token::Pow | Token::Mod => true,
        Token::Tilde | Token::Pipe | Token::Dot => true,
        Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => true,
        Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => true,
        Token::Ident(word) => matches!(*word, "not" | "and" | "or" | "in" | "is" | "if"),
        _ => false,
    }
}
