//! Two filters that `guarded_ast` puts into templates. Both walk a value before the engine does, which bounds neither how
//! deep nor how far: a few lists, each holding the one before twice, are 2^40 values to compare or to print. What is
//! walked is paid for from the rendering's steps. A namespace is the only thing that a template can change after it was
//! made; as what goes into one is plain data, no value ever holds itself.

use indexmap::IndexMap;
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use crate::python::{too_deep, MAX_DEPTH};

/// Passes a value that is small enough to be walked. No template can spell the name.
pub const LIGHT: &str = "!light";
/// Passes a value as plain data, which holds no namespace and nothing that is computed when it is read.
pub const KEPT: &str = "!kept";

/// A step pays for 64 bytes, as the engine counts, or for four values that are only looked at.
const BYTES_PER_STEP: u64 = 64;
const NODES_PER_STEP: u64 = 4;

pub fn add_to(environment: &mut Environment) {
    environment.add_filter(LIGHT, |state: &State, value: Value| -> Result<Value, Error> {
        weigh(state, &value)?;
        Ok(value)
    });
    environment.add_filter(KEPT, |state: &State, value: Value| -> Result<Value, Error> {
        weigh(state, &value)?;
        Ok(plain(&value)?.unwrap_or(value))
    });
}

struct Scale {
    nodes_left: u64,
    bytes_left: u64,
}

/// Fails for what is nested too deep, or larger than the steps that are left pay for.
fn weigh(state: &State, value: &Value) -> Result<(), Error> {
    if value.as_object().is_none() {
        return Ok(());
    }
    let steps = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
    let nodes = steps.saturating_mul(NODES_PER_STEP);
    let mut scale = Scale { nodes_left: nodes, bytes_left: steps.saturating_mul(BYTES_PER_STEP) };
    let weighed = walk(value, 0, &mut scale);
    state.consume_fuel((nodes - scale.nodes_left) / NODES_PER_STEP)?;
    weighed
}

fn walk(value: &Value, depth: usize, scale: &mut Scale) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    let bytes = value.as_str().map_or(0, str::len) as u64;
    if scale.nodes_left == 0 || bytes > scale.bytes_left {
        scale.nodes_left = 0;
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    scale.nodes_left -= 1;
    scale.bytes_left -= bytes;
    // Most values are of these two types, which can be walked where they lie.
    if let Some(items) = value.downcast_object_ref::<Vec<Value>>() {
        return items.iter().try_for_each(|item| walk(item, depth + 1, scale));
    }
    if let Some(map) = value.downcast_object_ref::<IndexMap<Value, Value>>() {
        return map
            .iter()
            .try_for_each(|(key, item)| walk(key, depth + 1, scale).and_then(|()| walk(item, depth + 1, scale)));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                walk(&item, depth + 1, scale)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                walk(&key, depth + 1, scale)?;
                walk(&value.get_item(&key)?, depth + 1, scale)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A copy where it must be another: lists and maps that only show what others hold become lists and maps. None: the value
/// is plain already. For values that `weigh` passed.
fn plain(value: &Value) -> Result<Option<Value>, Error> {
    if value.as_object().is_none() {
        return Ok(None);
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            let is_list = value.downcast_object_ref::<Vec<Value>>().is_some();
            let items: Vec<Value> = value.try_iter()?.collect();
            let Some(items) = plain_items(items, !is_tuple && !is_list)? else { return Ok(None) };
            Ok(Some(if is_tuple { Value::from(Tuple::from(items)) } else { Value::from(items) }))
        }
        ValueKind::Map => {
            let map = value.downcast_object_ref::<IndexMap<Value, Value>>().ok_or_else(not_data)?;
            let items = plain_items(map.values().cloned().collect(), false)?;
            Ok(items.map(|items| Value::from_object(map.keys().cloned().zip(items).collect::<IndexMap<_, _>>())))
        }
        _ => Err(not_data()),
    }
}

fn not_data() -> Error {
    Error::new(ErrorKind::InvalidOperation, "a namespace can hold data, but no namespace, macro or other object")
}

/// The items as plain data; None when all are so already and no copy is asked for.
fn plain_items(items: Vec<Value>, mut is_copied: bool) -> Result<Option<Vec<Value>>, Error> {
    let mut copies = Vec::with_capacity(items.len());
    for item in items {
        let copy = plain(&item)?;
        is_copied |= copy.is_some();
        copies.push(copy.unwrap_or(item));
    }
    Ok(is_copied.then_some(copies))
}
