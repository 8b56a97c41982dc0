"""The compiled loop of `energy`. Importing this module imports numba: only `energy` does, at its first value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uintp


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def add_sums(reference: Any, output: Any, sums: Any) -> None:
    """Add the sums of float32 [samples, channels, values] to `sums`, float64 [channels, 8]: see `energy.Sums`.

    Each pair of values is read once. Where NaN or infinity takes part, the sums of that channel come out wrong: the caller looks.
    """
    for i in range(uintp(reference.shape[0])):
        for c in range(uintp(reference.shape[1])):
            before, after = reference[i, c], output[i, c]
            signal = made = both = noise = 0.0
            alive = lost = np.int32(0)
            most = top = np.float32(0.0)
            for k in range(uintp(before.size)):
                a, b = before[k], after[k]
                x, y = np.float64(a), np.float64(b)
                signal += x * x
                made += y * y
                both += x * y
                noise += (y - x) * (y - x)
                alive += np.int32(a != 0.0)
                lost += np.int32((a != 0.0) & (b == 0.0))
                most = max(most, abs(a))
                top = max(top, abs(b))
            sums[c, 0] += signal
            sums[c, 1] += made
            sums[c, 2] += both
            sums[c, 3] += noise
            sums[c, 4] += alive
            sums[c, 5] += lost
            sums[c, 6] = max(sums[c, 6], np.float64(most))
            sums[c, 7] = max(sums[c, 7], np.float64(top))
