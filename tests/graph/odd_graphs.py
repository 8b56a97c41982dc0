"""Valid graphs that few people think of, each with something to feed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from models import Array, node
from odd_models import BOOL, FLOAT, INT64, UINT8, Feeds, info, odd_model
from onnx import TensorProto, helper, numpy_helper

Case = tuple[onnx.ModelProto, Feeds]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def noise(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 0.5, shape).astype(np.float32)


X = noise(1, 3, 8, 8)
W = noise(4, 3, 3, 3, seed=1)
IMAGE = info("x", [1, 3, 8, 8])


def conv(out: str = "c", source: str = "x") -> onnx.NodeProto:
    return node("Conv", [source, "w"], [out], f"conv_{out}")


def bare(name: str) -> onnx.ValueInfoProto:
    """An output of a body without a type."""
    return onnx.ValueInfoProto(name=name)


def recurrent(op: str, directions: int, everything: bool, opset: int = 17, **attributes: int) -> Case:
    """everything   with bias, sequence lengths, initial states and peepholes"""
    hidden, width, batch = 5, 3, 2
    gates = GATES[op] * hidden
    weights: dict[str, Array] = {"w": noise(directions, gates, width), "r": noise(directions, gates, hidden, seed=1)}
    inputs = ["x", "w", "r"]
    if everything:
        weights |= {"bias": noise(directions, 2 * gates), "lengths": np.array([4, 2], np.int32), "h0": noise(directions, batch, hidden)}
        inputs += ["bias", "lengths", "h0"]
        if op == "LSTM":
            weights |= {"c0": noise(directions, batch, hidden), "peep": noise(directions, 3 * hidden)}
            inputs += ["c0", "peep"]
    outputs = ["y", "yh", *(["yc"] if op == "LSTM" else [])]
    shapes = {"y": [4, directions, batch, hidden], "yh": [directions, batch, hidden], "yc": [directions, batch, hidden]}
    made = node(op, inputs, outputs, "rnn", hidden_size=hidden, direction="bidirectional" if directions == 2 else "forward", **attributes)
    return odd_model([made], [info("x", [4, batch, width])], [info(o, shapes[o]) for o in outputs], weights, opset=opset), {"x": noise(4, batch, width, seed=2)}


def loop() -> Case:
    body = helper.make_graph([node("Add", ["v", "k"], ["v2"], "in_add"), node("Mul", ["v2", "x"], ["s"], "in_mul"), node("Identity", ["on"], ["still"])], "body",
                             [info("i", [], INT64), info("on", [], BOOL), info("v", None)], [info("still", [], BOOL), info("v2", None), info("s", None)],
                             [numpy_helper.from_array(np.array(1, np.float32), "k")])
    nodes = [node("Conv", ["x0", "w"], ["x"], "conv"), node("Loop", ["turns", "", "x"], ["out", "scan"], "loop", body=body), node("Relu", ["out"], ["y"], "relu")]
    return odd_model(nodes, [info("x0", [1, 3, 8, 8])], [info("y", [1, 4, 6, 6]), info("scan", [3, 1, 4, 6, 6])], {"turns": np.array(3), "w": W}), {"x0": X}


def scan() -> Case:
    body = helper.make_graph([node("Add", ["s", "e"], ["s2"], "in_add"), node("Relu", ["s2"], ["o"], "in_relu")], "body", [bare("s"), bare("e")],
                             [bare("s2"), bare("o")])
    return odd_model([node("Scan", ["start", "x"], ["end", "y"], "scan", body=body, num_scan_inputs=1)], [info("start", [4]), info("x", [5, 4])],
                     [info("end", [4]), info("y", [5, 4])]), {"start": noise(4), "x": noise(5, 4)}


def nested(taken: bool = True) -> Case:
    """If {Loop, Relu} else {If {Neg} else {Sigmoid}}."""
    body = helper.make_graph([node("Add", ["v", "x"], ["v2"], "in_add"), node("Identity", ["on"], ["still"])], "body",
                             [info("i", [], INT64), info("on", [], BOOL), bare("v")], [info("still", [], BOOL), bare("v2")])
    then = helper.make_graph([node("Loop", ["turns", "", "x"], ["lo"], "inner_loop", body=body), node("Relu", ["lo"], ["t"], "in_relu")], "then", [], [bare("t")])
    inner = [helper.make_graph([node(op, ["x"], [out], f"in_{op}")], out, [], [bare(out)]) for op, out in (("Neg", "a"), ("Sigmoid", "b"))]
    other = helper.make_graph([node("If", ["yes"], ["e"], "inner_if", then_branch=inner[0], else_branch=inner[1])], "other", [], [bare("e")])
    nodes = [node("ReduceMax", ["x"], ["m"], "most", keepdims=0), node("Greater", ["m", "limit"], ["yes"], "compare"),
             node("If", ["yes"], ["r"], "outer", then_branch=then, else_branch=other), node("Relu", ["r"], ["y"], "relu")]
    return odd_model(nodes, [IMAGE], [info("y", [1, 3, 8, 8])], {"limit": np.float32(0 if taken else 9), "turns": np.array(2)}), {"x": X}


def weights_in_branches() -> Case:
    """Both branches hold a weight named w, large enough to be lent to onnxruntime if it were in the main graph."""
    branches = [helper.make_graph([conv(out)], out, [], [bare(out)], [numpy_helper.from_array(noise(64, 3, 3, 3, seed=i), "w")]) for i, out in enumerate("ab")]
    return odd_model([node("If", ["c"], ["r"], "choice", then_branch=branches[0], else_branch=branches[1]), node("Relu", ["r"], ["y"], "relu")],
                     [IMAGE, info("c", [], BOOL)], [info("y", [1, 64, 6, 6])]), {"x": X, "c": np.array(True)}


def folded_branch() -> Case:
    """The condition is constant, so the other branch is folded away, and with it the only reader of a large weight."""
    branches = [helper.make_graph([node("MatMul", ["x", name], [name[1:]], f"mm_{name}")], name, [], [bare(name[1:])]) for name in ("wa", "wb")]
    return odd_model([node("If", ["always"], ["r"], "choice", then_branch=branches[0], else_branch=branches[1]), node("Relu", ["r"], ["y"], "relu")],
                     [info("x", [4, 48])], [info("y", [4, 48])], {"always": np.array(True), "wa": noise(48, 48), "wb": noise(48, 48, seed=1)}), {"x": noise(4, 48)}


def function() -> Case:
    block = helper.make_function("mine", "Block", ["a", "b"], ["o"], [helper.make_node("Conv", ["a", "b"], ["t"]), helper.make_node("Relu", ["t"], ["o"])],
                                 [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Block", ["x", "w"], ["h"], domain="mine"), helper.make_node("Block", ["h", "v"], ["y"], domain="mine")]
    return odd_model(nodes, [IMAGE], [info("y", [1, 2, 4, 4])], {"w": W, "v": noise(2, 4, 3, 3)}, domains=["mine"], functions=[block]), {"x": X}


def sequences() -> Case:
    nodes = [node("SplitToSequence", ["x"], ["s"], "split", axis=1, keepdims=1), node("SequenceAt", ["s", "i"], ["t"], "at"), node("Relu", ["t"], ["y"], "relu"),
             conv("c")]
    return odd_model(nodes, [IMAGE], [info("y", [1, 1, 8, 8]), info("c", [1, 4, 6, 6])], {"i": np.array(0), "w": W}), {"x": X}


def sequence_in_a_branch() -> Case:
    """The If hands out a sequence: its type is known from its branches only."""
    branches = [helper.make_graph([node("SplitToSequence", ["x"], [f"s{i}"], f"split{i}", axis=axis)], f"b{i}", [],
                                  [helper.make_tensor_sequence_value_info(f"s{i}", FLOAT, None)]) for i, axis in enumerate((2, 3))]
    nodes = [node("If", ["c"], ["s"], "choice", then_branch=branches[0], else_branch=branches[1]), node("ConcatFromSequence", ["s"], ["y"], "join", axis=1), conv("z")]
    return odd_model(nodes, [IMAGE, info("c", [], BOOL)], [info("y", ["a", "b", "h", "w"]), info("z", [1, 4, 6, 6])], {"w": W}), {"x": X, "c": np.array(True)}


def optional() -> Case:
    nodes = [node("Optional", ["x"], ["o"], "wrap"), node("OptionalGetElement", ["o"], ["t"], "unwrap"), conv("y", "t")]
    return odd_model(nodes, [IMAGE], [info("y", [1, 4, 6, 6])], {"w": W}, opset=18), {"x": X}


def widened_constant(how: str) -> Case:
    """A constant of 20 that takes the input's batch size in the graph, and is joined to it: the class token of a vision transformer."""
    weights: dict[str, Array] = {"from": np.array([0]), "to": np.array([1]), "side": np.array([1]), "width": np.array([6]), "token": noise(1, 1, 6) * 40, "w": noise(6, 4),
                                 "last": np.array(0)}
    sizes = [node("Shape", ["x"], ["sizes"]), node("Slice", ["sizes", "from", "to"], ["batch"])]
    match how:
        case "expanded":
            made = [node("Concat", ["batch", "side", "width"], ["wide"], axis=0), node("Expand", ["token", "wide"], ["tokens"], "grow")]
        case "tiled":
            made = [node("Concat", ["batch", "side", "side"], ["times"], axis=0), node("Tile", ["token", "times"], ["tokens"], "grow")]
        case _:
            made = [node("ConstantOfShape", ["batch"], ["rows"], value=numpy_helper.from_array(np.array([0], np.int64))),
                    node("Gather", ["token", "rows"], ["tokens"], "grow", axis=0)]
    nodes = [*sizes, *made, node("Concat", ["tokens", "x"], ["all"], "join", axis=1), node("MatMul", ["all", "w"], ["y"], "mm")]
    used = {i for n in nodes for i in n.input}
    return odd_model(nodes, [info("x", ["N", 3, 6])], [info("y", ["N", 4, 4])], {k: v for k, v in weights.items() if k in used}), {"x": noise(2, 3, 6)}


