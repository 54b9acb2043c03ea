//! Empty: this package exists only for its dependency.
