//! A parsed template once more, with guards: whatever the engine would walk as deep as it goes (what is compared, joined,
//! given to a filter or a function) passes `value_guard::LIGHT` first, and what a namespace is to keep passes
//! `value_guard::KEPT`. Text goes out as an expression, so that one place sees all output. Nothing else changes.

use minijinja::machinery::ast::{self, CallArg, Expr, Spanned, Stmt};
use minijinja::Value;

use crate::value_guard::{KEPT, LIGHT};

/// Filters that look at the value itself and not into it, or that bound what they print.
const SHALLOW_FILTERS: [&str; 12] =
    ["length", "count", "first", "last", "default", "d", "tojson", "string", "items", "list", "reverse", "attr"];
/// Tests of a value's kind.
const SHALLOW_TESTS: [&str; 19] = [
    "defined", "undefined", "none", "boolean", "number", "integer", "int", "float", "string", "sequence", "iterable",
    "mapping", "callable", "true", "false", "odd", "even", "filter", "test",
];
/// Receivers that are the engine's own and known by their name.
const ENGINE_OBJECTS: [&str; 4] = ["self", "loop", "super", "caller"];

pub fn guarded<'a>(statement: &Stmt<'a>) -> Stmt<'a> {
    match statement {
        Stmt::Template(s) => Stmt::Template(node(s, ast::Template { children: body(&s.children) })),
        Stmt::EmitExpr(s) => Stmt::EmitExpr(node(s, ast::EmitExpr { expr: expr(&s.expr) })),
        Stmt::EmitRaw(s) => {
            let text = Expr::Const(node(s, ast::Const { value: Value::from(s.raw) }));
            Stmt::EmitExpr(node(s, ast::EmitExpr { expr: text }))
        }
        Stmt::ForLoop(s) => Stmt::ForLoop(node(
            s,
            ast::ForLoop {
                target: expr(&s.target),
                iter: expr(&s.iter),
                filter_expr: s.filter_expr.as_ref().map(expr),
                recursive: s.recursive,
                body: body(&s.body),
                else_body: body(&s.else_body),
            },
        )),
        Stmt::IfCond(s) => Stmt::IfCond(node(
            s,
            ast::IfCond { expr: expr(&s.expr), true_body: body(&s.true_body), false_body: body(&s.false_body) },
        )),
        Stmt::WithBlock(s) => Stmt::WithBlock(node(
            s,
            ast::WithBlock {
                assignments: s.assignments.iter().map(|(to, from)| (expr(to), assigned(to, from))).collect(),
                body: body(&s.body),
            },
        )),
        Stmt::Set(s) => {
            Stmt::Set(node(s, ast::Set { target: expr(&s.target), expr: assigned(&s.target, &s.expr) }))
        }
        Stmt::SetBlock(s) => Stmt::SetBlock(node(
            s,
            ast::SetBlock { target: expr(&s.target), filter: s.filter.as_ref().map(expr), body: body(&s.body) },
        )),
        Stmt::AutoEscape(s) => {
            Stmt::AutoEscape(node(s, ast::AutoEscape { enabled: expr(&s.enabled), body: body(&s.body) }))
        }
        Stmt::FilterBlock(s) => Stmt::FilterBlock(node(
            s,
            ast::FilterBlock { filter: expr(&s.filter), filter_span: s.filter_span, body: body(&s.body) },
        )),
        Stmt::Block(s) => {
            Stmt::Block(node(s, ast::Block { name: s.name, required: s.required, body: body(&s.body) }))
        }
        Stmt::Import(s) => Stmt::Import(node(s, ast::Import { expr: expr(&s.expr), name: expr(&s.name) })),
        Stmt::FromImport(s) => Stmt::FromImport(node(
            s,
            ast::FromImport {
                expr: expr(&s.expr),
                names: s.names.iter().map(|(name, alias)| (expr(name), alias.as_ref().map(expr))).collect(),
            },
        )),
        Stmt::Extends(s) => Stmt::Extends(node(s, ast::Extends { name: expr(&s.name) })),
        Stmt::Include(s) => {
            Stmt::Include(node(s, ast::Include { name: expr(&s.name), ignore_missing: s.ignore_missing }))
        }
        Stmt::Macro(s) => Stmt::Macro(macro_declaration(s)),
        Stmt::CallBlock(s) => Stmt::CallBlock(node(
            s,
            ast::CallBlock {
                call: call(&s.call),
                call_expr_span: s.call_expr_span,
                macro_decl: macro_declaration(&s.macro_decl),
            },
        )),
        Stmt::Continue(s) => Stmt::Continue(node(s, ast::Continue)),
        Stmt::Break(s) => Stmt::Break(node(s, ast::Break)),
        Stmt::Do(s) => Stmt::Do(node(s, ast::Do { call: call(&s.call) })),
    }
}

