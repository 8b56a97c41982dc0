"""AMD XDNA: the Q/DQ model in the convention that AMD's compiler takes. That comes with the Ryzen AI installer: nothing is compiled here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from qbench import qdq
from qbench.errors import InputError, PlanError, ToolError
from qbench.export import QDQ, Contents, Job, Produced, read_qdq, simulated
from qbench.export.comparing import reference_outputs
from qbench.network import Precision
from qbench.protocols import Progress
from qbench.targets.exporters.ascend_model import layers
from qbench.targets.exporters.xdna_conventions import KNOWN, Convention, convention_of, is_power_of_two
from qbench.targets.exporters.xdna_model import NARROW_BIAS, adapted, wide_biases

HANDED = "model.xdna.onnx"
OPTIONS: Mapping[str, tuple[str, ...]] = {"convention": tuple(KNOWN), "scales": ("power-of-two",), "bias": ("int8", "int32")}
LEAST_SQNR_DB = 10.0
OPSET = 17
BIASES = ("biases are rounded to 8 bits, as XINT8 of AMD Quark does, and this plan was evaluated with int32 (it was made without the target's own scheme): "
          "the figure above is what that costs; --option bias=int32 keeps them (Quark's Int32Bias)")
WHY_NOT = ("the VitisAI provider that compiles for the NPU comes with AMD's Ryzen AI installer, not from a registry: run run.py there, "
           "it compiles at its first start")
MEANT = {"XINT8": "int8 with zero point 0 everywhere, every scale a power of two, biases in int8 with a scale of their own",
         "A8W8": "int8 with zero point 0, scales as calibrated, biases int32",
         "A16W8": "int16 activations and int8 weights, zero point 0, pairs of com.microsoft, biases int32"}

BOARD_CODE = '''
def infer(folder, feeds):
    """Outputs in order, in float. onnxruntime with the VitisAI provider; no fallback to the CPU."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = ort.InferenceSession(str(folder / "model.xdna.onnx"), options, providers=["VitisAIExecutionProvider"])
    return session.run(None, feeds)
