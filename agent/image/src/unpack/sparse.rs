//! Files with holes as GNU tar writes them with PAX records (its forms 0.0, 0.1 and 1.0): where their bytes belong.
//!
//! 0.0 and 0.1 have the map in the records, 1.0 has it before the bytes of the file. Called for each record and then for
//! the file; everything read here is checked against the sizes before a byte is written. The older form, with an entry
//! type of its own, is the tar crate's.

use std::io::Read;

use crate::decode::as_u64;

const BLOCK_BYTES: usize = 512;

/// Bytes that follow each other, and where they begin in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// What the records of one entry say.
#[derive(Debug, Default)]
pub(super) struct Records {
    seen: bool,
    major: Option<u64>,
    size: Option<u64>,
    name: Option<Vec<u8>>,
    numbers: Vec<u64>,
}

/// A file with holes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sparse {
    /// Where the entry's own name is another.
    pub(super) name: Option<Vec<u8>>,
    /// With the holes.
    pub(super) size: u64,
    /// `None`: before the bytes.
    pieces: Option<Vec<Piece>>,
}

/// Whether a record of this key may come more than once: form 0.0 has one for each piece.
pub(super) fn may_repeat(key: &[u8]) -> bool {
    key == b"GNU.sparse.offset" || key == b"GNU.sparse.numbytes"
}

impl Records {
    /// Takes one record. Those of others are ignored.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let Some(key) = key.strip_prefix(b"GNU.sparse.") else { return Ok(()) };
        self.seen = true;
        match key {
            b"major" => self.major = Some(number(value)?),
            b"size" | b"realsize" => self.size = Some(number(value)?),
            b"name" => self.name = Some(value.to_vec()),
            b"offset" | b"numbytes" => {
                let expected = (key == b"numbytes") == (self.numbers.len() % 2 == 1);
                if !expected {
                    return Err("its pieces are not pairs of offset and length".to_owned());
                }
                self.numbers.push(number(value)?);
            }
            b"map" => {
                let parts = value.split(|byte| *byte == b',').filter(|part| !part.is_empty());
                self.numbers = parts.map(number).collect::<Result<_, _>>()?;
            }
            // The minor version and the number of pieces say nothing that is not known otherwise.
            _ => {}
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Option<Sparse>, String> {
        if !self.seen {
            return Ok(None);
        }
        let size = self.size.ok_or("its size with holes is missing")?;
        let pieces = match self.major {
            Some(1) => None,
            None | Some(0) => Some(pairs(&self.numbers)?),
            Some(other) => return Err(format!("sparse files of form {other} are unknown")),
        };
        Ok(Some(Sparse { name: self.name, size, pieces }))
    }
}

impl Sparse {
    /// The pieces of the file whose entry has `bytes` bytes in all, and nothing left of them to read but the pieces.
    /// `map_bytes_max` bounds what is read of a map.
    pub(super) fn pieces(
        &mut self,
        from: &mut impl Read,
        bytes: u64,
        map_bytes_max: u64,
    ) -> Result<Vec<Piece>, String> {
        let (pieces, map_bytes) = match self.pieces.take() {
            Some(pieces) => (pieces, 0),
            None => read_map(from, map_bytes_max)?,
        };
        let mut end = 0_u64;
        let mut sum = 0_u64;
        for piece in &pieces {
            let next = piece.offset.checked_add(piece.length).filter(|next| *next <= self.size);
            if piece.offset < end || next.is_none() {
                return Err("its pieces overlap, or end behind the file's end".to_owned());
            }
            end = next.unwrap_or(end);
            sum = sum.saturating_add(piece.length);
        }
        if bytes.checked_sub(map_bytes) != Some(sum) {
            return Err(format!(
                "its pieces have {sum} bytes and a map of {map_bytes}, the entry has {bytes}"
            ));
        }
        Ok(pieces)
    }
}

fn number(text: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'));
    let parsed = text.and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| "a number of its map of holes cannot be read".to_owned())
}

fn pairs(numbers: &[u64]) -> Result<Vec<Piece>, String> {
    if !numbers.len().is_multiple_of(2) {
        return Err("its pieces are not pairs of offset and length".to_owned());
    }
    Ok(numbers.chunks_exact(2).map(|pair| Piece { offset: pair[0], length: pair[1] }).collect())
}

/// Form 1.0: lines with the number of pieces and each one's offset and length, filled up to whole blocks.
fn read_map(from: &mut impl Read, bytes_max: u64) -> Result<(Vec<Piece>, u64), String> {
    let (mut numbers, mut line, mut read) = (Vec::new(), Vec::new(), 0_u64);
    let mut wanted = None;
    loop {
        read += as_u64(BLOCK_BYTES);
        if read > bytes_max {
            return Err(format!("its map of holes has more than {bytes_max} bytes"));
        }
        let mut block = [0; BLOCK_BYTES];
        from.read_exact(&mut block).map_err(|error| format!("its map of holes: {error}"))?;
        for byte in block {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let found = number(&line)?;
            line.clear();
            match wanted {
                None => wanted = Some(found.saturating_mul(2)),
                Some(_) => numbers.push(found),
            }
            if wanted.is_some_and(|wanted| as_u64(numbers.len()) >= wanted) {
                return Ok((pairs(&numbers)?, read));
            }
        }
    }
}
