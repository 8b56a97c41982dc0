"""The choice among calibrators, the specs it carries, and ranges of many tensors at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_calibrator_kinds import DATA, seen_of

from qbench import calibrators
from qbench.affine import Range, Scheme, affine, dequantize, quantize
from qbench.calibrators import Specs, make, names, ranges, spec
from qbench.calibrators.auto import Auto
from qbench.errors import InputError, NotObserved
from qbench.protocols import Seen
from qbench.statistics import TensorStatistics

PARTS = ["minmax", "percentile:p=99.9,sided=one", "percentile:sided=magnitude", "kl:bins=512,sides=apart", "mse:steps=32", "lp:p=3.0",
         "sqnr:bits=4,clip=3.0", "aciq:shape=gauss", "extremes:of=median,batch=2", "moving-average:momentum=0.5"]


@given(st.lists(st.sampled_from(PARTS), min_size=1, max_size=8, unique=True))
def test_the_text_of_a_choice_gives_it_back(parts: list[str]) -> None:
    made = make("auto:among=" + "/".join(parts))
    assert isinstance(made, Auto) and made.candidates() == tuple(parts)
    assert spec(made) == "auto:among=" + "/".join(parts) and make(spec(made)) == made


def test_candidates_are_written_in_one_way() -> None:
    assert Auto(Specs("percentile:p=99.99,sided=both/ mse:steps=64")).candidates() == ("percentile", "mse")
    assert make("auto:among=percentile:p=99.99/mse") == make("auto:among=percentile/mse")
    assert spec(make("auto")) == "auto" and spec(Auto(Specs(Auto().among))) == "auto"


def test_the_usual_candidates_hold_what_others_offer() -> None:
    usual = Auto().candidates()
    assert len(usual) <= 9                                                     # each runs as a whole network
    assert {"minmax", "percentile:p=99.999", "percentile", "percentile:sided=magnitude", "percentile:p=99.9", "mse", "kl"} <= set(usual)
    assert all(spec(make(text)) == text for text in usual)


def error(x: np.ndarray[tuple[int, ...], np.dtype[np.float32]], found: Range, scheme: Scheme) -> float:
    coded = affine(found, scheme)
    return float(np.mean((dequantize(quantize(x, coded), coded).astype(np.float64) - x) ** 2))


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("scheme", [Scheme(8, False, False), Scheme(8, True, True, narrow=True), Scheme(4, True, False)],
                         ids=lambda s: f"{s.levels}")
@pytest.mark.parametrize("among", ["minmax/percentile:p=99.0/percentile:p=99.9,sided=one/kl", "percentile:p=90.0/lp:p=4.0/minmax"])
def test_the_candidate_with_the_least_error_is_taken(name: str, scheme: Scheme, among: str) -> None:
    x, seen = DATA[name], seen_of(DATA[name])
    found = make(f"auto:among={among}").range(seen, scheme.levels, scheme.symmetric)
    rivals = [make(text).range(seen, scheme.levels, scheme.symmetric) for text in among.split("/")]
    assert found in rivals and error(x, found, scheme) <= 1.003 * min(error(x, r, scheme) for r in rivals)


def test_of_equals_the_first_is_taken_and_an_empty_range_never() -> None:
    seen = seen_of(np.array([0.0] * 999 + [1.0], np.float32))
    assert make("auto:among=percentile:p=50.0/minmax").range(seen, 256) == Range(0.0, 1.0)
    assert make("auto:among=percentile:p=50.0/percentile:p=60.0").range(seen, 256) == Range(0.0, 1.0)


ALONE = Specs("minmax")


@dataclass(frozen=True)
class Last:
    """A third party's calibrator that holds specs and another option behind them."""

    among: Specs = ALONE
    share: float = 0.5

    def range(self, seen: Seen, levels: int, symmetric: bool = False) -> Range:
        return Range(0.0, self.share)


def test_an_option_of_specs_takes_the_rest_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    monkeypatch.setattr(calibrators, "entry_points", lambda group: [EntryPoint("last", f"{__name__}:Last", group)])
    calibrators._known.cache_clear()
    try:
        made: object = make("last:share=0.25,among=kl:bins=512,sides=apart/mse")
        assert made == Last(Specs("kl:bins=512,sides=apart/mse"), 0.25)
        assert spec(make("last:among=kl:bins=512,sides=apart/mse")) == "last:among=kl:bins=512,sides=apart/mse"
        assert spec(Last(Specs("mse"), 0.25)) == "last:share=0.25,among=mse"
        with pytest.raises(InputError, match=r"'share=0\.5' is given twice"):
            make("last:share=0.25,share=0.5,among=kl")
    finally:
        calibrators._known.cache_clear()


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_ranges_of_many_tensors_are_those_of_each(name: str, threads: int | None) -> None:
    seen = [seen_of(x[:2_000]) for x in DATA.values()]
    calibrator = make(name)
    assert ranges(calibrator, seen, 256, threads=threads) == [calibrator.range(s, 256) for s in seen]
    assert ranges(calibrator, seen, 255, True, threads) == [calibrator.range(s, 255, True) for s in seen]
    assert ranges(calibrator, [], 256) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_tensor_that_never_occurred_is_refused_among_many(threads: int) -> None:
    seen = [seen_of(DATA["normal"]), TensorStatistics.empty("gone"), seen_of(DATA["relu"])]
    with pytest.raises(NotObserved, match="'gone' was never observed"):
        ranges(make("mse"), seen, 256, threads=threads)