'''


@dataclass(frozen=True)
class XdnaExporter:
    """Integers through pairs; layers without pairs are computed in bfloat16, which stands in for FP16 on this chip."""

    name: str = "xdna"
    title: str = "AMD XDNA (Ryzen AI), Q/DQ conventions of AMD Quark"
    toolchain: str = ""

    def check(self, job: Job) -> None:
        """Raises an InputError for a plan that the convention cannot hold, naming tensor and cure."""
        if odd := next((f"{k}={v}" for k, v in job.options.items() if v not in OPTIONS.get(k, ())), ""):
            known = "; ".join(f"{k}={' or '.join(v)}" for k, v in OPTIONS.items())
            raise InputError(f"xdna: no option {odd!r}; there are {known}")
        for precision in dict.fromkeys(job.plan.precision.values()):
            if precision is not Precision.FP32:
                job.target.support(precision, job.toolkit)
        if (layer := next((n for n, v in job.demanded.layers.items() if v.precision is Precision.FP32 and v.placement != ""), None)) is not None:
            offered = ", ".join(map(str, job.target.available(job.toolkit)))
            raise PlanError(f"layer {layer!r} is FP32, which this NPU does not compute: search again with {offered}")
        name, wide = chosen(job), Precision.INT16 in job.plan.precision.values()
        if wide and name != "A16W8":
            raise PlanError(f"{name} has no 16-bit activations, and the plan has INT16 layers: leave --option convention={name} out (then it is A16W8), "
                            "or search without INT16")
        weights = {x.weight for x in layers(job)}
        for key, tensor in job.demanded.tensors.items():
            if tensor.dtype not in ("int8", "int16") or any(tensor.zero_point):
                raise PlanError(f"{key}: {tensor}; AMD's conventions have signed codes with zero point 0: use the target's own scheme")
            if key in weights and tensor.dtype != "int8":
                raise PlanError(f"{key}: weights of {tensor.bits} bits; AMD's conventions have int8 weights: use the target's own scheme")
        if name == "XINT8" and (bad := not_powers_of_two(job)) and "scales" not in job.options:
            raise PlanError(f"XINT8 takes power-of-two scales, and {bad[0]} has {job.demanded.tensors[bad[0]].scale[0]:.9g} ({len(bad)} such tensors), "
                            f"from calibrator {job.plan.calibrator!r} with a scheme that is not power_of_two: search again with --calibrator power-of-two "
                            f"and {job.target.name}'s own scheme, take --option convention=A8W8, or allow rounding with --option scales=power-of-two")

    def write(self, job: Job, folder: Path, progress: Progress) -> Produced:
        """The model, checked against the convention and read back."""
        name = chosen(job)
        progress(f"writing {name}", 0, 2)
        convention = wanted(job)
        made = adapted(job, convention)
        qdq.save(made.model, folder / HANDED)
        model = ir.load(folder / HANDED)
        check_convention(model, convention, job)
        progress("comparing with the plan as written", 1, 2)
        compared = simulated(job, f"onnxruntime on the {name} model, as written", folder / QDQ, reference_outputs(folder / HANDED, job.samples),
                             limit_lsb=None if made.consent else 1.0, least_sqnr_db=LEAST_SQNR_DB,
                             note=f"{len(made.consent)} tensors are stored otherwise than in the plan" if made.consent else "", by_vendor=False)
        opset = model.opset_imports.get("", 0)
        remarks = [f"checked against what AMD Quark 0.13 writes as {name}; no AMD compiler has seen it",
                   *([BIASES] if any(c.reason == NARROW_BIAS for c in made.consent.values()) else []),
                   *([f"the model has opset {opset}; AMD recommends {OPSET}"] if opset != OPSET else []),
                   *(["weights have a scale per channel; Quark by itself writes one per weight"] if not convention_of(model).one_scale else []),
                   *(["layers in float are bfloat16 on this chip"] if any(v.precision.is_float for v in job.demanded.layers.values()) else [])]
        return Produced(False, {HANDED: f"Q/DQ model, convention {name}"}, read_model(job, model), WHY_NOT, reference=HANDED,
                        requires={"runtime": f">={job.toolkit}"}, conventions=conventions(name), consent=made.consent, simulations=(compared,),
                        facts={"convention": name}, remarks=tuple(remarks), board_code=BOARD_CODE)


def chosen(job: Job) -> str:
    """The option's, else what the plan is: 16-bit activations, power-of-two scales throughout, or neither."""
    if given := job.options.get("convention", ""):
        return given
    if Precision.INT16 in job.plan.precision.values():
        return "A16W8"
    return "A8W8" if not_powers_of_two(job) and "scales" not in job.options else "XINT8"


def wanted(job: Job) -> Convention:
    """With the biases of the option."""
    known = KNOWN[chosen(job)]
    return replace(known, bias=job.options.get("bias", known.bias))


def not_powers_of_two(job: Job) -> tuple[str, ...]:
    """Tensors that XINT8 cannot hold as they are: other scales, or more than one."""
    return tuple(k for k, t in job.demanded.tensors.items() if len(t.scale) > 1 or not is_power_of_two(t.scale[0]))


def conventions(name: str) -> dict[str, str]:
    return {"convention": f"{name}: {MEANT[name]}", "real": "real = (q - zero_point) * scale; codes from -128 to 127 (AMD uses -128, plans for XDNA do too)",
            "fixed outputs": "as the plan says", "float": "no pair: bfloat16"}


def check_convention(model: ir.Model, want: Convention, job: Job) -> None:
    """Raises ToolError that names the field, where the model does not do what Quark does: an invariant of ours, proved on the file."""
    have, name = convention_of(model), chosen(job)
    mixed = Precision.INT8 in job.plan.precision.values() and name == "A16W8"
    allowed: Mapping[str, set[str]] = {"activation": {want.activation, *(["int16+int8", "int8"] if mixed else [])}, "weight": {"int8", ""},
                                       "bias": {want.bias, ""}, "domain": {want.domain}}
    for field, values in allowed.items():
        if getattr(have, field) not in values and (getattr(have, field) or field == "domain") and _has_pairs(model):
            raise ToolError(f"{name}: the model has {field} {getattr(have, field)!r}, AMD Quark writes {getattr(want, field)!r}")
    if (want.power_of_two and not have.power_of_two) or not have.zero_points_are_0:
        what = "a zero point" if not have.zero_points_are_0 else "a scale that is no power of two"
        raise ToolError(f"{name}: the model has {what}, which AMD Quark does not write")


def _has_pairs(model: ir.Model) -> bool:
    return any(n.op_type == "QuantizeLinear" for n in model.graph)


def read_model(job: Job, model: ir.Model) -> Contents:
    """What the file holds, in the words of the plan."""
    read = read_qdq(model, job.prepared, job.written, job.demanded)
    told = {k: v for k, v in wide_biases(model).items() if k in job.demanded.tensors}
    return Contents(read.layers, dict(read.tensors) | told, HANDED, read.silent)

