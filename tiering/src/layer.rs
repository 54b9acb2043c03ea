//! Layers: each owns the one below it and can call what that one offers. A lower layer has no name for an upper one, so a call upwards does
//! not compile.

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
