//! T-posteriors of trials on disk, one file each beside the journal, to the last bit: a method that is added later infers from
//! the same surrogates.

use crate::error::Result;
use crate::matrix::Matrix;
use crate::table::write_atomically;
use crate::train::TReport;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The T-posterior of a T-trial, with equally weighted draws, and what its I-trials need besides.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialPosterior {
    /// Diagnostics of each output.
    pub reports: Vec<TReport>,
    /// `eta = shift + factor M~` of each output.
    pub affine: Vec<(f64, f64)>,
    /// Coefficients and sigma_A that the data come from, of each output, where they come from the surrogate.
    pub star: Vec<(Vec<f64>, f64)>,
    /// Posterior mean of sigma_A and epistemic sd of each output.
    pub errors: Vec<(f64, f64)>,
    /// The joint draws: parameters in rows.
    pub values: Matrix,
}

/// What stands before the draws of a file.
#[derive(Serialize, Deserialize)]
struct Head {
    reports: Vec<TReport>,
    affine: Vec<(f64, f64)>,
    star: Vec<(Vec<f64>, f64)>,
    errors: Vec<(f64, f64)>,
    shape: [usize; 2],
}

/// The folder of a journal's T-posteriors.
#[derive(Clone, Debug)]
pub struct TPosteriors {
    folder: PathBuf,
}

impl TPosteriors {
    /// Those that belong to a journal.
    pub fn beside(journal: &Path) -> Self {
        Self { folder: journal.with_extension("") }
    }

    fn path(&self, t_trial: usize) -> PathBuf {
        self.folder.join(format!("{}.t-posterior", t_trial + 1))
    }

    /// Whether one is kept of this T-trial.
    pub fn has(&self, t_trial: usize) -> bool {
        self.path(t_trial).is_file()
    }

    /// The one of this T-trial; none where there is none, or no whole one.
    pub fn read(&self, t_trial: usize) -> Option<TrialPosterior> {
        let bytes = std::fs::read(self.path(t_trial)).ok()?;
        let line = bytes.iter().position(|byte| *byte == b'\n')?;
        let (head, rest) = (serde_json::from_slice::<Head>(&bytes[..line]).ok()?, &bytes[line + 1..]);
        let (numbers, []) = rest.as_chunks::<8>() else { return None };
        let [rows, cols] = head.shape;
        let whole = rows.checked_mul(cols).is_some_and(|n| n == numbers.len());
        whole.then(|| TrialPosterior {
            reports: head.reports,
            affine: head.affine,
            star: head.star,
            errors: head.errors,
            values: Matrix::from_rows(rows, cols, numbers.iter().map(|n| f64::from_le_bytes(*n)).collect()),
        })
    }

    /// Keeps one: a line of JSON, then the draws as little-endian doubles, row after row.
    ///
    /// # Errors
    /// What the system says.
    pub fn keep(&self, t_trial: usize, posterior: TrialPosterior) -> Result<()> {
        let TrialPosterior { reports, affine, star, errors, values } = posterior;
        let head = Head { reports, affine, star, errors, shape: [values.rows(), values.cols()] };
        let mut bytes = serde_json::to_vec(&head).expect("these types have string keys");
        bytes.push(b'\n');
        bytes.extend(values.data().iter().flat_map(|value| value.to_le_bytes()));
        // Where the folder cannot be made the file cannot be written, and that says why.
        let _ = std::fs::create_dir_all(&self.folder);
        write_atomically(&self.path(t_trial), &bytes)
    }

    /// Removes all of them: they go with the trials of their journal.
    pub fn remove(&self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_comes_back_to_the_last_bit_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("twostep-t-posteriors-{}", std::process::id()));
        let kept = TPosteriors::beside(&folder.join("journal.jsonl"));
        let posterior = TrialPosterior {
            reports: Vec::new(),
            affine: vec![(0.1 + 0.2, 1.0 / 3.0)],
            star: vec![(vec![f64::MIN_POSITIVE], 1e300)],
            errors: vec![(0.7, -0.0)],
            values: Matrix::from_rows(1, 3, vec![0.1 + 0.2, f64::NAN, -0.0]),
        };
        assert!(!kept.has(4) && kept.read(4).is_none());
        kept.keep(4, posterior.clone()).unwrap();
        let found = kept.read(4).unwrap();
        let bits = |m: &Matrix| m.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found.values), bits(&posterior.values));
        assert_eq!((found.affine, found.star), (posterior.affine, posterior.star));
        let path = kept.path(4);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(kept.has(4) && kept.read(4).is_none());
        kept.remove();
        assert!(!kept.has(4));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
