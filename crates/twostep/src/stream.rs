//! Random streams named by a path from the study's seed, so that results do not depend on threads or order.

use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// A place in the tree of random streams: `Stream::root(seed).named("infer").at(chain)`.
///
/// A child's key is the first 32 bytes of its parent's ChaCha8 key stream number `index + 1`;
/// stream 0 of a key is what [`Stream::rng`] draws from. Two different paths therefore never share numbers,
/// and any place can be recomputed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u8; 32],
}

impl Stream {
    /// The root of a study's streams.
    pub fn root(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self { key }
    }

    /// The child with this number.
    pub fn at(self, index: u64) -> Self {
        let mut rng = ChaCha8Rng::from_seed(self.key);
        rng.set_stream(index.wrapping_add(1));
        let mut key = [0; 32];
        rng.fill_bytes(&mut key);
        Self { key }
    }

    /// The child with this name: its number is the name's FNV-1a hash.
    pub fn named(self, name: &str) -> Self {
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        self.at(hash)
    }

    /// The generator of this place.
    pub fn rng(self) -> ChaCha8Rng {
        ChaCha8Rng::from_seed(self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_different_streams() {
        let root = Stream::root(1);
        let mut first = [root, root.at(0), root.at(1), root.at(0).at(0), root.named("train"), Stream::root(2)]
            .map(|s| s.rng().next_u64());
        first.sort_unstable();
        assert!(first.windows(2).all(|w| w[0] != w[1]));
    }

    /// Changing these values changes every result for a given seed: a "Numbers changed" entry in CHANGELOG.md.
    #[test]
    fn streams_are_stable() {
        let stream = Stream::root(20250101);
        assert_eq!(stream.rng().next_u64(), stream.rng().next_u64());
        assert_eq!(
            [stream.rng().next_u64(), stream.at(3).rng().next_u64(), stream.named("infer").rng().next_u64()],
            [13786803574241772467, 9075088407504853436, 7723255254142363371]
        );
    }
}
