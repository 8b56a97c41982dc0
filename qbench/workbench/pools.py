"""Executors: where the plans of a search are evaluated.

    dask://HOST:PORT        a Dask scheduler that runs already; its workers need qbench and the data set's files
    dask://local            two worker processes on this machine; dask://local?workers=4&threads=1

Source of the engine: Dask.distributed. Its messages are pickles, so a scheduler is trusted like the machine itself: keep it on loopback
or a closed network, or use Dask's TLS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from qbench.errors import InputError, QbenchError, ToolError
from qbench.plan import Plan
from qbench.protocols import Accuracy, Dataset, Progress, silent
from qbench.statistics import Source, Statistics, merge
from qbench.workbench.stations import Station, collect_shard, evaluate

if TYPE_CHECKING:
    from distributed import Client, Future

ANSWER_S = 10
ACCEPTED = "an executor is dask://HOST:PORT, or dask://local?workers=2&threads=1"


@dataclass(frozen=True, slots=True)
class Executor:
    """address   HOST:PORT of a scheduler, or "" for workers on this machine

    workers, threads   of the latter; threads per worker
    """

    address: str
    workers: int = 2
    threads: int = 1

    @staticmethod
    def parse(text: str) -> Executor:
        """Raises InputError."""
        parts = urlsplit(text)
        options = {k: v[-1] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        if parts.scheme != "dask" or parts.path.strip("/") or not parts.netloc or set(options) - {"workers", "threads"}:
            raise InputError(f"executor {text!r} cannot be read; {ACCEPTED}")
        if any(not v.isdecimal() or int(v) < 1 for v in options.values()):
            raise InputError(f"executor {text!r}: workers and threads are whole numbers of at least 1")
        if parts.netloc == "local":
            return Executor("", int(options.get("workers", 2)), int(options.get("threads", 1)))
        if parts.port is None or options:
            raise InputError(f"executor {text!r} names {'no port' if parts.port is None else 'options that a running scheduler decides itself'}; {ACCEPTED}")
        return Executor(parts.netloc)


class DaskPool:
    """The Pool of a Dask client. `station` is sent to every worker once. A plan goes back to the worker that knows its first samples, a new one to that
    with the least to do (left alone, Dask often gives a whole round to one worker); both as a wish: an idle worker may take it over."""

    def __init__(self, client: Client, station: Station) -> None:
        self._client = client
        self._knows: dict[str, str] = {}
        self._station: Any = client.scatter(station, broadcast=True)

    def evaluate(self, tasks: Sequence[tuple[Plan, int | None]]) -> Iterator[tuple[int, Accuracy | QbenchError, float]]:
        from distributed import as_completed

        places = self._places([plan.key for plan, _ in tasks])
        futures = {self._submit(plan, samples, place): i for i, ((plan, samples), place) in enumerate(zip(tasks, places, strict=True))}
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is not None:
                    raise ToolError(f"a worker failed on plan {tasks[futures[future]][0].key}: {type(error).__name__}: {error}") from error
                found, passes, worker = future.result()
                self._knows[tasks[futures[future]][0].key] = worker
                yield futures[future], found, passes
        finally:
            self._client.cancel([f for f in futures if not f.done()])

    def _places(self, keys: Sequence[str]) -> list[str | None]:
        """The worker that each plan is wished to; None while there is no worker."""
        threads = self._client.nthreads()
        load = dict.fromkeys(sorted(threads), 0)
        found: list[str | None] = []
        for key in keys:
            place = self._knows.get(key)
            if place not in load:
                place = min(load, key=lambda w: load[w] / max(threads[w], 1), default=None)
            if place is not None:
                load[place] += 1
            found.append(place)
        return found

    def _submit(self, plan: Plan, samples: int | None, place: str | None) -> Future[Any]:
        return self._client.submit(_evaluated, self._station, plan, samples, pure=False, workers=[place] if place else None,
                                   allow_other_workers=place is not None)


def _evaluated(station: Station, plan: Plan, samples: int | None) -> tuple[Accuracy | QbenchError, float, str]:
    """Runs in a worker; the last is its address."""
    from distributed import get_worker

    return (*evaluate(station, plan, samples), get_worker().address)


def collected(client: Client, station: Station, data: Dataset, progress: Progress = silent) -> Statistics:
    """Statistics of `data`, which the station opens too, in one shard per worker and thread: the same numbers as in one pass.

    Raises what a worker raised: NonFinite, DataError and their like.
    """
    from distributed import as_completed

    slots = sum(client.nthreads().values())
    ends = np.linspace(0, len(data), min(slots, len(data)) + 1).round().astype(int).tolist()
    there: Any = client.scatter(station, broadcast=True)
    futures = {client.submit(collect_shard, there, a, b, pure=False): a for a, b in pairwise(ends)}
    parts: dict[int, Statistics] = {}
    for future in as_completed(futures):
        found = future.result()
        if isinstance(found, QbenchError):
            raise found
        parts[futures[future]] = found
        progress("statistics, shards", len(parts), len(futures))
    total = reduce(merge, (parts[a] for a in sorted(parts)))
    return replace(total, sources=(Source(data.key, data.name, total.samples),))


@contextmanager
def connected(executor: Executor) -> Iterator[Client]:
    """A client of the scheduler; workers of one's own end with it. Raises InputError where Dask is missing, ToolError when nobody answers."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError("--executor needs Dask: pip install 'qbench[dask]'") from error
    if not executor.address:
        with LocalCluster(n_workers=executor.workers, threads_per_worker=executor.threads, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster, \
                Client(cluster) as client:
            yield client
        return
    try:
        client = Client(executor.address, timeout=ANSWER_S)
    except (OSError, TimeoutError) as error:
        raise ToolError(f"no Dask scheduler answers at {executor.address}: start one with `dask scheduler`, and workers with "
                        f"`dask worker {executor.address} --nthreads 1`") from error
    with client:
        if not client.scheduler_info()["workers"]:
            raise ToolError(f"the Dask scheduler at {executor.address} has no worker: start some with `dask worker {executor.address} --nthreads 1`")
        yield client