def selected_constants() -> Case:
    """Where between a convolution and a constant that is larger than its values, and between two constants."""
    nodes = [conv(), node("Greater", ["c", "edge"], ["above"], "compare"), node("Where", ["above", "c", "low"], ["d"], "floor"),
             node("Where", ["above", "one", "low"], ["e"], "mark"), node("Mul", ["d", "e"], ["y"], "product")]
    return odd_model(nodes, [IMAGE], [info("y", [1, 4, 6, 6])], {"w": W, "edge": np.float32(0.1), "low": np.float32(-9), "one": np.float32(1)}), {"x": X}


def of_opset(opset: int) -> Case:
    bounds = [] if opset < 11 else ["low", "high"]
    attributes = {"min": -1.0, "max": 1.0} if opset < 11 else {}
    nodes = [conv("c"), node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], "norm"), node("MaxPool", ["n"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
             node("Clip", ["p", *bounds], ["k"], "clip", **attributes), node("Flatten", ["k"], ["f"], "flat"), node("MatMul", ["f", "fc"], ["z"], "fc"),
             node("Softmax", ["z"], ["y"], "soft", axis=1)]
    weights = {"w": W, "g": noise(4) + 2, "b": noise(4, seed=1), "m": noise(4, seed=2), "v": np.abs(noise(4, seed=3)) + 1, "fc": noise(36, 2)}
    weights |= {"low": np.array(-1, np.float32), "high": np.array(1, np.float32)} if bounds else {}
    return odd_model(nodes, [info("x", ["N", 3, 8, 8])], [info("y", ["N", 2])], weights, opset=opset, ir_version=3 if opset < 9 else 8 if opset < 19 else 10), {"x": X}


def _simple(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], weights: Mapping[str, Array],
            feeds: Feeds, **options: int) -> Callable[[], Case]:
    return lambda: (odd_model(nodes, inputs, outputs, weights, **options), feeds)   # type: ignore[arg-type]


