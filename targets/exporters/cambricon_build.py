# mypy: ignore-errors
"""Builds model.mm with MagicMind out of model.float.onnx, builder_config.json and layers.json. Written by qbench export; qbench has not run it.

    python build.py                our ranges and precisions, node by node
    python build.py --calibrate    MagicMind finds the ranges itself on the golden input, to compare (needs an MLU)

Every call is checked: the first one that MagicMind refuses ends the script with the node's name.
"""

import json
import sys
from pathlib import Path


def checked(status, what):
    if not status.ok():
        sys.exit(f"MagicMind refuses {what}: {status}")


def parsed(mm, folder):
    from magicmind.python.runtime.parser import Parser

    network = mm.Network()
    checked(Parser(mm.ModelKind.kOnnx).parse(network, str(folder / "model.float.onnx")), "model.float.onnx")
    return network


def set_range(mm, tensor, row, where):
    """Only where the plan has one."""
    if row["ranges"] is None:
        return
    ranges = [mm.Range(low, high) for low, high in row["ranges"]]
    if len(ranges) == 1:
        checked(tensor.set_dynamic_range(ranges[0], False), f"the range of {where}")
    else:
        checked(tensor.set_dynamic_range_per_axis(ranges, False), f"the ranges of {where}")


def applied(mm, network, layers):
    """Ranges and precisions of every node of layers.json."""
    for row in layers["inputs"]:
        set_range(mm, network.get_input(row["index"]), row, f"input {row['index']}")
    for row in layers["nodes"]:
        node = network.find_node_by_name(row["name"])
        if node is None:
            sys.exit(f"MagicMind's network has no node {row['name']!r}: its parser renamed or fused it")
        for entry in row["inputs"]:
            where = f"input {entry['index']} of {row['name']}"
            set_range(mm, node.get_input(entry["index"]), entry, where)
            checked(node.set_precision(entry["index"], getattr(mm.DataType, entry["type"])), f"{entry['type']} for {where}")
        for entry in row["outputs"]:
            where = f"output {entry['index']} of {row['name']}"
            set_range(mm, node.get_output(entry["index"]), entry, where)
            checked(node.set_output_type(entry["index"], getattr(mm.DataType, entry["type"])), f"{entry['type']} for {where}")


def calibrated(mm, network, config, folder):
    """MagicMind's own linear calibration on the golden input."""
    import numpy as np
    from magicmind.python.common.types import get_datatype_by_numpy

    class Samples(mm.CalibDataInterface):
        def __init__(self, values):
            super().__init__()
            self.values, self.at = values, 0

        def next(self):
            if self.at >= len(self.values):
                return mm.Status(mm.Code.OUT_OF_RANGE, "no more data")
            self.value, self.at = np.ascontiguousarray(self.values[self.at]), self.at + 1
            return mm.Status()

        def get_shape(self):
            return mm.Dims(self.value.shape)

        def get_data_type(self):
            return get_datatype_by_numpy(self.value.dtype)

        def get_sample(self):
            return self.value

        def reset(self):
            self.at = 0
            return mm.Status()

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    golden = np.load(folder / manifest["golden"]["file"])
    calibrator = mm.Calibrator([Samples([golden["in:" + name]]) for name in manifest["golden"]["inputs"]])
    checked(calibrator.set_quantization_algorithm(mm.QuantizationAlgorithm.LINEAR_ALGORITHM), "the linear algorithm")
    checked(calibrator.calibrate(network, config), "to calibrate")


def main():
    import magicmind.python.runtime as mm

    folder = Path(__file__).resolve().parent
    network, config = parsed(mm, folder), mm.BuilderConfig()
    checked(config.parse_from_file(str(folder / "builder_config.json")), "builder_config.json")
    if "--calibrate" in sys.argv[1:]:
        calibrated(mm, network, config, folder)
    else:
        applied(mm, network, json.loads((folder / "layers.json").read_text(encoding="utf-8")))
    model = mm.Builder().build_model("model", network, config)
    if model is None:
        sys.exit("MagicMind built nothing: its log says why")
    checked(model.serialize_to_file(str(folder / "model.mm")), "to write model.mm")
    print("model.mm is built")


if __name__ == "__main__":
    main()
