//! Names the library as its users look for it: by a SONAME with the version of its interface. A program that was linked
//! with it says `liboutlast.so.0` then, and does not start with a later library that it does not understand.

use std::path::Path;

/// The version of the interface in `include/outlast.h`. It rises when a program that was built before would not work.
const INTERFACE: &str = "0";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutlast.so.{INTERFACE}");
    // Programs that are run beside the built library look for it by that name, too: OUT_DIR is profile/build/name/out.
    let out = std::env::var_os("OUT_DIR").unwrap_or_default();
    let profile = Path::new(&out).ancestors().nth(3);
    for folder in profile.into_iter().flat_map(|profile| [profile.to_owned(), profile.join("deps")]) {
        let link = folder.join(format!("liboutlast.so.{INTERFACE}"));
        if std::fs::symlink_metadata(&link).is_err() {
            // Where it cannot be made, the library must be installed to be used.
            let _ = std::os::unix::fs::symlink("liboutlast.so", link);
        }
    }
}