def _k(value: float) -> Array:
    return np.array(value, np.float32)


OUT = info("y", [1, 4, 6, 6])
SHAPED: dict[str, Callable[[], Case]] = {
    "a scalar input": _simple([node("Mul", ["x", "s"], ["m"]), node("Relu", ["m"], ["y"])], [IMAGE, info("s", [])], [info("y", [1, 3, 8, 8])], {},
                              {"x": X, "s": _k(2)}),
    "a scalar output": _simple([conv(), node("ReduceMean", ["c"], ["y"], keepdims=0)], [IMAGE], [info("y", [])], {"w": W}, {"x": X}),
    "one axis": _simple([node("Mul", ["x", "k"], ["y"])], [info("x", [5])], [info("y", [5])], {"k": noise(5)}, {"x": noise(5)}),
    "six axes": _simple([node("Transpose", ["x"], ["t"], perm=[5, 4, 3, 2, 1, 0]), node("Relu", ["t"], ["y"])], [info("x", [1, 2, 1, 2, 1, 2])],
                        [info("y", [2, 1, 2, 1, 2, 1])], {}, {"x": noise(1, 2, 1, 2, 1, 2)}),
    "an empty tensor inside": _simple([node("Slice", ["x", "i", "i", "a"], ["t"]), node("Concat", ["t", "x"], ["y"], axis=1)], [info("x", [1, 3, 8])],
                                      [info("y", [1, 3, 8])], {"i": np.array([0]), "a": np.array([1])}, {"x": noise(1, 3, 8)}),
    "integer and bool inputs": _simple(
        [node("Cast", ["u"], ["f"], to=FLOAT), node("Gather", ["table", "i"], ["e"]), node("Add", ["f", "e"], ["a"]), node("Where", ["m", "a", "f"], ["y"])],
        [info("u", [1, 4], UINT8), info("i", [1], INT64), info("m", [1, 4], BOOL)], [info("y", [1, 4])], {"table": noise(10, 4)},
        {"u": np.array([[1, 2, 3, 250]], np.uint8), "i": np.array([3]), "m": np.array([[True, False, True, True]])}),
    "several inputs and outputs": _simple(
        [conv(), node("Relu", ["c"], ["p"]), node("Sigmoid", ["c"], ["q"]), node("Add", ["p", "z"], ["y"])], [IMAGE, info("z", [1, 4, 6, 6])],
        [info("p", [1, 4, 6, 6]), info("q", [1, 4, 6, 6]), OUT, info("c", [1, 4, 6, 6])], {"w": W}, {"x": X, "z": noise(1, 4, 6, 6)}),
    "an output that is an input": _simple([conv("y")], [IMAGE], [OUT, IMAGE], {"w": W}, {"x": X}),
    "an output that is a weight": _simple([conv("y")], [IMAGE], [OUT, info("w", [4, 3, 3, 3])], {"w": W}, {"x": X}),
    "an output twice": _simple([conv("y")], [IMAGE], [OUT, OUT], {"w": W}, {"x": X}),
    "two names of one tensor": _simple([conv(), node("Identity", ["c"], ["y"]), node("Identity", ["c"], ["z"])], [IMAGE], [OUT, info("z", [1, 4, 6, 6])], {"w": W},
                                       {"x": X}),
    "an identity and nothing else": _simple([node("Identity", ["x"], ["y"])], [IMAGE], [info("y", [1, 3, 8, 8])], {}, {"x": X}),
    "a chain of identities": _simple([node("Identity", ["x"], ["a"]), conv("c", "a"), node("Identity", ["c"], ["d"]), node("Identity", ["d"], ["y"])], [IMAGE],
                                     [OUT], {"w": W}, {"x": X}),
    "an unused input": _simple([conv("y")], [IMAGE, info("u", ["N", 7])], [OUT], {"w": W}, {"x": X, "u": noise(1, 7)}),
    "empty optional inputs": _simple(
        [node("Conv", ["x", "w", ""], ["c"]), node("Clip", ["c", "", "high"], ["d"]), node("Resize", ["d", "", "", "sizes"], ["y"], mode="nearest")], [IMAGE],
        [info("y", [1, 4, 12, 12])], {"w": W, "high": _k(1), "sizes": np.array([1, 4, 12, 12])}, {"x": X}),
    "an unused output of a node": _simple([node("Split", ["x", "parts"], ["y", "unused", "z"], axis=1)], [IMAGE], [info("y", [1, 1, 8, 8]), info("z", [1, 1, 8, 8])],
                                          {"parts": np.array([1, 1, 1])}, {"x": X}),
    "weights as inputs": _simple([node("Conv", ["x", "w", "b"], ["y"])], [IMAGE, info("w", [4, 3, 3, 3]), info("b", [4])], [OUT], {"w": W, "b": noise(4)},
                                 {"x": X}, ir_version=3, opset=9),
    "names with spaces and letters": _simple([node("Conv", ["ein gabe/é", "w"], ["c:0"], "a b/ö"), node("Relu", ["c:0"], ["aus gabe"], "a.b\\c")],
                                             [info("ein gabe/é", [1, 3, 8, 8])], [info("aus gabe", [1, 4, 6, 6])], {"w": W}, {"ein gabe/é": X}),
    "an operator of another domain": _simple([conv(), helper.make_node("Gelu", ["c"], ["g"], "gelu", domain="com.microsoft"), node("Relu", ["g"], ["y"])], [IMAGE],
                                             [OUT], {"w": W}, {"x": X}, domains=["com.microsoft"]),   # type: ignore[arg-type]
    "a constant output beside": _simple([conv("y"), node("Constant", [], ["k"], value=numpy_helper.from_array(noise(3)))], [IMAGE], [OUT, info("k", [3])], {"w": W},
                                        {"x": X}),
    "a constant output only": _simple([node("Constant", [], ["k"], value=numpy_helper.from_array(noise(3)))], [IMAGE], [info("k", [3])], {}, {"x": X}),
    "one tensor read twice by one node": _simple([node("Add", ["x", "x"], ["a"]), node("MatMul", ["a", "a"], ["y"])], [info("x", [4, 4])], [info("y", [4, 4])], {},
                                                 {"x": noise(4, 4)}),
    "a shape that depends on the data": _simple(
        [node("NonZero", ["x"], ["n"]), node("Transpose", ["n"], ["t"]), node("GatherND", ["x", "t"], ["g"]), node("Relu", ["g"], ["y"])], [info("x", [3, 4])],
        [info("y", ["n"])], {}, {"x": noise(3, 4)}),
    "scales that are an input": _simple([node("Resize", ["x", "", "s"], ["y"], mode="linear")], [IMAGE, info("s", [4])], [info("y", [1, 3, 16, 16])], {},
                                        {"x": X, "s": np.array([1, 1, 2, 2], np.float32)}),
    "an open batch": _simple([conv("y")], [info("x", ["N", 3, 8, 8])], [info("y", ["N", 4, 6, 6])], {"w": W}, {"x": noise(3, 3, 8, 8)}),
    "text beside": lambda: (odd_model([node("Relu", ["x"], ["y"]), node("Identity", ["s"], ["z"])], [info("x", [1, 4]), info("s", [2], TensorProto.STRING)],
                                      [info("y", [1, 4]), info("z", [2], TensorProto.STRING)]), {"x": noise(1, 4), "s": np.array(["a", "b"], object)}),
    "a function": function, "sequences": sequences, "a sequence from a branch": sequence_in_a_branch, "an optional": optional,
    "a loop": loop, "a scan": scan, "bodies in bodies": nested, "the other branch": lambda: nested(False), "weights in branches": weights_in_branches,
    "a branch folded away": folded_branch,
    "an expanded constant": lambda: widened_constant("expanded"),
    "a tiled constant": lambda: widened_constant("tiled"),
    "a gathered constant": lambda: widened_constant("gathered"),
    "selected constants": selected_constants,
}
RECURRENT: dict[str, Callable[[], Case]] = {
    f"{op}, {'both ways' if d == 2 else 'one way'}, {'everything given' if e else 'bare'}": lambda op=op, d=d, e=e: recurrent(op, d, e)   # type: ignore[misc]
    for op in GATES for d in (1, 2) for e in (False, True)}
RECURRENT |= {"GRU, linear before reset": lambda: recurrent("GRU", 1, True, linear_before_reset=1), "LSTM, opset 7": lambda: recurrent("LSTM", 2, True, 7),
              "LSTM, opset 22": lambda: recurrent("LSTM", 2, True, 22)}
OPSETS: dict[str, Callable[[], Case]] = {f"opset {n}": lambda n=n: of_opset(n) for n in range(7, 28)}   # type: ignore[misc]
