"""Killed with SIGKILL in the middle of an evaluation, a search continues and ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from fake_search import FakeEvaluator, answer, chain, costs, like_brain, resumable

from qbench.search.run import run

NETWORK = chain(12)
COSTS = costs(NETWORK)


def killed(folder: Path, at: int) -> None:
    """Runs the search of `fake_search.main` in a process of its own and kills it at evaluation `at`, told by a line on a pipe."""
    script = Path(__file__).with_name("fake_search.py")
    with subprocess.Popen([sys.executable, str(script), str(folder), str(at), "/dev/stdout"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == "here", "the search ended before it reached the evaluation"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_killed_again_and_again_it_ends_as_if_never_killed(tmp_path: Path) -> None:
    for at in (6, 15, 20):                                 # among calibrators, sensitivities, exact or sampled plans
        killed(tmp_path, at)
    evaluator = FakeEvaluator(like_brain())
    resumed = run(resumable(tmp_path, NETWORK, COSTS), evaluator, COSTS)
    all_at_once = FakeEvaluator(like_brain())
    straight = run(resumable(tmp_path / "straight", NETWORK, COSTS), all_at_once, COSTS)
    assert json.dumps(answer(resumed)) == json.dumps(answer(straight))
    assert evaluator.log == all_at_once.log[6 + 15 + 20:]                 # nothing finished is evaluated again
