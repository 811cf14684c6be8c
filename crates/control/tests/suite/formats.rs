//! The header of the control state is as `docs/formats/disk.md` describes it.

use crate::tables;
use core::mem::{offset_of, size_of};
use freebs_control::StateHeader;

#[test]
fn the_state_header_is_as_documented() {
    let docs = tables::structs(&tables::read("disk.md"));
    let d = docs.iter().find(|d| d.name == "StateHeader").expect("it has a table");
    assert_eq!(d.bytes, size_of::<StateHeader>());
    macro_rules! fields {
        ($($field:ident),*) => { [$((offset_of!(StateHeader, $field), stringify!($field))),*] };
    }
    let built = fields![magic, version, length, cluster, revision, body_len, founding, reserved, body_crc, crc];
    let described: Vec<_> = d.rows.iter().map(|r| (r.offset, r.field.as_str())).collect();
    assert_eq!(described, built);
    let ends = built.iter().skip(1).map(|f| f.0).chain([d.bytes]);
    let sizes: Vec<usize> = ends.zip(built).map(|(end, f)| end - f.0).collect();
    assert_eq!(d.rows.iter().map(|r| r.bytes).collect::<Vec<_>>(), sizes);
}