/// A node where `original` stood.
fn node<T, N>(original: &Spanned<T>, replacement: N) -> Spanned<N> {
    Spanned::new(replacement, original.span())
}

fn body<'a>(statements: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
    statements.iter().map(guarded).collect()
}

fn macro_declaration<'a>(s: &Spanned<ast::Macro<'a>>) -> Spanned<ast::Macro<'a>> {
    let args = s.args.iter().map(expr).collect();
    let defaults = s.defaults.iter().map(expr).collect();
    node(s, ast::Macro { name: s.name, args, defaults, body: body(&s.body) })
}

fn expr<'a>(original: &Expr<'a>) -> Expr<'a> {
    match original {
        Expr::Var(e) => Expr::Var(node(e, ast::Var { id: e.id })),
        Expr::Const(e) => Expr::Const(node(e, ast::Const { value: e.value.clone() })),
        Expr::Slice(e) => Expr::Slice(node(
            e,
            ast::Slice {
                expr: expr(&e.expr),
                start: e.start.as_ref().map(expr),
                stop: e.stop.as_ref().map(expr),
                step: e.step.as_ref().map(expr),
            },
        )),
        Expr::UnaryOp(e) => {
            let op = match e.op {
                ast::UnaryOpKind::Not => ast::UnaryOpKind::Not,
                ast::UnaryOpKind::Neg => ast::UnaryOpKind::Neg,
            };
            Expr::UnaryOp(node(e, ast::UnaryOp { op, expr: expr(&e.expr) }))
        }
        Expr::BinOp(e) => {
            let operand = if walks_operands(e.op) { light } else { expr };
            Expr::BinOp(node(e, ast::BinOp { op: e.op, left: operand(&e.left), right: operand(&e.right) }))
        }
        Expr::Compare(e) => {
            let ops = e.ops.iter().map(|other| ast::CompareOp { op: other.op, expr: light(&other.expr) }).collect();
            Expr::Compare(node(e, ast::Compare { expr: light(&e.expr), ops }))
        }
        Expr::IfExpr(e) => Expr::IfExpr(node(
            e,
            ast::IfExpr {
                test_expr: expr(&e.test_expr),
                true_expr: expr(&e.true_expr),
                false_expr: e.false_expr.as_ref().map(expr),
            },
        )),
        Expr::Filter(e) => {
            let input = if SHALLOW_FILTERS.contains(&e.name) { expr } else { light };
            let filter = ast::Filter { name: e.name, expr: e.expr.as_ref().map(input), args: arguments(&e.args, light) };
            Expr::Filter(node(e, filter))
        }
        Expr::Test(e) => {
            let input = if SHALLOW_TESTS.contains(&e.name) { expr } else { light };
            Expr::Test(node(e, ast::Test { name: e.name, expr: input(&e.expr), args: arguments(&e.args, light) }))
        }
        Expr::GetAttr(e) => Expr::GetAttr(node(e, ast::GetAttr { expr: expr(&e.expr), name: e.name })),
        Expr::GetItem(e) => Expr::GetItem(node(
            e,
            ast::GetItem { expr: expr(&e.expr), subscript_expr: light(&e.subscript_expr) },
        )),
        Expr::Call(e) => Expr::Call(call(e)),
        Expr::List(e) => Expr::List(node(e, ast::List { items: e.items.iter().map(expr).collect() })),
        Expr::Tuple(e) => Expr::Tuple(node(e, ast::Tuple { items: e.items.iter().map(expr).collect() })),
        Expr::Map(e) => Expr::Map(node(
            e,
            // A key is hashed and compared.
            ast::Map { keys: e.keys.iter().map(light).collect(), values: e.values.iter().map(expr).collect() },
        )),
    }
}

