"""What a page in a browser may send: without keys the browser of somebody who reads another page is no user.

Two things keep it apart. A page of a name that was bound anew to this machine (DNS rebinding) names itself in `Host`; a page of
another site that posts here (cross-site request forgery) is told of by the browser in `Sec-Fetch-Site`, which no script can set
(https://www.w3.org/TR/fetch-metadata/), and by browsers before 2023 in `Origin`. What a program sends has neither.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from autoconfig.api.problems import RefusedError, problem
from autoconfig.api.store import LOOPBACK
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBES = ("/healthz", "/readyz")
"""Asked under the address of a pod, and as long as the process lives; they say nothing but a status."""
EVERY_ADDRESS = ("0.0.0.0", "::")
OWN_PAGE = frozenset({"same-origin", "none"})
"""`none`: typed in, a bookmark."""


def known_hosts(host: str, more: Iterable[str] = ()) -> tuple[str, ...]:
    """The names under which a service without keys is asked: loopback, the address that it listens on (of all addresses: this
    machine's name), and `more`. IPv6 addresses stand in brackets, as in `Host`."""
    own = socket.gethostname() if host in EVERY_ADDRESS else host
    return tuple(f"[{name}]" if ":" in name else name.lower() for name in (*LOOPBACK, own, *more))


class KnownHosts:
    """Refuses requests under other names than `hosts` (421), but for the probes (plain ASGI middleware)."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES or await self._knows(scope, receive):
            await self.app(scope, receive, send)
            return
        text = f"without keys this service is asked as {', '.join(dict.fromkeys(self.hosts))}; --allow-host adds a name"
        await problem(421, text, headers={"Connection": "close"})(scope, receive, send)

    async def _knows(self, scope: Scope, receive: Receive) -> bool:
        """Starlette's own reading of Host."""
        known = False

        async def answer(_: Scope, __: Receive, ___: Send) -> None:
            nonlocal known
            known = True

        async def nowhere(_: Message) -> None:
            pass

        await TrustedHostMiddleware(answer, [*self.hosts], www_redirect=False)(scope, receive, nowhere)
        return known


def refuse_foreign_pages(request: HttpRequest, names: Iterable[str] = ()) -> None:
    """Raises RefusedError (403) where a page of another site sends this; `names`: of proxies that put another Host in place."""
    fetched, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if fetched is not None:
        foreign = fetched.strip().lower() not in OWN_PAGE
    else:
        foreign = origin is not None and not _is_own(origin, request.headers.get("host", ""), names)
    if foreign:
        said = repr(origin or fetched)[:80]
        text = f"a page of another site sends this ({said}): open this service's own page, or ask without a browser"
        raise RefusedError(403, text)


def _is_own(origin: str, host: str, names: Iterable[str]) -> bool:
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    return bool(name) and (parts.netloc.lower() == host.lower() or name in {one.strip("[]") for one in names})
