"""Every error that qbench raises on purpose, as one tree.

    QbenchError                      exit code 2 unless said otherwise
      InputError                     the user's model, data or option is wrong: says what, where and how to mend
        UnknownName                  a calibrator, target, sample, preset ... that does not exist
        ModelError                   the network cannot be read or used
        DataError                    the data set does not fit the network
          NonFinite                  NaN or infinity where the policy is to stop
        PlanError                    a plan does not fit its model or its target
        TargetError                  a target file or an operating point is wrong
        PrecisionUnavailable         the chip, or the toolkit version in use, lacks a precision
        BudgetError                  a budget text cannot be read
        PresetError                  a preset file is wrong, or its product cannot be built
      NotObserved                    a tensor never occurred in the calibration data
      ToolError                      exit code 3: an external tool or board failed
        ToolchainMissing             a vendor's toolchain is not installed here
        ExportMismatch               an artefact does not hold the plan
"""


class QbenchError(Exception):
    """Base of all: anything qbench refuses with a reason."""

    exit_code = 2


class InputError(QbenchError):
    """What the user gave is wrong; the message says what, where and how to mend it."""


class UnknownName(InputError):
    """A name that is not registered; the message lists those that are."""


class ModelError(InputError):
    """The network cannot be read or used."""


class DataError(InputError):
    """The data set does not fit the network."""


class NonFinite(DataError):
    """NaN or infinity in an activation, where the policy is to stop."""


class PlanError(InputError):
    """A plan does not fit its model or its target."""


class TargetError(InputError):
    """A target file or an operating point is wrong."""


class PrecisionUnavailable(InputError):
    """The chip, or the toolkit version in use, lacks the precision."""


class BudgetError(InputError):
    """A budget text cannot be read."""


class PresetError(InputError):
    """A preset file is wrong, or what it asks for contradicts itself."""


class NotObserved(QbenchError):
    """A tensor never occurred in the calibration data."""


class ToolError(QbenchError):
    """An external tool or a board failed."""

    exit_code = 3


class ToolchainMissing(ToolError):
    """A vendor's toolchain is not installed here; the message says how to get it."""


class ExportMismatch(ToolError):
    """An artefact does not hold the plan, or its simulator disagrees; the message lists plan -> actual."""
