"""Random networks of convolutions, maps, joins, cuts and views, with units that tie some kernels together."""

from __future__ import annotations

from cost_networks import conv, network
from hypothesis import strategies as st

from qbench.network import Kernel, Network


def plain(name: str, op: str, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], activation: str = "") -> Kernel:
    return Kernel(name, op, kind, (name,), inputs, outputs, in_channels=16, in_h=8, in_w=8, out_channels=16, out_h=8, out_w=8, activation=activation)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    shapes: dict[str, tuple[int, ...]] = {"x": (1, draw(st.sampled_from([3, 16, 24])), 8, 8)}
    kernels: list[Kernel] = []
    for i in range(draw(st.integers(1, 12))):
        name = f"k{i}"
        source = draw(st.sampled_from(sorted(t for t, s in shapes.items() if len(s) == 4)))
        channels = shapes[source][1]
        kind = draw(st.sampled_from(["conv", "residual", "depthwise", "swish", "grouped", "relu", "sigmoid", "add", "concat", "split", "pool", "flatten"]))
        same = sorted(t for t, s in shapes.items() if s == shapes[source])
        other = draw(st.sampled_from(same))
        if kind in ("conv", "swish", "grouped", "residual"):
            out = draw(st.sampled_from([16, 24, 64])) if kind != "residual" else channels
            groups = 4 if kind == "grouped" and channels % 4 == 0 and out % 4 == 0 and channels > 4 else 1
            shapes[f"t{i}"] = (1, out, 8, 8)
            kernels.append(conv(name, source, f"t{i}", channels, out, 8, activation="Swish" if kind == "swish" else "Relu", groups=groups,
                                residual=other if kind == "residual" and other != source else ""))
        elif kind == "depthwise" and channels > 4:
            shapes[f"t{i}"] = shapes[source]
            kernels.append(conv(name, source, f"t{i}", channels, channels, 8, groups=channels))
        elif kind == "concat" and other != source:
            shapes[f"t{i}"] = (1, 2 * channels, 8, 8)
            kernels.append(plain(name, "Concat", "concat", (source, other), (f"t{i}",)))
        elif kind == "split" and channels % 2 == 0:
            shapes[f"t{i}"] = shapes[f"u{i}"] = (1, channels // 2, 8, 8)
            kernels.append(plain(name, "Split", "split", (source,), (f"t{i}", f"u{i}")))
        elif kind == "flatten":
            shapes[f"t{i}"] = (1, channels * 64)
            kernels.append(plain(name, "Flatten", "reshape", (source,), (f"t{i}",)))
        elif kind == "add":
            shapes[f"t{i}"] = shapes[source]
            kernels.append(plain(name, "Add", "eltwise", tuple(dict.fromkeys((source, other))), (f"t{i}",)))
        else:
            shapes[f"t{i}"] = shapes[source]
            op = {"relu": "Relu", "sigmoid": "Sigmoid"}.get(kind, "MaxPool")
            kernels.append(plain(name, op, "pool" if op == "MaxPool" else "activation", (source,), (f"t{i}",), op if op != "MaxPool" else ""))
    read = {t for k in kernels for t in k.inputs}
    made = [t for k in kernels for t in k.outputs]
    outputs = [t for t in made if t not in read] or made[-1:]
    cuts = sorted(draw(st.sets(st.integers(1, len(kernels)), max_size=6)) | {len(kernels)})
    units = [[k.name for k in kernels[a:b]] for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
    return network(kernels, shapes, ["x"], outputs, units)
