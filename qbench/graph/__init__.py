"""From a model file or a torch module to a prepared model: names, static shapes, folding, fusion into kernels, units.

    load_network(source) -> PreparedModel      the model (onnx_ir) and its `qbench.network.Network`
"""

from qbench.graph.prepare import PreparedModel, load_network, specialised

__all__ = ["PreparedModel", "load_network", "specialised"]
