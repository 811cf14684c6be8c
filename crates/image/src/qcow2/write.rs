//! Writing an image in order, of version 3, sparse.
//!
//! Order in the file: the header's cluster, the first table, then data as they come, each second table before the first data
//! that it refers to, then refcounts. All clusters are referred to once. The header is written last: before that the file
//! is not an image.

use super::header::Raw;
use super::{COPIED, MAGIC};
use crate::Sink;
use freebs_types::{Error, Result};
use zerocopy::IntoBytes;

const CLUSTER_BITS: u32 = 16;
/// Bytes of the clusters of images that are written here: what most images have.
pub const WRITTEN_CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;
const CLUSTER: u64 = WRITTEN_CLUSTER_BYTES;
/// Bytes of the disk that a second table covers.
const L2_COVERS: u64 = CLUSTER / 8 * CLUSTER;
/// Refcounts have two bytes each (order 4).
const REFCOUNT_ORDER: u32 = 4;
const REFCOUNTS_PER_BLOCK: u64 = CLUSTER / 2;
/// Bytes of a disk that an image is written of, at most: its first table has 32 MiB then.
pub const DISK_BYTES_MAX: u64 = (4 << 20) * L2_COVERS;

/// An image that is being written.
pub struct Writer<K> {
    sink: K,
    size: u64,
    l1: Vec<u64>,
    /// Which second table is being filled, its place and its entries.
    l2: Option<(u64, u64, Vec<u64>)>,
    /// The cluster of the disk that is being filled, and its bytes.
    cluster: Option<(u64, Vec<u8>)>,
    /// Bytes of the disk before this one are done.
    done: u64,
    /// Clusters of the file that are in use.
    used: u64,
}

impl<K: Sink> Writer<K> {
    /// An image of a disk of `size` bytes, 1 to `DISK_BYTES_MAX`, all of it zeroes so far. The sink is empty.
    pub fn new(sink: K, size: u64) -> Result<Self> {
        if !(1..=DISK_BYTES_MAX).contains(&size) {
            return Err(Error::invalid(format!(
                "an image of a disk of {size} bytes can't be written as qcow2; write it raw"
            )));
        }
        let l1 = vec![0; size.div_ceil(L2_COVERS) as usize];
        let used = 1 + (l1.len() as u64 * 8).div_ceil(CLUSTER);
        Ok(Self { sink, size, l1, l2: None, cluster: None, done: 0, used })
    }

