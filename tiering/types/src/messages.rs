//! Requests and jobs: enums with fields, and their place in a ring entry.
//!
//! `Commit = 5 { seq @ seq: SeqId, tokens @ value: u64 }` in [`messages!`] declares `Request::Commit { seq, tokens }` with the code
//! `Op::Commit`, 5. `encode` writes `seq` to the message's field `seq` and `tokens` to its field `value`; `decode` reads them back. The
//! word after `@` is a place: a type of the module `place`, most of which stand for the field of the same name ([`places!`]).

use crate::{Hash, Status};

/// All-ones value on the wire: no sequence, block, frame or lane.
pub const NONE: u32 = u32::MAX;

/// The list that comes with a message, split into hashes and words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct List<'a> {
    /// Hashes.
    pub hashes: &'a [Hash],
    /// Words.
    pub words: &'a [u32],
}

impl List<'_> {
    /// Part of a list: one word for each of the message's `count`.
    pub const COUNTED: u8 = 1;
    /// Part of a list: one hash for each of the message's `count`; hashes come before words.
    pub const HASHES: u8 = 2;
    /// The list is words, and the message does not count them.
    pub const WORDS: u8 = 4;
}

/// Where a field of type `T` stands in a message of type `M`.
pub trait Place<'a, T, M> {
    /// Write the field.
    fn put(message: &mut M, list: &mut List<'a>, field: T);

    /// Read and check the field.
    ///
    /// # Errors
    /// [`Status::Invalid`] for an unknown code, [`Status::Range`] for a number that is too large.
    fn get(message: &M, list: List<'a>) -> Result<T, Status>;
}

/// A field that is a number `N` on the wire.
pub trait Raw<N>: Sized {
    /// Return the number.
    fn put(self) -> N;

    /// Return the field with this number.
    ///
    /// # Errors
    /// [`Status::Invalid`] for an unknown code, [`Status::Range`] for a number that is too large.
    fn get(raw: N) -> Result<Self, Status>;
}

macro_rules! raw {
    ($($field:ty as $number:ty),* $(,)?) => {$(
        impl Raw<$number> for $field {
            fn put(self) -> $number {
                self.into()
            }
            fn get(raw: $number) -> Result<$field, Status> {
                raw.try_into().map_err(|_| Status::Range)
            }
        }
    )*};
}
raw!(u16 as u16, u32 as u32, u64 as u64, u128 as u128, u8 as u32, u16 as u64);

impl Raw<u32> for bool {
    fn put(self) -> u32 {
        self.into()
    }
    fn get(raw: u32) -> Result<bool, Status> {
        Ok(raw != 0)
    }
}

impl Raw<u32> for Option<u32> {
    fn put(self) -> u32 {
        self.unwrap_or(NONE)
    }
    fn get(raw: u32) -> Result<Option<u32>, Status> {
        Ok((raw != NONE).then_some(raw))
    }
}

/// Declares the fields of a message type as places: `seq: u32` makes a type `seq` that stands for the message's field `seq`.
macro_rules! places {
    ($message:ty: $($place:ident: $number:ty,)*) => {$(
        #[derive(Debug)]
        #[allow(non_camel_case_types, missing_docs)]
        pub struct $place;
        impl $place {
            /// Parts of the list that the field takes.
            pub const LIST: u8 = 0;
        }
        impl<T: $crate::Raw<$number>> $crate::Place<'_, T, $message> for $place {
            fn put(message: &mut $message, _: &mut $crate::List<'_>, field: T) {
                message.$place = field.put();
            }
            fn get(message: &$message, _: $crate::List<'_>) -> Result<T, $crate::Status> {
                T::get(message.$place)
            }
        }
    )*};
}

/// Declares an enum of requests or jobs, the enum of its codes, and the place of each field in the message:
/// `Name = 3 { field @ place: Type }`. It gives `code`, `encode` and `decode`, and `list` of a code: the parts of its list.
macro_rules! messages {
    (
        $(#[$meta:meta])* pub enum $name:ident $(<$life:lifetime>)?;
        $(#[$code_meta:meta])* pub enum $code:ident: $message:ident in $places:ident;
        $($(#[$value_meta:meta])* $value:ident = $number:literal { $($field:ident @ $place:ident: $type:ty),* $(,)? },)*
    ) => {
        $(#[$meta])*
        #[allow(missing_docs)] // the variants are described; a field's name and type say the rest
        pub enum $name $(<$life>)? {
            $($(#[$value_meta])* $value { $($field: $type),* },)*
        }

        codes! {
            $(#[$code_meta])*
            pub enum $code: u16, name: &'static str {
                $(#[doc = concat!("[`", stringify!($name), "::", stringify!($value), "`].")] $value = $number (stringify!($value)),)*
            }
        }

        impl $(<$life>)? $name $(<$life>)? {
            /// Return its code.
            #[must_use]
            pub const fn code(&self) -> $code {
                match self {
                    $($name::$value { .. } => $code::$value,)*
                }
            }
        }

        messages! { @codec [$($life)?] $name $code $message $places $($value { $($field @ $place: $type,)* })* }
    };
    (@codec [$life:lifetime] $name:ident $($rest:tt)*) => {
        messages! { @functions [<$life>] [$life] $name<$life>; $name $($rest)* }
    };
    (@codec [] $name:ident $($rest:tt)*) => {
        messages! { @functions [] ['static] $name; $name $($rest)* }
    };
    (
        @functions [$($generic:tt)*] [$list_life:lifetime] $self:ty; $name:ident $code:ident $message:ident $places:ident
        $($value:ident { $($field:ident @ $place:ident: $type:ty,)* })*
    ) => {
        impl $($generic)* $self {
            /// Return the message, and its list.
            #[must_use]
            pub fn encode(self) -> ($message, $crate::List<$list_life>) {
                let mut message = $message { kind: self.code().code(), ..$message::default() };
                let mut list = $crate::List::default();
                match self {
                    $($name::$value { $($field),* } => {
                        $(<$places::$place as $crate::Place<'_, $type, $message>>::put(&mut message, &mut list, $field);)*
                    })*
                }
                let _ = &mut list; // jobs have none
                (message, list)
            }

            /// Return what a message from another process says. Fields that it does not use are ignored.
            ///
            /// # Errors
            /// [`Status::Invalid`](crate::Status::Invalid) for an unknown code, or a list that contradicts the message;
            /// [`Status::Range`](crate::Status::Range) for a number that is too large.
            pub fn decode(message: &$message, list: $crate::List<$list_life>) -> Result<$self, $crate::Status> {
                let code = $code::from_code(message.kind).ok_or($crate::Status::Invalid)?;
                Ok(match code {
                    $($code::$value => $name::$value {
                        $($field: <$places::$place as $crate::Place<'_, $type, $message>>::get(message, list)?,)*
                    },)*
                })
            }
        }

        impl $code {
            /// Return the parts of its list, as bits of [`List`](crate::List).
            #[must_use]
            pub const fn list(self) -> u8 {
                match self {
                    $($code::$value => 0 $(| $places::$place::LIST)*,)*
                }
            }
        }
    };
}
