//! Doors for the fuzz targets to decoders that nothing outside calls by themselves. No part of the interface.

use crate::map::extents::Extent;
use crate::map::page::{PageBuilder, PageReader};
use crate::upkeep::checkpoint::manifest::Manifest;
use freebs_types::Result;

/// Items of a manifest, and what it says to be covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestSize {
    pub shards: usize,
    pub runs: usize,
    pub segments: usize,
    pub chunks: usize,
    pub history: usize,
    pub covered: u64,
    pub written: u64,
}

/// Decodes a manifest.
pub fn manifest(bytes: &[u8]) -> Result<ManifestSize> {
    let m = Manifest::decode(bytes)?;
    Ok(ManifestSize {
        shards: m.shards.len(),
        runs: m.runs.len(),
        segments: m.segments.len(),
        chunks: m.chunks.len(),
        history: m.history.len(),
        covered: m.covered(),
        written: m.written,
    })
}

/// An entry of a page: slot, first block, blocks, CRCs.
pub type PageEntry = (u32, u32, u32, usize);

/// The entries of a page's body, and body and count of a page that is built of them.
pub fn map_page(body: &[u8], count: u32) -> Result<(Vec<PageEntry>, Vec<u8>, u32)> {
    let entries: Vec<(u32, u32, Extent)> = PageReader::new(body, count).collect::<Result<_>>()?;
    let mut built = PageBuilder::default();
    for (slot, start, e) in &entries {
        assert!(built.push(*slot, *start, e), "what was in a page fits one");
    }
    let seen = entries.iter().map(|(slot, start, e)| (*slot, *start, e.len, e.crcs.slice(e.len).len())).collect();
    Ok((seen, built.body, built.count))
}
