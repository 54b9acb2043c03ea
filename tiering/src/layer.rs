//! Layers of the core: each is a struct that owns the one below it and offers what that one offers.
//!
//! `docs/design/core.md` lists them: `requests`, then `paging` and `block_api`, then `host`, `disk`, `index`, `blocks`, `sessions`.
//!
//! `paging` and `block_api` are lent the layers below them for one call, and do not know each other. A lower layer has no name for an
//! upper one: a call upwards does not compile, and `tests/tidy/cycles.rs` fails on the name. What a lower layer has to tell an upper one it
//! leaves in a table that it owns: a woken session, a timer, an ended request, the id of a freed block.

/// Let a layer offer what the layer in its field `below` offers. With a lifetime: a layer that is lent the one below.
macro_rules! stands_on {
    ($upper:ident, $lower:ty) => {
        stands_on!(@ [] $upper, $lower);
    };
    ($upper:ident<$a:lifetime>, $lower:ty) => {
        stands_on!(@ [<$a>] $upper, $lower);
    };
    (@ [$($a:tt)*] $upper:ident, $lower:ty) => {
        impl $($a)* std::ops::Deref for $upper $($a)* {
            type Target = $lower;
            fn deref(&self) -> &$lower {
                &self.below
            }
        }
        impl $($a)* std::ops::DerefMut for $upper $($a)* {
            fn deref_mut(&mut self) -> &mut $lower {
                &mut self.below
            }
        }
    };
}
pub(crate) use stands_on;
