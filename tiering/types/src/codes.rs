//! Enums with a number, and a text or name, for each value.

/// Declares an enum whose values have ascending codes and a text each: `Value = 0 "text"`. A code that is no longer used stays free, so
/// that no other side takes it for another value. It gives `ALL`, `code`, `from_code` and the function that returns the text. With
/// `name: str` the text is the value's name in configuration files and tools, and `from_name` finds it again.
macro_rules! codes {
    ($(#[$meta:meta])* pub enum $name:ident: $repr:ty, name: str { $($(#[$value_meta:meta])* $value:ident = $code:literal $text:literal,)* }) => {
        codes! { @declare
            $(#[$meta])* pub enum $name: $repr, name: &'static str { $($(#[$value_meta])* #[serde(rename = $text)] $value = $code $text,)* }
        }
        impl $name {
            /// Return the value with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.into_iter().find(|value| value.name() == name)
            }
        }
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident: $repr:ty, $text_fn:ident: $text_type:ty { $($body:tt)* }) => {
        codes! { @declare $(#[$meta])* pub enum $name: $repr, $text_fn: $text_type { $($body)* } }
    };
    (@declare $(#[$meta:meta])* pub enum $name:ident: $repr:ty, $text_fn:ident: $text_type:ty { $($(#[$value_meta:meta])* $value:ident = $code:literal $text:expr,)* }) => {
        $(#[$meta])*
        #[repr($repr)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$value_meta])* $value = $code,)*
        }

        impl $name {
            /// Every value, in the order of the codes.
            pub const ALL: [$name; [$(stringify!($value)),*].len()] = [$($name::$value),*];

            /// Return the code: in ring entries, the C ABI and recordings.
            #[must_use]
            pub const fn code(self) -> $repr {
                self as $repr
            }

            /// Return the value with this code, which came from another process or a file.
            #[must_use]
            pub const fn from_code(code: $repr) -> Option<$name> {
                match code {
                    $($code => Some($name::$value),)*
                    _ => None,
                }
            }

            /// Return the value's text.
            #[must_use]
            pub const fn $text_fn(self) -> $text_type {
                match self {
                    $($name::$value => $text,)*
                }
            }
        }

        const _: () = {
            let mut at = 1;
            while at < $name::ALL.len() {
                assert!(($name::ALL[at - 1] as $repr) < $name::ALL[at] as $repr, "the codes ascend");
                at += 1;
            }
        };
    };
}
