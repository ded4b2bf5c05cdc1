"""What /metrics shows, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.latency = Histogram(
            "autoconfig_request_seconds",
            "Seconds from request to response.",
            ("route", "status"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.cached = Counter("autoconfig_answers_cached", "Answers that came from the cache.", registry=self.registry)
        self.searches = Gauge("autoconfig_searches", "Searches by state.", ("state",), registry=self.registry)
        self.trials = Gauge(
            "autoconfig_trials", "Trials of searches that measure, by how they ended.", ("outcome",), registry=self.registry
        )
        self.waiting = Gauge("autoconfig_answers_waiting", "Questions being computed or queued.", registry=self.registry)
