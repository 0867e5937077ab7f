//! The posterior of one T-draw by NUTS, as it is kept: so that fits of E-Post can be made anywhere and brought together.

use crate::error::Result;
use crate::mcmc::diagnostics;
use crate::mcmc::nuts::Chain;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The chains of the posterior of one T-draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The T-draw, from zero.
    pub t_draw: usize,
    /// Draws of each chain, on the real line.
    #[serde(serialize_with = "as_bytes", deserialize_with = "from_bytes")]
    pub(super) chains: Vec<Vec<Vec<f64>>>,
    /// Density evaluations, warm-up included.
    pub(super) gradients: u64,
    /// Divergent draws.
    pub(super) divergences: usize,
    /// Smallest energy Bayesian fraction of missing information of a chain, where it is known.
    pub(super) e_bfmi: Option<f64>,
}

/// What keeps fits while they are made.
pub trait FitSink: Sync {
    /// Keeps a fit before this returns.
    ///
    /// # Errors
    /// What keeps it from being written.
    fn keep(&self, fit: &Fit) -> Result<()>;
}

impl Fit {
    pub(super) fn new(t_draw: usize, chains: Vec<Chain>) -> Self {
        let e_bfmi = |chain: &Chain| diagnostics::e_bfmi(&chain.energy());
        Self {
            t_draw,
            gradients: chains.iter().map(|chain| chain.gradients).sum(),
            divergences: chains.iter().map(Chain::divergences).sum(),
            e_bfmi: chains.iter().map(e_bfmi).filter(|e| e.is_finite()).reduce(f64::min),
            chains: chains.into_iter().map(|chain| chain.draws).collect(),
        }
    }

    /// Draws of each chain.
    pub(super) fn draws(&self) -> Vec<&[Vec<f64>]> {
        self.chains.iter().map(Vec::as_slice).collect()
    }
}

/// Dimension, and the doubles of each chain: half as long as their digits, and the same to the last bit.
#[derive(Serialize, Deserialize)]
struct Packed {
    dim: usize,
    chains: Vec<String>,
}

fn as_bytes<S: Serializer>(chains: &[Vec<Vec<f64>>], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let packed = |chain: &Vec<Vec<f64>>| {
        let bytes: Vec<u8> = chain.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        STANDARD.encode(bytes)
    };
    let dim = chains.iter().flatten().next().map_or(0, Vec::len);
    Packed { dim, chains: chains.iter().map(packed).collect() }.serialize(serializer)
}

fn from_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<Vec<Vec<f64>>>, D::Error> {
    let Packed { dim, chains } = Packed::deserialize(deserializer)?;
    let unpacked = |text: String| {
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        if dim == 0 || bytes.len() % (8 * dim) != 0 {
            return Err(D::Error::custom("draws of a chain are not whole"));
        }
        let of_bytes = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
        let point = |bytes: &[u8]| bytes.chunks_exact(8).map(of_bytes).collect();
        Ok(bytes.chunks_exact(8 * dim).map(point).collect())
    };
    chains.into_iter().map(unpacked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_is_read_back_to_the_last_bit_or_refused() {
        let chains = vec![vec![vec![0.1, -1e-300], vec![f64::MIN_POSITIVE / 8.0, 2.0 / 3.0]], vec![vec![-0.0, 1e308]]];
        let fit = Fit { t_draw: 7, chains, gradients: 9, divergences: 1, e_bfmi: Some(1.0 / 3.0) };
        let text = serde_json::to_string(&fit).unwrap();
        let back: Fit = serde_json::from_str(&text).unwrap();
        assert_eq!(back, fit);
        assert!(back.chains[1][0][0].is_sign_negative());
        let cut = text.replace("\"dim\":2", "\"dim\":3");
        assert!(serde_json::from_str::<Fit>(&cut).unwrap_err().to_string().contains("not whole"));
    }
}
