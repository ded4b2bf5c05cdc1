"""What a browser may send: the service's own page everything, pages of other sites nothing that does work."""

import contextlib
from collections.abc import Iterator

import httpx
import pytest
from autoconfig.api.browser import PROBES, known_hosts, refuse_foreign_pages
from autoconfig.api.problems import RefusedError
from starlette.requests import Request

from tests.api.conftest import Running

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("api")]
QUESTION = {"model": "1.7b", "gpus": 8, "gpu": "h100-sxm-80gb"}
FOREIGN: list[dict[str, str]] = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://[evil"},
]


@pytest.fixture(scope="module")
def address(service: Running) -> str:
    return service.url.removeprefix("http://")


def operations(http: httpx.Client) -> Iterator[tuple[str, str, bool]]:
    """(method, path, whether it does work) of every route."""
    for path, found in http.get("/openapi.json").json()["paths"].items():
        for method, operation in found.items():
            yield (
                method.upper(),
                path.replace("{search_id}", "0").replace("{name}", "style.css"),
                operation.get("security") != [],
            )


def test_foreign_pages_are_refused_on_every_route_that_does_work(http):
    found = [*operations(http)]
    assert sum(works for *_, works in found) >= 20 > len(found) - sum(works for *_, works in found) >= 5
    for headers in FOREIGN:
        for method, path, works in found:
            answer = http.request(method, path, headers=headers)
            assert (answer.status_code == 403) == works, (method, path, headers, answer.text)
    assert http.get("/v1/searches").json()["searches"] == []


def test_the_page_itself_and_programs_are_not_foreign(http, address):
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{address}"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": f"http://{address}"},
    ):
        assert http.post("/v1/plans", json=QUESTION, headers=headers).status_code == 200, headers


def test_a_link_to_the_page_is_followed(http):
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert http.get("/", headers=headers).status_code == 200


def test_a_body_without_a_content_type_is_refused(http):
    """As fetch() sends a Blob without a type: no preflight asks whether it may."""
    for path in ("/v1/plans", "/v1/searches", "/v1/measurements"):
        assert http.post(path, content=b'{"model": "1.7b", "gpus": 8, "gpu": "h100-sxm-80gb"}').status_code == 415, path
    assert http.get("/v1/searches").json()["searches"] == []


def test_other_names_than_its_own_are_refused_without_keys(http, address):
    port = address.rsplit(":", 1)[1]
    for name in ("127.0.0.1", f"127.0.0.1:{port}", "localhost", f"LOCALHOST:{port}", "[::1]", f"[::1]:{port}"):
        assert http.get("/v1/gpus", headers={"Host": name}).status_code == 200, name
    for name in ("rebind.example", f"rebind.example:{port}", "127.0.0.1.evil.example", "evil@127.0.0.1", "localhost.", ""):
        answer = http.get("/v1/gpus", headers={"Host": name})
        assert answer.status_code == 421, name
        assert answer.headers["content-type"] == "application/problem+json" and "--allow-host" in answer.text
        assert http.get("/", headers={"Host": name}).status_code == 421, name
        for probe in PROBES:
            assert http.get(probe, headers={"Host": name}).status_code == 200, name


def test_no_answer_repeats_a_foreign_host(services):
    """With keys any name is answered, as behind a proxy."""
    with services("--workers", "1", "--search-workers", "0", "--keys").client() as client:
        for path in ("/v1/searches/", "/v1/plans/", "/docs/", "/page/", "/v1/gpus"):
            answer = client.get(path, headers={"Host": "evil.example"}, follow_redirects=False)
            assert answer.status_code in (401, 404) and "evil.example" not in str(answer.headers) + answer.text, path


def test_hosts_of_an_address():
    assert known_hosts("127.0.0.1") == ("127.0.0.1", "[::1]", "localhost", "127.0.0.1")
    assert known_hosts("fe80::1", ["Planner.example"])[-2:] == ("[fe80::1]", "planner.example")
    assert "0.0.0.0" not in known_hosts("0.0.0.0")


@pytest.mark.parametrize(("names", "origin", "passes"), [
    ((), "https://planner.example", False),
    (("planner.example",), "https://planner.example", True),
    (("planner.example",), "https://planner.example:8443", True),
    (("planner.example",), "https://evil.example", False),
    (("planner.example",), "https://planner.example.evil.example", False),
])  # fmt: skip
def test_a_proxy_that_hides_its_name_is_allowed_by_name(names, origin, passes):
    scope = {"type": "http", "headers": [(b"host", b"autoconfig:8000"), (b"origin", origin.encode())]}
    with contextlib.nullcontext() if passes else pytest.raises(RefusedError):
        refuse_foreign_pages(Request(scope), names)
