"""Infer the inputs of an expensive simulator through a surrogate, without pretending that the surrogate is exact."""

from ._compare import Comparison, compare
from ._draws import Draws
from ._errors import (
    Error,
    FailedError,
    FileError,
    InternalError,
    InvalidError,
    Problem,
    PropagationError,
    SimulatorError,
    StudyError,
    StudyWarning,
    SurrogateError,
)
from ._progress import show_progress
from ._propagation import Propagation
from ._results import Calibration, Enough, Fit, Inference, Verification
from ._specs import (
    GP,
    PCE,
    Auto,
    Beta,
    Binomial,
    Builtin,
    Calibrate,
    Command,
    Condition,
    Design,
    Distribution,
    Exponential,
    Formula,
    Function,
    Gamma,
    Grid,
    GridEngine,
    HalfNormal,
    Halton,
    HaltonEnds,
    Infer,
    LatinHypercube,
    LogNormal,
    LogUniform,
    Measurements,
    NegativeBinomial,
    NoNoise,
    Normal,
    Nuts,
    Output,
    Poisson,
    Python,
    Random,
    Series,
    Simulator,
    Smc,
    Sobol,
    SobolScrambled,
    StudentT,
    Surrogate,
    Synthetic,
    Table,
    Train,
    UMBridge,
    Uniform,
    Unknown,
)
from ._stages import Report, Server
from ._study import Study
from ._surrogate import PythonSurrogate
from ._twostep import __version__, set_threads