    /// These bytes of the disk, behind all that were written before. Bytes that are left out are zeroes, and clusters of
    /// zeroes take no room.
    pub fn data(&mut self, at: u64, mut bytes: &[u8]) -> Result<()> {
        assert!(at >= self.done, "in order");
        let end = at.checked_add(bytes.len() as u64).filter(|end| *end <= self.size);
        self.done = end.ok_or_else(|| Error::bug("data behind the end of the disk"))?;
        let mut at = at;
        while !bytes.is_empty() {
            let (index, offset) = (at / CLUSTER, (at % CLUSTER) as usize);
            if self.cluster.as_ref().is_some_and(|c| c.0 != index) {
                self.end_cluster()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CLUSTER as usize - offset));
            let (_, cluster) = self.cluster.get_or_insert_with(|| (index, vec![0; CLUSTER as usize]));
            cluster[offset..offset + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    fn take_cluster(&mut self) -> u64 {
        self.used += 1;
        (self.used - 1) * CLUSTER
    }

    fn end_cluster(&mut self) -> Result<()> {
        let Some((index, bytes)) = self.cluster.take() else { return Ok(()) };
        if crate::runs(&bytes).is_empty() {
            return Ok(());
        }
        let table = index * CLUSTER / L2_COVERS;
        if self.l2.as_ref().is_some_and(|l2| l2.0 != table) {
            self.end_l2()?;
        }
        if self.l2.is_none() {
            let place = self.take_cluster();
            self.l1[table as usize] = place | COPIED;
            self.l2 = Some((table, place, vec![0; (CLUSTER / 8) as usize]));
        }
        let place = self.take_cluster();
        if let Some((_, _, entries)) = &mut self.l2 {
            entries[(index % (CLUSTER / 8)) as usize] = place | COPIED;
        }
        self.sink.write_at(place, &bytes)
    }

    fn end_l2(&mut self) -> Result<()> {
        let Some((_, place, entries)) = self.l2.take() else { return Ok(()) };
        self.sink.write_at(place, &table(&entries))
    }

    /// Writes the last data, the tables and the header; the bytes that the file has then. The sink is given back: what was
    /// written to it is not durable yet.
    pub fn finish(mut self) -> Result<(K, u64)> {
        self.end_cluster()?;
        self.end_l2()?;
        let before = self.used;
        let (blocks, table_clusters) = refcount_clusters(before);
        let all = before + blocks + table_clusters;
        for i in 0..blocks {
            let of_block = (all - i * REFCOUNTS_PER_BLOCK).min(REFCOUNTS_PER_BLOCK) as usize;
            let mut block = [0, 1].repeat(of_block);
            block.resize(CLUSTER as usize, 0);
            self.sink.write_at((before + i) * CLUSTER, &block)?;
        }
        let mut refcounts: Vec<u64> = (0..blocks).map(|i| (before + i) * CLUSTER).collect();
        refcounts.resize((table_clusters * CLUSTER / 8) as usize, 0);
        self.sink.write_at((before + blocks) * CLUSTER, &table(&refcounts))?;
        self.sink.write_at(CLUSTER, &table(&self.l1))?;
        let raw = Raw {
            magic: MAGIC,
            version: 3.into(),
            backing_at: 0.into(),
            backing_bytes: 0.into(),
            cluster_bits: CLUSTER_BITS.into(),
            size: self.size.into(),
            crypt_method: 0.into(),
            l1_size: (self.l1.len() as u32).into(),
            l1_at: CLUSTER.into(),
            refcount_table_at: ((before + blocks) * CLUSTER).into(),
            refcount_table_clusters: (table_clusters as u32).into(),
            snapshots: 0.into(),
            snapshots_at: 0.into(),
            incompatible: 0.into(),
            compatible: 0.into(),
            autoclear: 0.into(),
            refcount_order: REFCOUNT_ORDER.into(),
            header_bytes: (size_of::<Raw>() as u32).into(),
        };
        // Zeroes behind the fields say that there are no extensions.
        self.sink.write_at(0, raw.as_bytes())?;
        Ok((self.sink, all * CLUSTER))
    }
}

fn table(entries: &[u64]) -> Vec<u8> {
    entries.iter().flat_map(|e| e.to_be_bytes()).collect()
}

/// Clusters of refcount blocks, and of the table of them, that count themselves and `before` others.
fn refcount_clusters(before: u64) -> (u64, u64) {
    let (mut blocks, mut table) = (1, 1);
    loop {
        let all = before + blocks + table;
        let needed = (all.div_ceil(REFCOUNTS_PER_BLOCK), (blocks * 8).div_ceil(CLUSTER));
        if needed.0 <= blocks && needed.1 <= table {
            return (blocks, table);
        }
        (blocks, table) = (needed.0.max(blocks), needed.1.max(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refcounts_count_themselves() {
        assert_eq!(refcount_clusters(2), (1, 1));
        assert_eq!(refcount_clusters(32_766), (1, 1));
        assert_eq!(refcount_clusters(32_767), (2, 1));
        // A file of 16 TiB: 8,193 blocks need a second cluster of their table.
        let (blocks, table) = refcount_clusters(8192 * 32_768);
        assert_eq!((blocks, table), (8193, 2));
        assert!((8192 * 32_768 + blocks + table).div_ceil(REFCOUNTS_PER_BLOCK) <= blocks);
    }
}
