//! Reading an image from its first byte to its last, in order.

use super::header::{HEADER_BYTES, Header, damaged, truncated};
use super::unpack::unpack;
use super::{COMPRESSED, PLACE, ZERO};
use crate::{Body, Piece, Source};
use freebs_types::{Error, Result};

/// Bytes of a piece of data: at most this, or a cluster if that is more. Pieces end at multiples of it.
const PIECE_BYTES: u64 = 1 << 20;

/// An image that is being read. See [`Reader::next_piece`].
pub struct Reader<S> {
    source: S,
    header: Header,
    /// The first table: places of second tables, 0 for none.
    l1: Vec<u64>,
    /// The second table that was read last, and which one it is.
    l2: Vec<u64>,
    l2_is: Option<u64>,
    /// Next byte of the disk.
    at: u64,
}

/// The place of a cluster of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Zero,
    /// At this byte of the file.
    Data(u64),
    /// From this byte of the file on, so many bytes at most.
    Packed(u64, u64),
}

fn read_table<S: Source>(source: &S, at: u64, entries: u64) -> Result<Vec<u64>> {
    let mut table = Vec::with_capacity(entries as usize);
    let mut buf = vec![0; (entries * 8).min(64 << 10) as usize];
    let mut left = entries;
    while left > 0 {
        let bytes = (left * 8).min(buf.len() as u64) as usize;
        source.read_at(at + (entries - left) * 8, &mut buf[..bytes])?;
        let (numbers, _) = buf[..bytes].as_chunks::<8>();
        table.extend(numbers.iter().map(|n| u64::from_be_bytes(*n)));
        left -= bytes as u64 / 8;
    }
    Ok(table)
}

impl<S: Source> Reader<S> {
    /// Begins to read an image. `Invalid` if it is none, or one that can't be read here, `Corrupt` if it is damaged or cut
    /// short; the text says the way out.
    pub fn open(source: S) -> Result<Self> {
        let file_bytes = source.size();
        let mut first = [0; HEADER_BYTES];
        let there = file_bytes.min(HEADER_BYTES as u64) as usize;
        source.read_at(0, &mut first[..there])?;
        let header = Header::decode(&first[..there], file_bytes)?;
        let l1 = read_table(&source, header.l1_at, header.l1_entries)?;
        Ok(Self { source, header, l1, l2: Vec::new(), l2_is: None, at: 0 })
    }

    /// The properties of the image.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The next part of the disk, behind the one before; `None` at its end. Data come in pieces of at most 2 MiB, zeroes in
    /// any length.
    pub fn next_piece(&mut self) -> Result<Option<Piece>> {
        if self.at >= self.header.size {
            return Ok(None);
        }
        let at = self.at;
        let body = match self.place(at)? {
            Place::Zero => Body::Zero(self.zeroes()? - at),
            Place::Data(place) => Body::Data(self.data(place)?),
            Place::Packed(place, bytes) => Body::Data(self.unpacked(place, bytes)?),
        };
        self.at += body.len();
        Ok(Some(Piece { at, body }))
    }

    /// The second table for a byte of the disk; false if there is none, so that all it would cover is zero.
    fn load_l2(&mut self, at: u64) -> Result<bool> {
        let index = at / self.header.l2_covers();
        let place = self.l1[index as usize] & PLACE;
        if place == 0 {
            return Ok(false);
        }
        if self.l2_is != Some(place) {
            let cluster = self.header.cluster();
            if !place.is_multiple_of(cluster) {
                return Err(damaged(format!("a second table at byte {place}, where none can be")));
            }
            if place.checked_add(cluster).is_none_or(|end| end > self.source.size()) {
                return Err(truncated());
            }
            self.l2_is = None;
            self.l2 = Vec::new();
            self.l2 = read_table(&self.source, place, cluster / 8)?;
            self.l2_is = Some(place);
        }
        Ok(true)
    }

    /// The place of the cluster that begins at a byte of the disk.
    fn place(&mut self, at: u64) -> Result<Place> {
        if !self.load_l2(at)? {
            return Ok(Place::Zero);
        }
        let Header { cluster_bits, version, .. } = self.header;
        let entry = self.l2[(at >> cluster_bits) as usize % self.l2.len()];
        if entry & COMPRESSED != 0 {
            // The number of sectors stands in the bits above the place; a larger cluster has more of them.
            let place_bits = 62 - (cluster_bits - 8);
            let place = entry & ((1 << place_bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> place_bits;
            return Ok(Place::Packed(place, (sectors + 1) * 512 - place % 512));
        }
        if entry & ZERO != 0 {
            if version < 3 {
                return Err(damaged("a cluster that is marked as zero, which version 2 has not"));
            }
            return Ok(Place::Zero);
        }
        match entry & PLACE {
            0 => Ok(Place::Zero),
            place if !place.is_multiple_of(self.header.cluster()) => {
                Err(damaged(format!("a cluster at byte {place}, where none can be")))
            }
            place => Ok(Place::Data(place)),
        }
    }

    /// The end of the zeroes that begin at the next byte, a cluster at least.
    fn zeroes(&mut self) -> Result<u64> {
        let (cluster, covers, size) = (self.header.cluster(), self.header.l2_covers(), self.header.size);
        // Both are below 2^63 and 2^40.
        let mut end = self.at + cluster;
        while end < size && self.place(end)? == Place::Zero {
            end = match self.l2_is_for(end) {
                true => end + cluster,
                false => (end / covers + 1) * covers,
            };
        }
        Ok(end.min(size))
    }

    fn l2_is_for(&self, at: u64) -> bool {
        self.l1[(at / self.header.l2_covers()) as usize] & PLACE != 0
    }

    /// The data of the cluster at `place` and of those that follow it both on the disk and in the file.
    fn data(&mut self, place: u64) -> Result<Vec<u8>> {
        let (cluster, size) = (self.header.cluster(), self.header.size);
        let until = (self.at / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(size);
        let mut bytes = cluster;
        while self.at + bytes < until && self.place(self.at + bytes)? == Place::Data(place.saturating_add(bytes)) {
            bytes += cluster;
        }
        let bytes = bytes.min(size - self.at);
        if place.checked_add(bytes).is_none_or(|end| end > self.source.size()) {
            return Err(truncated());
        }
        let mut data = vec![0; bytes as usize];
        self.source.read_at(place, &mut data)?;
        Ok(data)
    }

    fn unpacked(&mut self, place: u64, bytes: u64) -> Result<Vec<u8>> {
        // The last cluster of a file may be said to be longer than it is: sizes are in sectors.
        let there = self.source.size().checked_sub(place).filter(|n| *n > 0).ok_or_else(truncated)?;
        let mut packed = vec![0; bytes.min(there) as usize];
        self.source.read_at(place, &mut packed)?;
        let mut out = vec![0; self.header.cluster() as usize];
        unpack(self.header.compression, place, &packed, &mut out)?;
        out.truncate(out.len().min(usize::try_from(self.header.size - self.at).unwrap_or(usize::MAX)));
        Ok(out)
    }
}

impl<S: Source> Iterator for Reader<S> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_piece().transpose()
    }
}
