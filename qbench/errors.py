"""Every error that qbench raises on purpose, as one tree, each kind with the code of its section in docs/troubleshooting.md.

    QbenchError                QB100 exit code 2 unless said otherwise
      InputError               QB101 the user's model, data or option is wrong: says what, where and how to mend
        UnknownName            QB102 a calibrator, target, sample, preset ... that does not exist
        ModelError             QB103 the network cannot be read or used
        DataError              QB104 the data set does not fit the network
          NonFinite            QB105 NaN or infinity where the policy is to stop
        PlanError              QB106 a plan does not fit its model or its target
        TargetError            QB107 a target file or an operating point is wrong
        PrecisionUnavailable   QB108 the chip, or the toolkit version in use, lacks a precision
        BudgetError            QB109 a budget text cannot be read
        PresetError            QB110 a preset file is wrong, or its product cannot be built
        ConfigError            QB111 qbench.toml, or a QBENCH_ variable, is wrong
      NotObserved              QB112 a tensor never occurred in the calibration data
      ToolError                QB113 exit code 3: an external tool or board failed
        ToolchainMissing       QB114 a vendor's toolchain is not installed here
        ExportMismatch         QB115 an artefact does not hold the plan
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class QbenchError(Exception):
    """Base of all: anything qbench refuses with a reason."""

    code = "QB100"
    exit_code = 2


class InputError(QbenchError):
    """What the user gave is wrong; the message says what, where and how to mend it."""

    code = "QB101"


class UnknownName(InputError):
    """A name that is not registered; the message lists those that are."""

    code = "QB102"


class ModelError(InputError):
    """The network cannot be read or used."""

    code = "QB103"


class DataError(InputError):
    """The data set does not fit the network."""

    code = "QB104"


class NonFinite(DataError):
    """NaN or infinity in an activation, where the policy is to stop."""

    code = "QB105"


class PlanError(InputError):
    """A plan does not fit its model or its target."""

    code = "QB106"


class TargetError(InputError):
    """A target file or an operating point is wrong."""

    code = "QB107"


class PrecisionUnavailable(InputError):
    """The chip, or the toolkit version in use, lacks the precision."""

    code = "QB108"


class BudgetError(InputError):
    """A budget text cannot be read."""

    code = "QB109"


class PresetError(InputError):
    """A preset file is wrong, or what it asks for contradicts itself."""

    code = "QB110"


class ConfigError(InputError):
    """qbench.toml, or an environment variable that stands for one of its keys, is wrong."""

    code = "QB111"


class NotObserved(QbenchError):
    """A tensor never occurred in the calibration data."""

    code = "QB112"


class ToolError(QbenchError):
    """An external tool or a board failed."""

    code = "QB113"
    exit_code = 3


class ToolchainMissing(ToolError):
    """A vendor's toolchain is not installed here; the message says how to get it."""

    code = "QB114"


class ExportMismatch(ToolError):
    """An artefact does not hold the plan, or its simulator disagrees; the message lists plan -> actual."""

    code = "QB115"


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of `known` that `name` was probably meant to be, or ""."""
    by_lower = {k.lower(): k for k in known}
    return next((by_lower[k] for k in get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)), "")


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> UnknownName:
    """The error for a `name` that is none of `known`: all of them, then `more`, and last the one that was probably meant.

    kind   what is named, e.g. "target"
    """
    listed = tuple(known)
    meant = nearest(name, listed)
    return UnknownName(f"no {kind} {name!r}; known: {', '.join(listed)}{more}{f'; did you mean {meant!r}?' if meant else ''}")
