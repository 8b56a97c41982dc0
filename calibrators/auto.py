"""The best of several calibrators, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qbench import calibrators
from qbench.affine import Range
from qbench.calibrators import Specs
from qbench.calibrators.hull import hull
from qbench.calibrators.noise import Noise
from qbench.errors import InputError
from qbench.protocols import Seen

USUAL = Specs("minmax/percentile:p=99.999/percentile/percentile:sided=magnitude/percentile:p=99.9/mse/sqnr:clip=3.0/kl/mae")
"""From no clipping to strong clipping, the methods of onnxruntime and AIMET among them."""


@dataclass(frozen=True, slots=True)
class Auto:
    """Range of the candidate that does least harm to this tensor.

    Asked with a network at hand, the workbench judges each candidate by the error at the output of the layers that read
    the tensor. Asked with statistics alone, as here, the squared quantization error of the tensor itself decides, the
    first of equals.

    among  calibrators to choose from, joined by "/", e.g. auto:among=minmax/percentile:p=99.9,sided=one/mse
    Source: own; the error at a layer's output as criterion is that of Nagel et al. 2020 (arXiv 2004.10568), section 3.
    """

    among: Specs = USUAL

    def __post_init__(self) -> None:
        made = [calibrators.make(part) for part in self.among.split("/")]
        if any(isinstance(m, Auto) for m in made):
            raise InputError("auto: among names auto itself; name the calibrators that it shall choose from")
        canonical = [calibrators.spec(m) for m in made]
        if twice := [c for i, c in enumerate(canonical) if c in canonical[:i]]:
            raise InputError(f"auto: among names {twice[0]!r} twice")
        object.__setattr__(self, "among", Specs("/".join(canonical)))

    def candidates(self) -> tuple[str, ...]:
        """Specs of the calibrators to choose from."""
        return tuple(self.among.split("/"))

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        """Range in real units. Raises NotObserved if the tensor never occurred."""
        whole = hull(seen)
        if whole.magnitude == 0.0 or levels < 2:
            return whole
        found = [r for c in self.candidates() if (r := calibrators.make(c).range(seen, levels, symmetric)).magnitude > 0.0]
        if not found:
            return whole
        low, high = np.array([r.low for r in found]), np.array([r.high for r in found])
        order = np.argsort(high - low, kind="stable")
        error = Noise(seen, levels, symmetric)(low[order], high[order])
        return found[int(order[np.lexsort((order, error))[0]])]
