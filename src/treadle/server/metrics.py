"""What `GET /metrics` says, in the text format of Prometheus.

Nothing is counted for it twice: the core has its numbers (`runtime/meter.py`), the bus and the store have theirs, and
requests are counted here, by route. They are put together when somebody asks. What has to be asked of the store is
kept for a few seconds, so that many who ask cost it no more than one.

No label holds an id. Workflows, kinds and pools are bounded, everything else is a word of ours.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from treadle.bus.data import DEFAULT_POOL, RESIDENT
from treadle.engine import Engine
from treadle.kernel.model import Status
from treadle.runtime.meter import OTHER, SHORT_S, Histogram, LabelNames
from treadle.store.figures import StoreNumbers

from .workers import Workers

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
_KEPT_S: Final = 2.0
Labels = TypeVar("Labels", bound=tuple[str, ...])
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpMeter:
    """Requests, by route, method and status; how long each route takes to begin its answer."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.seconds: dict[str, Histogram] = {}

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """`route` is one of ours, with names in place of values, or empty."""
        route = route or OTHER
        self.requests[route, method if method in _METHODS else OTHER, str(status)] += 1
        if (found := self.seconds.get(route)) is None:
            found = self.seconds[route] = Histogram(SHORT_S)
        found.observe(seconds)


class Metrics:
    """The numbers of one server."""

    def __init__(self, engine: Engine, workers: Workers) -> None:
        self._engine = engine
        self._workers = workers
        self.http = HttpMeter()
        self._stored: tuple[float, StoreNumbers] | None = None

    async def text(self, streams: int) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Found([*self._counted(), *self._here(streams), *_kept(await self._numbers())]))
        return generate_latest(registry)

    async def _numbers(self) -> StoreNumbers:
        now = time.monotonic()
        if self._stored is None or now - self._stored[0] >= _KEPT_S:
            now_ns = self._engine.clock.now_ns()
            self._stored = (now, await self._engine.read(lambda reads: reads.numbers(now_ns), long=True))
        return self._stored[1]

    def _counted(self) -> Iterator[Metric]:
        meter = self._engine.meter
        yield _counts(
            "runs",
            "Runs that began, ended or stalled, by what became of them",
            ("workflow", "status"),
            meter.runs,
        )
        yield _counts("steps", "Intents that settled", ("kind", "status"), meter.steps)
        yield _histograms(
            "step_seconds", "From the opening of an intent to its end", "kind", meter.step_seconds
        )
        yield _total("records", "Records that were decided here", meter.records)
        yield _histogram("commit_seconds", "Commits, as the store takes them", meter.commit_seconds)
        yield _histogram("commit_records", "Records in a commit", meter.commit_records)
        failed = {(code,): count for code, count in dict(meter.commits_failed).items()}
        yield _counts("commits_failed", "Commits that the store did not take", ("code",), failed)
        yield _total(
            "stale_receipts", "Receipts for intents that were not open any more", meter.stale_receipts
        )
        yield _histogram("timer_lag_seconds", "How late timers fired", meter.timer_lag)
        yield _histogram("schedule_lag_seconds", "How late schedules ticked", meter.schedule_lag)
        http = self.http
        yield _counts("http_requests", "Requests", ("route", "method", "status"), http.requests)
        yield _histograms("http_seconds", "Until an answer begins", "route", http.seconds)
        yield _total("leases_expired", "Leases of silent workers that ran out", self._workers.expired)

    def _here(self, streams: int) -> Iterator[Metric]:
        """How this server stands now."""
        engine, bus = self._engine, self._engine.bus
        waiting, held = Counter(bus.waiting()), Counter[str]()
        for work, in_hand in bus.works():
            held[work.intent.pool or DEFAULT_POOL] += in_hand
        yield _gauges("queue", "Work that waits for a worker", "pool", _bounded(waiting))
        yield _gauges("work_in_hand", "Work that a worker has", "pool", _bounded(held))
        leases = sum(count for worker, count in bus.held_by().items() if worker != RESIDENT)
        yield _gauge("leases", "Work that is leased to workers elsewhere", leases)
        yield _gauge("work_unavailable", "Work that no worker can do", len(engine.unavailable()))
        serving = Counter(
            pool
            for row in self._workers.rows()
            if row["status"] == "live"
            for pool in row["pools"] or [DEFAULT_POOL]
        )
        yield _gauges("workers", "Live workers that serve a pool", "pool", _bounded(serving))
        yield _gauge("hot_runs", "Runs in memory", engine.runs_in_memory)
        yield _gauge("shards", "Shards that are decided here", engine.shards["held"])
        yield _gauge("store_shards", "Shards of the store", engine.shards["of"])
        yield _gauge(
            "members", "Engines that share the store, as this one sees them", len(engine.members()) or 1
        )
        yield _gauge("streams", "Open event streams", streams)


def _kept(found: StoreNumbers) -> Iterator[Metric]:
    """What the store holds, whoever decides it: the same at every server of a store."""
    # Also those that there are none of: no data is no zero.
    runs = dict.fromkeys(get_args(Status), 0) | found.runs
    yield _gauges("runs", "Runs in the store", "status", runs)
    yield _gauge("tasks_open", "Tasks that wait for people", found.tasks)
    yield _gauge("timers", "Timers and deadlines that are armed", found.timers)
    yield _gauge("timers_due", "Those of them that are due and have not fired", found.timers_due)
    yield _gauge("dead_letters", "What workers sent back and nobody could use", found.dead_letters)
    yield _gauge("inbox", "Messages between processes that nobody has read", found.inbox)
    yield _gauge("store_bytes", "The database on disk, without payloads in files", found.bytes)


class _Found(Collector):
    def __init__(self, found: list[Metric]) -> None:
        self._metrics = found

    def collect(self) -> list[Metric]:
        return self._metrics


def _bounded(counts: Mapping[str, int]) -> dict[str, int]:
    """The first pools by name; those beyond are one."""
    names, found = LabelNames(), Counter[str]()
    for pool in sorted(counts):
        found[names.label(pool)] += counts[pool]
    return found


def _counts(name: str, help: str, labels: Sequence[str], found: Mapping[Labels, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"treadle_{name}", help, labels=labels)
    # Copied at once: the core's thread goes on counting.
    for values, count in sorted(dict(found).items()):
        family.add_metric(values, count)
    return family


def _total(name: str, help: str, count: int) -> CounterMetricFamily:
    return CounterMetricFamily(f"treadle_{name}", help, value=count)


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"treadle_{name}", help, value=value)


def _gauges(name: str, help: str, label: str, found: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"treadle_{name}", help, labels=[label])
    for value, count in sorted(found.items()):
        family.add_metric([value], count)
    return family


def _histogram(name: str, help: str, found: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"treadle_{name}", help, buckets=_buckets(found), sum_value=found.sum)


def _histograms(name: str, help: str, label: str, found: Mapping[str, Histogram]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"treadle_{name}", help, labels=[label])
    for value, histogram in sorted(dict(found).items()):
        family.add_metric([value], _buckets(histogram), histogram.sum)
    return family


def _buckets(found: Histogram) -> list[tuple[str, float]]:
    """Each bucket with all below it, as Prometheus wants them."""
    bounds = [*(f"{bound:g}" for bound in found.bounds), "+Inf"]
    counts = list(found.counts)
    return [(bound, sum(counts[: at + 1])) for at, bound in enumerate(bounds)]
