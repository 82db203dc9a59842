//! Random ids, from the operating system. The core never draws; it is handed these.

use fleet_core::id::{FeedId, IdError, ImportId, JobId, ReservationId, SeriesId};

/// Letters of ids: no vowels (no words), nothing that looks like something else.
const ALPHABET: &[u8; 28] = b"0123456789bcdfghjkmnpqrstvwx";
/// Letters after the prefix of a job's or a reservation's id: 28^6 is 482 million.
const ID_LETTERS: usize = 6;

/// The operating system gave no randomness, or the id made from it was not legal.
#[derive(Debug, thiserror::Error)]
pub enum RandomError {
    #[error("draw random bytes: {0}")]
    Draw(getrandom::Error),
    #[error(transparent)]
    Id(#[from] IdError),
}

/// `N` random bytes as hexadecimal text.
pub fn hex<const N: usize>() -> Result<String, RandomError> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).map_err(RandomError::Draw)?;
    Ok(::hex::encode(bytes))
}

fn letters() -> Result<String, RandomError> {
    let mut text = String::with_capacity(ID_LETTERS);
    while text.len() < ID_LETTERS {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).map_err(RandomError::Draw)?;
        // Bytes past the last whole multiple of the alphabet would favour its first letters.
        let fair =
            bytes.iter().filter(|b| usize::from(**b) < 256 / ALPHABET.len() * ALPHABET.len());
        let left = ID_LETTERS - text.len();
        text.extend(
            fair.take(left).map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()])),
        );
    }
    Ok(text)
}

pub fn job_id() -> Result<JobId, RandomError> {
    Ok(JobId::parse(&format!("{}{}", JobId::PREFIX, letters()?))?)
}

pub fn reservation_id() -> Result<ReservationId, RandomError> {
    Ok(ReservationId::parse(&format!("{}{}", ReservationId::PREFIX, letters()?))?)
}

pub fn import_id() -> Result<ImportId, RandomError> {
    Ok(ImportId::parse(&format!("{}{}", ImportId::PREFIX, letters()?))?)
}

pub fn series_id() -> Result<SeriesId, RandomError> {
    Ok(SeriesId::parse(&format!("{}{}", SeriesId::PREFIX, letters()?))?)
}

pub fn feed_id() -> Result<FeedId, RandomError> {
    Ok(FeedId::parse(&format!("{}{}", FeedId::PREFIX, letters()?))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn ids_are_legal_and_differ() {
        let ids: std::collections::BTreeSet<_> = (0..100).map(|_| job_id().unwrap()).collect();
        assert_eq!(ids.len(), 100);
        assert_eq!(hex::<16>().unwrap().len(), 32);
    }
}
