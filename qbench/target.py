"""What qbench knows about a chip: the record that `qbench.targets` loads from TOML.

Numbers carry their unit in the name and their source in the file. A field that no public source gives is None; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qbench.affine import Scheme
from qbench.errors import PrecisionUnavailable, TargetError
from qbench.network import Precision


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One DVFS point. `volts` is None where no public table gives it."""

    name: str                      # "1000MHz"
    clock_hz: float
    volts: float | None


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """How a target stores the tensors of one integer precision.

    bias_bits      of the accumulator's steps that a bias may have; 8: it is stored like a weight, with one scale of its own
    weight_block   input channels that share a scale under per-group granularity; 0: the target has no such weights
    weight_axis    (ONNX operator, "tensor" or "input") for those whose weights the target takes otherwise than with one scale per
                   output channel: one for the whole tensor, or one per input channel (BUG case B09)
    """

    activation: Scheme
    weight: Scheme
    weight_per_channel: bool       # False: the target takes per-tensor weights only
    bias_bits: int = 32
    weight_block: int = 0
    weight_axis: tuple[tuple[str, str], ...] = ()

    def axis_of(self, op: str) -> str:
        """"output", "input" or "tensor": what has a scale of its own in a weight of ONNX operator `op`."""
        return dict(self.weight_axis).get(op, "output") if self.weight_per_channel else "tensor"


@dataclass(frozen=True, slots=True)
class PrecisionSupport:
    """A precision on a target and the toolkit versions that offer it.

    macs_per_cycle   per core
    scheme           None for float
    toolkits         version names from the target's list that accept it; empty means all
    refused          reason to print when the version in use does not offer it
    note             caveat to print when it does ("built and simulated; not verified on silicon")
    source           where this is written
    """

    precision: Precision
    macs_per_cycle: float
    scheme: QuantScheme | None
    toolkits: tuple[str, ...] = ()
    refused: str = ""
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a fitted number rests on, in the words the user sees."""

    fitted_on: str
    validated_on: str              # "unvalidated" where nothing was held out
    interval: str                  # e.g. "80 % conformal, leave-one-model-out"


@dataclass(frozen=True, slots=True)
class PowerBasis:
    """What watts and joules rest on.

    what          whose watts they are: "board power, idle included"
    factor_low, factor_high   80 % interval of power as factors on the prediction, its latency being right; None: nothing was held out
    """

    what: str
    fitted_on: str
    validated_on: str
    interval: str
    factor_low: float | None = None
    factor_high: float | None = None


@dataclass(frozen=True, slots=True)
class ThermalRule:
    """When the chip's driver slows it down, or holds its voltage up.

    throttle_above_c, release_below_c   between the two, the state before stays
    throttled_clock_hz                  fastest clock while throttled
    cold_below_c, cold_min_volts        below this temperature the supply does not go under these volts
    """

    throttle_above_c: float
    release_below_c: float
    throttled_clock_hz: float
    cold_below_c: float
    cold_min_volts: float
    source: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A published figure that no model reads. value   in the unit that its key ends with, or a text"""

    value: float | str
    source: str


@dataclass(frozen=True, slots=True)
class Layout:
    """How the chip wants tensors laid out. None: no public source says.

    native                  e.g. "NC1HWC2, C2 = 16 int8 / 8 float16"
    channel_align_bytes     channels are padded to this many bytes in the native layout
    base_align_bytes        start of a buffer that the chip reads itself
    width_align_elements    row stride of an input
    sources                 key -> where it is written
    """

    native: str | None = None
    channel_align_bytes: int | None = None
    base_align_bytes: int | None = None
    width_align_elements: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """How the toolchain lays out memory, and how much the device has. None or "": no public source says.

    allocator           "rknn-toolkit2": its own placement is repeated; "": the smallest that is found here
    shares              what shares bytes, out of `qbench.cost.sharing.WAYS`; None: views, in-place maps, parts of Concat and Split
    runtime_ram_bytes   RAM that the runtime takes beside the tensors
    ram_bytes, flash_bytes   of a microcontroller
    sources             key -> where it is written
    """

    allocator: str = ""
    shares: tuple[str, ...] | None = None
    runtime_ram_bytes: int = 0
    ram_bytes: int | None = None
    flash_bytes: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorSupport:
    """What the toolchain does with ONNX operators; one in none of the lists is unknown."""

    accelerated: tuple[str, ...]
    refused: tuple[str, ...]
    fallback: str                  # what happens to the rest, in a sentence; "" unknown
    source: str


