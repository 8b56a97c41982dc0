"""Small networks as records, without ONNX, for the tests of the cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qbench.network import Kernel, Network, Precision, TensorSpec, Unit
from qbench.plan import Granularity, Plan


def conv(name: str, source: str, goal: str, cin: int, cout: int, size: int, kernel: int = 3, stride: int = 1, groups: int = 1,
         activation: str = "Relu", residual: str = "") -> Kernel:
    """A square convolution with padding kernel // 2."""
    out = -(-size // stride)
    depthwise = groups > 1 and groups == cin
    op = "Conv" + (f"+{activation}" if activation else "") + ("+Add" if residual else "")
    return Kernel(name, op, "depthwise" if depthwise else "conv", (name,), (source, *((residual,) if residual else ())), (goal,),
                  macs=out * out * cout * (cin // groups) * kernel * kernel, weights=cout * (cin // groups) * kernel * kernel, biases=cout,
                  in_channels=cin, in_h=size, in_w=size, out_channels=cout, out_h=out, out_w=out, kernel_h=kernel, kernel_w=kernel,
                  stride_h=stride, stride_w=stride, groups=groups, activation=activation)


def network(kernels: Sequence[Kernel], shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[str], outputs: Sequence[str],
            units: Sequence[Sequence[str]] | None = None, floats: Sequence[str] = ()) -> Network:
    """`units` groups kernel names; by default each kernel is its own. `floats` are units that must stay in float."""
    grouped = units or [(k.name,) for k in kernels]
    return Network("test", "0" * 64, tuple(inputs), tuple(outputs), {t: TensorSpec(t, s, "float32") for t, s in shapes.items()},
                   tuple(kernels), tuple(Unit(u[0], tuple(u), u[0] not in floats, "test" if u[0] in floats else "") for u in grouped), ())


def branched() -> Network:
    """An image, a stem, two branches of one shape, a Concat that ties the branches into one unit, a residual, a head."""
    shapes = {"image": (1, 3, 32, 32), "stem": (1, 32, 32, 32), "left": (1, 32, 32, 32), "right": (1, 32, 32, 32), "both": (1, 64, 32, 32),
              "sum": (1, 64, 32, 32), "out": (1, 10, 32, 32)}
    concat = Kernel("concat", "Concat", "concat", ("concat",), ("left", "right"), ("both",), in_channels=32, in_h=32, in_w=32,
                    out_channels=64, out_h=32, out_w=32)
    kernels = [conv("a", "image", "stem", 3, 32, 32), conv("b", "stem", "left", 32, 32, 32, kernel=1, activation="Swish"),
               conv("c", "stem", "right", 32, 32, 32, groups=32), concat, conv("d", "both", "sum", 64, 64, 32, residual="both"),
               conv("e", "sum", "out", 64, 10, 32, kernel=1, activation="")]
    return network(kernels, shapes, ("image",), ("out",), [("a",), ("b", "c", "concat"), ("d",), ("e",)])


def plan_of(net: Network, precisions: Sequence[Precision]) -> Plan:
    chosen = {u.name: p for u, p in zip(net.units, precisions, strict=True)}
    return Plan(net.model_key, "rk3588", "2.5.0", "1000MHz", "minmax", Granularity.PER_CHANNEL, chosen, {}, {})
