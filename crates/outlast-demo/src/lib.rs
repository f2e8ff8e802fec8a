//! Nothing to call: the Rust examples of the README and of the guide, compiled and run as documentation tests.
#![cfg_attr(doctest, doc = include_str!("../../../README.md"))]

/// One item a page, so that a failure names it.
macro_rules! guide {
    ($($page:ident: $file:literal),*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../../../docs/", $file))]
            pub mod $page {}
        )*
    };
}

guide!(
    restarts_and_upgrades: "restarts-and-upgrades.md",
    proxies: "proxies.md",
    servers_that_crash: "servers-that-crash.md",
    library: "library.md",
    security: "security.md",
    operations: "operations.md"
);