fn walks_operands(op: ast::BinOpKind) -> bool {
    use ast::BinOpKind::{Concat, Eq, Gt, Gte, In, Lt, Lte, Ne};
    matches!(op, Eq | Ne | Lt | Lte | Gt | Gte | In | Concat)
}

fn call<'a>(e: &Spanned<ast::Call<'a>>) -> Spanned<ast::Call<'a>> {
    let callee = match &e.expr {
        Expr::GetAttr(attribute) if !is_engine_object(&attribute.expr) => {
            Expr::GetAttr(node(attribute, ast::GetAttr { expr: light(&attribute.expr), name: attribute.name }))
        }
        other => expr(other),
    };
    let makes_namespace = matches!(&e.expr, Expr::Var(var) if var.id == "namespace");
    node(e, ast::Call { expr: callee, args: arguments(&e.args, if makes_namespace { kept } else { light }) })
}

fn is_engine_object(receiver: &Expr) -> bool {
    matches!(receiver, Expr::Var(var) if ENGINE_OBJECTS.contains(&var.id))
}

fn arguments<'a>(args: &[CallArg<'a>], guard: impl Fn(&Expr<'a>) -> Expr<'a>) -> Vec<CallArg<'a>> {
    args.iter()
        .map(|argument| match argument {
            CallArg::Pos(value) => CallArg::Pos(guard(value)),
            CallArg::Kwarg(name, value) => CallArg::Kwarg(name, guard(value)),
            CallArg::PosSplat(value) => CallArg::PosSplat(guard(value)),
            CallArg::KwargSplat(value) => CallArg::KwargSplat(guard(value)),
        })
        .collect()
}

/// What is assigned: an attribute is a namespace's.
fn assigned<'a>(target: &Expr<'a>, value: &Expr<'a>) -> Expr<'a> {
    if has_attribute(target) {
        kept(value)
    } else {
        expr(value)
    }
}

fn has_attribute(target: &Expr) -> bool {
    match target {
        Expr::GetAttr(_) => true,
        Expr::List(list) => list.items.iter().any(has_attribute),
        _ => false,
    }
}

fn light<'a>(value: &Expr<'a>) -> Expr<'a> {
    filtered(LIGHT, value)
}

fn kept<'a>(value: &Expr<'a>) -> Expr<'a> {
    filtered(KEPT, value)
}

fn filtered<'a>(name: &'static str, value: &Expr<'a>) -> Expr<'a> {
    let copy = expr(value);
    if is_small(value) {
        return copy;
    }
    Expr::Filter(Spanned::new(ast::Filter { name, expr: Some(copy), args: Vec::new() }, value.span()))
}

/// Values that are as small as their source; constants stay constants for the compiler.
fn is_small(value: &Expr) -> bool {
    match value {
        Expr::Const(_) | Expr::Compare(_) | Expr::Test(_) | Expr::UnaryOp(_) => true,
        Expr::List(list) => list.items.iter().all(|item| matches!(item, Expr::Const(_))),
        Expr::Tuple(tuple) => tuple.items.iter().all(|item| matches!(item, Expr::Const(_))),
        _ => false,
    }
}
