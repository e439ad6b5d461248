"""The page's FastAPI app, which Airflow mounts at /pumphouse. Every answer with a fact in it asks who wants to know.

Airflow does not guard an app of a plugin: each route here takes its user from Airflow's own log-in, and shows the
installations that the user may read (`known`). Nothing here writes: the browser asks Airflow's API for a restore, and
this app only whether the form can be started (`asked`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from anyio import CapacityLimiter, to_thread
from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from binlog_airflow.page import asked, shown
from binlog_airflow.page.known import Form, Known, known
from binlog_airflow.page.looks import Looks, Seen
from pumphouse.status.findings import ago
from pumphouse.status.headline import Headline, clock, headline

_STATIC = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "tile.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
# Of its own: those of Airflow's API are not kept waiting by an archive that does not answer.
_THREADS = 8
# Of forms and, apart, of searches, which may take longer: no look waits for them. So many searches may wait.
_ASKING = 2
_WAITING = 4
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def _visible(user: GetUserDep) -> list[Known]:
    """The installations that the user may see; 403 where there is none."""
    found = known(user)
    if not found:
        raise HTTPException(403, "you may not read the DAGs of any installation of Pumphouse")
    return found


Visible = Annotated[list[Known], Depends(_visible)]


def _chosen(visible: list[Known], cluster: str) -> Known:
    found = next((each for each in visible if each.prefix == cluster), None)
    if found is None and cluster:
        raise HTTPException(404, "there is no such installation")
    return found or visible[0]


def _restorable(visible: list[Known], cluster: str) -> tuple[Known, Form]:
    """An installation of which the user may start a restore, and the form; what a search says is for them alone."""
    chosen = _chosen(visible, cluster)
    if chosen.form is None:
        raise HTTPException(403, "you may not start a restore of this installation")
    return chosen, chosen.form


def make() -> FastAPI:  # noqa: C901 - a function for each route
    """The app."""
    app = FastAPI(title="Pumphouse", docs_url=None, redoc_url=None, openapi_url=None)
    looks, threads = Looks(), CapacityLimiter(_THREADS)
    checking, searching = CapacityLimiter(_ASKING), CapacityLimiter(_ASKING)
    pages = Environment(loader=PackageLoader("binlog_airflow.page", "."), autoescape=True, undefined=StrictUndefined)
    pages.globals.update(ago=ago, clock=clock)

    async def looked(answer: Callable[[], str]) -> str:
        return await to_thread.run_sync(answer, limiter=threads)

    @app.middleware("http")
    async def guarded(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await go_on(request)
        response.headers.update(_HEADERS)
        return response

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        """A browser is sent to log in; what it may not see is said in one sentence."""
        if error.status_code == 401 and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(get_auth_manager().get_url_login(next_url=str(request.url)), 303)
        text = pages.get_template("refused.html").render(status=error.status_code, why=error.detail)
        return HTMLResponse(text, error.status_code)

    @app.get("/")
    async def page(visible: Visible, cluster: str = "", span: str = "all") -> HTMLResponse:
        return HTMLResponse(await looked(lambda: _page(visible, cluster, span)))

    @app.get("/tile")
    async def tile(visible: Visible) -> HTMLResponse:
        return HTMLResponse(await looked(lambda: _tile(visible)))

    @app.get("/status.json")
    async def status(visible: Visible, cluster: str = "") -> Response:
        return Response(await looked(lambda: _json(visible, cluster)), media_type="application/json")

    @app.post("/check")
    async def check(visible: Visible, conf: Annotated[asked.Conf, Body()], cluster: str = "") -> dict[str, str]:
        chosen, form = _restorable(visible, cluster)
        here = chosen.here
        seen = await to_thread.run_sync(looks.at, here, limiter=threads)
        if seen.status is None:
            return asdict(asked.Checked(refused=seen.problem))
        if checking.statistics().tasks_waiting >= _WAITING:
            return asdict(asked.Checked(refused="others are asking: try again in some seconds"))
        archive = seen.status.archive
        return asdict(await to_thread.run_sync(lambda: asked.check(here, form, conf, archive), limiter=checking))

    @app.get("/search")
    async def search(visible: Visible, wanted: Annotated[asked.Wanted, Query()]) -> HTMLResponse:
        chosen, _ = _restorable(visible, wanted.cluster)
        here, due = chosen.here, chosen.snapshot_due
        if searching.statistics().tasks_waiting < _WAITING:
            found = await to_thread.run_sync(lambda: asked.search(here, wanted, due), limiter=searching)
        else:
            found = asked.Searched(refused="others are searching: try again in some seconds")
        return HTMLResponse(pages.get_template("found.html").render(found=found))

    @app.get("/{name}")
    def static(name: str) -> Response:
        if name not in _STATIC:
            raise HTTPException(404, "there is no such page")
        return Response(files("binlog_airflow.page").joinpath(name).read_bytes(), media_type=_STATIC[name])

    def _page(visible: list[Known], cluster: str, span: str) -> str:
        return pages.get_template("page.html").render(_told(visible, _chosen(visible, cluster), span))

    def _tile(visible: list[Known]) -> str:
        return pages.get_template("tile.html").render(found=[_told(visible, each, "all") for each in visible])

    def _json(visible: list[Known], cluster: str) -> str:
        seen = looks.at(_chosen(visible, cluster).here)
        return json.dumps({"problem": seen.problem} if seen.status is None else seen.status.to_dict())

    def _told(visible: list[Known], chosen: Known, span: str) -> dict[str, Any]:
        seen: Seen = looks.at(chosen.here)
        status, span = seen.status, span if span in shown.SPANS else "all"
        found: dict[str, Any] = {
            "visible": visible,
            "chosen": chosen,
            "spans": list(shown.SPANS),
            "span": span,
            "kinds": list(asked.KINDS),
            "seen": seen,
            "status": status,
            "headline": Headline(mood="bad", word="Not known", says=(seen.problem,)),
        }
        if status is None:
            return found
        return found | {
            "headline": headline(status, seen.past),
            "line": shown.line(status, seen.past, shown.SPANS[span]),
            "steps": shown.steps(status, chosen.dags),
            "pumps": shown.pumps(status.pumps),
            "targets": shown.targets(status),
        }

    return app
