"""A changed network prices like one that was built so in ONNX."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest
from advice_models import branches, fixed, prepare, setup_of

from qbench.advice import priced
from qbench.advice.networks import functions, narrowed, unfused, with_function, without_edge_transposes
from qbench.advice.resize import picture, resized
from qbench.cost.modes import batched
from qbench.errors import ModelError
from qbench.graph import load_network
from qbench.network import Network, Precision

TARGETS = ("rk3588", "hexagon", "stm32h7", "host")
INT8 = Precision.INT8


def price(network: Network, target: str) -> tuple[float, float, float]:
    """Seconds, peak and DRAM bytes in INT8."""
    cost = priced(setup_of(network, target, INT8))
    return cost.latency_s, cost.peak_bytes, cost.dram_bytes


def same(a: Network, b: Network) -> None:
    assert [u.name for u in a.units] == [u.name for u in b.units]
    for name in TARGETS:
        assert price(a, name) == pytest.approx(price(b, name), rel=1e-9), name


@pytest.mark.parametrize("samples", [2, 5])
def test_a_batch_prices_like_the_model_loaded_with_that_batch(samples: int) -> None:
    proto = branches(batch="N")
    several = load_network(ir.serde.deserialize_model(proto), {"x": (samples, 3, 32, 32)}).network
    same(batched(prepare(proto).network, samples), several)


@pytest.mark.parametrize(("height", "width"), [(40, 40), (24, 48), (16, 16)])
def test_another_size_is_the_network_that_was_exported_at_it(height: int, width: int) -> None:
    found = resized(prepare(branches()), height, width)
    same(found, prepare(branches(size=(height, width))).network)


def test_a_size_that_the_model_holds_is_refused_with_the_node() -> None:
    prepared = prepare(fixed())
    with pytest.raises(ModelError, match="flat"):
        resized(prepared, 24, 24)
    assert picture(prepared.network) == "x"


def test_narrowed_is_the_network_that_was_built_with_whole_groups() -> None:
    found, touched = narrowed(prepare(branches((40, 24, 48))).network, 16)
    assert touched == 4                             # stem, left, right, and the layer that reads them; 48 stays
    same(found, prepare(branches((32, 16, 48))).network)


def test_whole_groups_stay_as_they_are() -> None:
    network = prepare(branches((32, 16, 48))).network
    found, touched = narrowed(network, 16)
    assert touched == 0 and found.kernels == network.kernels and found.tensors == network.tensors


def test_relu_in_place_of_silu_is_the_network_with_relu() -> None:
    silu, relu = prepare(branches()).network, prepare(branches(silu=False)).network
    assert len(functions(silu)) == 5 and not functions(relu)
    changed = with_function(silu, "Relu")
    for name in ("rk3588", "hexagon"):
        assert price(changed, name)[0] == pytest.approx(price(relu, name)[0], rel=1e-9)


def test_edge_transposes_leave_the_network_that_never_had_them() -> None:
    turned, plain = prepare(branches(transposed=True)).network, prepare(branches()).network
    found, names = without_edge_transposes(turned)
    assert names == ("turn",) and found.inputs == ("x",)
    same(found, plain)
    assert without_edge_transposes(plain) == (plain, ())


def test_unfused_runs_every_operator_by_itself() -> None:
    network = prepare(branches()).network
    apart = unfused(network)
    fused = Counter(op for k in network.kernels for op in k.op.split("+"))
    assert Counter(k.op for k in apart.kernels) == fused
    assert apart.macs == network.macs
    assert set(apart.unit_of_kernel) == {k.name for k in apart.kernels}
    with_norms = unfused(network, norms=2)
    assert Counter(k.op for k in with_norms.kernels) - fused == Counter({"BatchNormalization": 2})
    for name in TARGETS:
        assert price(apart, name)[0] > price(network, name)[0]
