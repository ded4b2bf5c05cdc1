"""A small client of `autoconfig serve` for schedulers and job-submit scripts. No package that is not ours.

    client = Client("http://planner:8000", key="ac_...")
    found = client.plans(model="175b", gpus=512, gpu="h100-sxm-80gb")
    files = client.export(found.plans[0].short, model="175b", gpus=512, gpu="h100-sxm-80gb")

Fields of a question are the command line's long options with underscores (docs/service.md, `GET /openapi.json`). Where the
service does not answer or is busy it is asked again, after the seconds of its `Retry-After` where it says them; a search is
submitted under an Idempotency-Key, so that this is safe.
"""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from autoconfig.planning.request_fields import SEARCH
from autoconfig.planning.resolve import field_names

ATTEMPTS = 4
WAIT_SECONDS = 0.5
"""Before the second attempt; twice as long before each further one."""
AGAIN = frozenset({429, 502, 503, 504})
OPEN_STATES = ("queued", "running")
POLL_SECONDS = 1.0


class ServiceError(Exception):
    """The service refused, or cannot be reached (status 0). Fields as in its problem document (RFC 9457)."""

    def __init__(
        self, status: int, detail: str, document: Mapping[str, Any] | None = None, retry_seconds: float | None = None
    ) -> None:
        super().__init__(detail if status == 0 else f"{status}: {detail}")
        self.status, self.detail, self.retry_seconds = status, detail, retry_seconds
        self.document: Mapping[str, Any] = MappingProxyType(dict(document or {}))

    @property
    def field(self) -> str | None:
        """The field of the question that is to blame."""
        return self.document.get("field")

    @property
    def nearest(self) -> str | None:
        """The nearest valid value."""
        return self.document.get("nearest")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One ranked plan."""

    short: str
    """As `export` and `autoconfig explain` take it: `tp=8,pp=4,...`."""
    rank: int
    tie_group: int
    """Plans of one group are as fast as far as the model can tell."""
    step_seconds: float
    step_seconds_p5: float
    step_seconds_p95: float
    tokens_per_second_per_gpu: float
    peak_gib: float
    """Of the worst pipeline stage."""
    limit_gib: float
    fit_probability: float
    body: Mapping[str, Any]
    """Everything that the service says of it (autoconfig/schemas/search.schema.json)."""


@dataclass(frozen=True, kw_only=True)
class Plans:
    """An answer of `POST /v1/plans`; `plans` is empty where nothing fits (`nearest_miss` of the body) or is legal
    (`nothing_legal`: why, and the nearest counts and batches)."""

    plans: tuple[Plan, ...]
    calibration: str
    """The version that made the predictions."""
    body: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Search:
    """A durable search."""

    id: str
    state: str
    """`queued`, `running`, `done`, `failed` or `cancelled`."""
    problem: Mapping[str, Any] | None
    """Why it failed."""
    body: Mapping[str, Any]

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state not in OPEN_STATES


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """An answer of `POST /v1/measurements`."""

    accepted: int
    measurements: int
    """Of this key, all together."""
    left_out: tuple[Mapping[str, str], ...]
    """`id` and `reason` of the runs that cannot calibrate."""
    calibration: str
    """The version that answers to this key name from now on."""


class Client:
    """Asks one service. Raises ServiceError; every method may."""

    def __init__(self, url: str, key: str | None = None, *, timeout_seconds: float = 60.0) -> None:
        """`url`: http://HOST:PORT of the service; `key`: an API key, where it asks for one."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"service {url!r}: give http://HOST:PORT")
        self._url, self._key, self._timeout = url.rstrip("/"), key, timeout_seconds

    def plans(self, **question: Any) -> Plans:
        """The best plans by formula."""
        return _plans(self._ask("POST", "/v1/plans", question))

    def scaling(self, **question: Any) -> Mapping[str, Any]:
        """Throughput, cost and days over GPU counts and types."""
        return self._ask("POST", "/v1/scaling", question)

    def budget(self, **question: Any) -> Mapping[str, Any]:
        """What money and days train; `best` is null where nothing is possible (`instead`)."""
        return self._ask("POST", "/v1/budget", question)

    def post_training(self, **question: Any) -> Mapping[str, Any]:
        """The quickest placements of a step of post-training; `placements` is empty where none fits (`nearest`, `remedy`)."""
        return self._ask("POST", "/v1/post-training", question)

    def model(self, model: str | Mapping[str, Any], like: str | None = None) -> Mapping[str, Any]:
        """The parameters of a model, by name, size or config.json."""
        return self._ask("POST", "/v1/model", {"model": model, "like": like})

    def check(self, text: str, **question: Any) -> Mapping[str, Any]:
        """A launch script, argument list or plan.json of your own."""
        return self._ask("POST", "/v1/check", {"text": text, **question})

    def diagnose(self, files: Mapping[str, str], plan: str | None = None, **question: Any) -> Mapping[str, Any]:
        """Why a run is slower than it should be: `autoconfig diagnose`, of texts by name."""
        return self._ask("POST", "/v1/diagnose", {"files": {**files}, "plan": plan, **question})

    def convert(self, text: str, format: str, **question: Any) -> Mapping[str, Any]:
        """The plan of a file of your own as a file of another launcher (`text`), and what that cannot say (`unsaid`)."""
        return self._ask("POST", "/v1/convert", {"text": text, "format": format, **question})

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Predictions of a table of runs."""
        return self._ask("POST", "/v1/predict", {"rows": [dict(row) for row in rows]})

    def batch(self, questions: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Mapping[str, Any] | ServiceError]:
        """Answers to up to 256 questions in their order, each as (kind, fields): ("plans", {"model": "175b", "gpus": 512}). The
        kind is the last part of the question's own path; what cannot be answered is a ServiceError in its place."""
        asked = [{"kind": kind, "question": _given(question)} for kind, question in questions]
        found = self._ask("POST", "/v1/batch", {"questions": asked})["answers"]
        return [one["answer"] if one["status"] == 200 else _problem(one["status"], one["problem"]) for one in found]

    def export(self, plan: str, **question: Any) -> dict[str, str]:
        """Launch scripts and plan.json of a plan of this question: file name -> text. What chose the plan is left out."""
        kept = {name: value for name, value in question.items() if name not in field_names(SEARCH)}
        return dict(self._ask("POST", "/v1/export", {"plan": plan, **kept})["files"])

    def submit(self, *, idempotency_key: str | None = None, **question: Any) -> Search:
        """Accept a search; `profile=True` measures. The same key and question again is the same search."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return _search(self._ask("POST", "/v1/searches", question, headers))

    def search(self, identity: str) -> Search:
        """How a search is doing."""
        return _search(self._ask("GET", _path(identity)))

    def cancel(self, identity: str) -> Search:
        """End a search; one that is over stays as it is."""
        return _search(self._ask("DELETE", _path(identity)))

    def wait(
        self,
        identity: str,
        *,
        seconds: float | None = None,
        every: float = POLL_SECONDS,
        sleep: Callable[[float], object] = time.sleep,
    ) -> Search:
        """The search when it is over. Raises TimeoutError after `seconds`."""
        until = None if seconds is None else time.monotonic() + seconds
        while not (found := self.search(identity)).over:
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"search {identity} is {found.state} after {seconds:g} s; it goes on in the service")
            sleep(every)
        return found

    def search_plans(self, identity: str) -> Plans:
        """The answer of a search by formula that is done."""
        return _plans(self.search_answer(identity))

    def search_answer(self, identity: str) -> Mapping[str, Any]:
        """The answer of any search that is done; one that measured says what was measured."""
        return self._ask("GET", f"{_path(identity)}/plans")

    def search_export(self, identity: str, plan: str | None = None) -> dict[str, str]:
        """Launch scripts and plan.json of a search that is done: of its best plan, or of `plan`."""
        query = "" if plan is None else "?" + urllib.parse.urlencode({"plan": plan})
        return dict(self._ask("GET", f"{_path(identity)}/export{query}")["files"])

    def measurements(self, rows: Sequence[Mapping[str, Any]]) -> Accepted:
        """Bring measured runs back: from now on they calibrate the answers to this key. The same `id` again replaces a run."""
        found = self._ask("POST", "/v1/measurements", {"rows": [dict(row) for row in rows]})
        kept = {name: found[name] for name in ("accepted", "measurements", "calibration")}
        return Accepted(**kept, left_out=tuple(found["left_out"]))

    def measured(self) -> Iterator[Mapping[str, Any]]:
        """The runs of this key as they were brought, oldest first: `id`, `created`, `run`."""
        cursor: str | None = "0"
        while cursor is not None:
            found = self._ask("GET", f"/v1/measurements?cursor={cursor}")
            yield from found["measurements"]
            cursor = found["next"]

    def remove_measurements(self, *ids: str, every: bool = False) -> int:
        """Forget runs of this key by their ids, or every one; how many there were."""
        query = urllib.parse.urlencode([("all", "true")] if every else [("id", one) for one in ids])
        return int(self._ask("DELETE", f"/v1/measurements?{query}")["removed"])

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, more: Mapping[str, str] | None = None
    ) -> Mapping[str, Any]:
        headers = {"Accept": "application/json", **(more or {})}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data = json.dumps(_given(body), allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        waits = [WAIT_SECONDS * 2**attempt for attempt in range(ATTEMPTS - 1)]
        patience = self._timeout
        while True:
            try:
                return self._once(request)
            except ServiceError as error:
                if error.status and error.status not in AGAIN:
                    raise
                asked_for = error.retry_seconds
                if asked_for is None and waits:
                    wait = waits.pop(0)
                elif asked_for is not None and asked_for <= patience:
                    wait = asked_for * random.uniform(1.0, 1.25)  # those who were refused together do not come again together
                    patience -= wait
                else:
                    raise
            time.sleep(wait)

    def _once(self, request: urllib.request.Request) -> Mapping[str, Any]:
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # the scheme was checked
                raw = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error.code, error.read(), error.headers.get("Retry-After", "")) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ServiceError(0, f"{self._url} does not answer: {reason}") from None
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            raise ServiceError(0, f"{self._url} answers with something else than JSON; is this the service?") from None
        if not isinstance(found, dict):
            raise ServiceError(0, f"{self._url} answers with something else than an object; is this the service?")
        return found


def _path(identity: str) -> str:
    return f"/v1/searches/{urllib.parse.quote(identity, safe='')}"


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _problem(status: int, document: Mapping[str, Any]) -> ServiceError:
    return ServiceError(status, str(document.get("detail", "")), document)


def _refused(status: int, raw: bytes, retry: str) -> ServiceError:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        document = {}
    detail = str(document.get("detail") or raw[:200].decode(errors="replace"))
    return ServiceError(status, detail, document, float(retry) if retry.isascii() and retry.isdigit() else None)


def _plans(body: Mapping[str, Any]) -> Plans:
    found = [
        Plan(
            **{name: row[name] for name in ("short", "rank", "tie_group", "step_seconds", "tokens_per_second_per_gpu")},
            **{name: row["confidence"][name] for name in ("step_seconds_p5", "step_seconds_p95", "fit_probability")},
            **{name: row["memory"][name] for name in ("peak_gib", "limit_gib")},
            body=row,
        )
        for row in body["plans"]
    ]
    return Plans(plans=tuple(found), calibration=body["calibration"], body=body)


def _search(body: Mapping[str, Any]) -> Search:
    return Search(id=body["id"], state=body["state"], problem=body["problem"], body=body)
