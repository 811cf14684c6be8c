//! The name that programs are linked with: it changes when the interface does.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfreebs.so.0");
}
