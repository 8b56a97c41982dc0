"""The range with the best ratio of signal to quantization noise at a given bit width."""

from __future__ import annotations

from dataclasses import dataclass

from qbench.affine import Range
from qbench.calibrators.hull import hull
from qbench.calibrators.noise import Noise
from qbench.calibrators.thresholds import least_error
from qbench.errors import InputError
from qbench.protocols import Seen

BITS = range(2, 17)


@dataclass(frozen=True, slots=True)
class Sqnr:
    """Range with the highest signal-to-quantization-noise ratio, noise = rounding + `clip` * clipping, both squared.

    The signal does not depend on the range, so the noise is minimised, as mse does: with the defaults the answer is that of
    mse. With clip=3 it is the criterion of AIMET's enhanced scheme ("tf_enhanced"), searched more finely than there.

    bits  optimise for codes of so many bits, 2 to 16, whatever the codes in use: a range for 4 bits may serve 8 bits too,
          finer and clipped alike; 0 takes the codes in use
    clip  weight of the squared errors of clipped values against those of rounded ones, above 0
    Source: AIMET, TfEnhancedEncodingAnalyzer (github.com/quic/aimet), quantization and saturation cost; Nagel et al. 2021
            (arXiv 2106.08295), section 3.1.
    """

    bits: int = 0
    clip: float = 1.0

    def __post_init__(self) -> None:
        if self.bits and self.bits not in BITS:
            raise InputError(f"sqnr: bits is {self.bits}; expected {BITS[0]} to {BITS[-1]}, or 0 for the width in use")
        if not 0.0 < self.clip < float("inf"):
            raise InputError(f"sqnr: clip is {self.clip}; expected a weight above 0, e.g. sqnr:clip=3")

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        codes = 1 << self.bits if self.bits else levels
        if whole.magnitude == 0.0 or codes < 2:
            return whole
        return least_error(Noise(seen, codes, symmetric, clip=self.clip), whole, symmetric)