@dataclass(frozen=True)
class Target:
    """One chip.

    memory, compute and overhead parameters live in `cost`, a mapping of names that the latency model of this target's
    kind defines; `qbench.cost` reads them once into its own frozen record, so that a missing one is an error at load.
    """

    name: str
    title: str
    toolkits: tuple[str, ...]                     # known toolkit versions, oldest first; the last is the default
    precisions: tuple[PrecisionSupport, ...]
    operating_points: tuple[OperatingPoint, ...]  # ascending clock; the last is the default
    cost_model: str                               # name of the latency model: "npu" or "host"
    cost: Mapping[str, float]
    latency_factor_low: float                     # 80 % interval of latency as factors on the prediction
    latency_factor_high: float
    power_is_relative: bool                       # True: watts are unvalidated, compare only
    provenance: Provenance
    sources: Mapping[str, str] = field(default_factory=dict)   # key of the target file -> where its number is written
    cpu_ops: tuple[str, ...] = ()                 # ONNX operators that the toolkit places on the CPU
    layout: Layout = Layout()
    operators: OperatorSupport | None = None      # None: no public table
    facts: Mapping[str, Fact] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)   # precision that the chip lacks -> why, with its source
    fixed_outputs: str = ""                       # how Softmax and Sigmoid outputs are stored: see `qbench.fixed`; "" as calibrated
    power: PowerBasis | None = None               # None: relative
    voltage_bins: Mapping[str, tuple[float, ...]] = field(default_factory=dict)   # silicon bin -> volts of each operating point
    thermal: ThermalRule | None = None            # None: no public rule
    memory: MemoryRules = MemoryRules()
    rules: str = ""                               # rule set about operators in `qbench.targets.rules`; "" none: the lists above say all
    on_cpu: Mapping[Precision, Mapping[str, float]] | None = None   # of one network: kernel off the NPU -> its share of a hand-over; None: by `cpu_ops`

    def toolkit(self, version: str | None) -> str:
        """The version to use. Raises TargetError for one that is not listed."""
        if version is None:
            return self.toolkits[-1]
        if version not in self.toolkits:
            raise TargetError(f"target {self.name}: no toolkit {version!r}; known: {', '.join(self.toolkits)}")
        return version

    def support(self, precision: Precision, toolkit: str | None = None) -> PrecisionSupport:
        """Raises PrecisionUnavailable, with the reason, when this chip or this toolkit version lacks it."""
        version = self.toolkit(toolkit)
        for p in self.precisions:
            if p.precision is precision:
                if p.toolkits and version not in p.toolkits:
                    raise PrecisionUnavailable(
                        f"target {self.name} does not offer {precision} with toolkit {version}: {p.refused or 'not listed'}"
                        f" (offered by {', '.join(p.toolkits)}; source: {p.source})")
                return p
        have = ", ".join(p.precision for p in self.precisions)
        why = f" ({self.refused[precision]})" if precision in self.refused else ""
        raise PrecisionUnavailable(f"target {self.name} has no {precision}; it offers {have}{why}")

    def placement(self, op: str) -> str:
        """"NPU", "CPU", "refused" or "unknown": where the toolchain runs an ONNX operator, as far as a public table says."""
        if op in self.cpu_ops:
            return "CPU"
        if self.operators is None:
            return "unknown"
        return "NPU" if op in self.operators.accelerated else "refused" if op in self.operators.refused else "unknown"

    def available(self, toolkit: str | None = None) -> tuple[Precision, ...]:
        """Precisions that the toolkit version offers, in file order."""
        version = self.toolkit(toolkit)
        return tuple(p.precision for p in self.precisions if not p.toolkits or version in p.toolkits)

    def operating_point(self, name: str | None) -> OperatingPoint:
        """Raises TargetError for a point that the chip's table does not hold."""
        if name is None:
            return self.operating_points[-1]
        for p in self.operating_points:
            if p.name == name:
                return p
        raise TargetError(f"target {self.name}: no operating point {name!r}; its table has "
                          f"{', '.join(p.name for p in self.operating_points)}")

    @property
    def energy_factors(self) -> tuple[float, float] | None:
        """80 % interval of the energy of an inference as factors: that of its latency times that of its power, so rather too wide.

        None where watts are relative, or nothing was held out.
        """
        if self.power is None or self.power.factor_low is None or self.power.factor_high is None:
            return None
        return self.latency_factor_low * self.power.factor_low, self.latency_factor_high * self.power.factor_high
