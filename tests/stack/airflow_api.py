"""A small client of Airflow's REST API, as the demo and its tests use it."""

from __future__ import annotations

import http
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tests.stack.supervisor import StackError

_DONE = {"success", "failed"}
# How long a question stands before its first answer; at the n-th asking n times that.
_READ_S = 5.0
# Loopback only: a proxy of the environment must not see it.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Refused(StackError):
    """Airflow refused a call; ``code`` is the HTTP status."""

    code: int


class AirflowApi:
    """Calls ``/api/v2``; takes a token on first use and a new one when it ran out."""

    def __init__(self, url: str, user: str, password: str, *, timeout_s: float = 30.0) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self._login = {"username": user, "password": password}
        self._token = ""

    def health(self) -> dict[str, Any] | None:
        """State of each part, None while the api-server does not answer."""
        with suppress(OSError, ValueError):
            return dict(self._request("GET", "/api/v2/monitor/health", token=False))
        return None

    def dags(self) -> list[str]:
        """Ids of the parsed DAGs."""
        return [dag["dag_id"] for dag in self.call("GET", "/dags?limit=100")["dags"]]

    def import_errors(self) -> list[str]:
        """Texts of DAG files that cannot be read."""
        return [error["stack_trace"] for error in self.call("GET", "/importErrors")["import_errors"]]

    def wait_for_dags(self, wanted: set[str], *, timeout_s: float = 300.0) -> None:
        """Wait until these DAGs are parsed."""
        limit = time.monotonic() + timeout_s
        while not wanted <= set(self.dags()):
            errors = self.import_errors()
            if errors:
                raise StackError(f"a DAG file cannot be read:\n{errors[0][-1500:]}")
            if time.monotonic() > limit:
                raise StackError(f"Airflow has not parsed {', '.join(sorted(wanted - set(self.dags())))}")
            time.sleep(0.5)

    def unpause(self, dag_id: str, *, paused: bool = False) -> None:
        """Unpause (or pause) a DAG."""
        self.call("PATCH", f"/dags/{dag_id}?update_mask=is_paused", {"is_paused": paused})

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run by hand; returns its id."""
        # An id of ours: whether a call that was not answered in time started the run shows when it is repeated.
        run_id = f"manual__{uuid.uuid4()}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": conf or {}}
        self._create(f"/dags/{dag_id}/dagRuns", body)
        return run_id

    def runs(self, dag_id: str, *, limit: int = 100) -> list[dict[str, Any]]:
        """Runs of a DAG, the oldest first: ``dag_run_id, state, run_type, data_interval_end, …``."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns?order_by=id&limit={limit}")
        return list(found["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Task instances of a run: ``task_id, map_index, state, try_number, …``."""
        found = self.call("GET", f"/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances?limit=100")
        return list(found["task_instances"])

    def result(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1, key: str = "return_value") -> Any:
        """What a task returned, or left under a key; None when it left nothing."""
        path = f"/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        try:
            value = self.call("GET", f"{path}?map_index={map_index}&deserialize=false")["value"]
        except StackError:
            return None
        if isinstance(value, str):
            with suppress(ValueError):
                return json.loads(value)
        return value

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int, *, map_index: int = -1) -> str:
        """The log of a try, as text."""
        path = f"/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances/{task_id}/logs/{try_number}"
        try:
            content = self.call("GET", f"{path}?map_index={map_index}&full_content=true")["content"]
        except StackError as error:
            return str(error)
        return "\n".join(map(_log_line, content))

    def backfill(self, dag_id: str, start: str, end: str, conf: dict[str, Any], **more: Any) -> int:
        """Create a backfill over [start, end] (ISO times, both inclusive), with ``more`` of its fields; returns its id."""
        body = {
            "dag_id": dag_id,
            "from_date": start,
            "to_date": end,
            "dag_run_conf": conf,
            "reprocess_behavior": "none",
            "max_active_runs": 1,
            "run_backwards": False,
            **more,
        }
        made = self._create("/backfills", body)
        if made is None:
            found = self.call("GET", f"/backfills?dag_id={dag_id}&limit=100")["backfills"]
            mine = [int(each["id"]) for each in found if each["dag_run_conf"] == conf]
            if not mine:
                raise StackError(f"another backfill of {dag_id} is running: wait for it, or end it in Airflow")
            return max(mine)
        return int(made["id"])

    def wait_for_run(
        self, dag_id: str, run_id: str, *, timeout_s: float, asked: Callable[[str, str], str] | None = None
    ) -> dict[str, Any]:
        """Wait until a run has ended; returns it.

        A task that asks somebody gets what ``asked(task_id, subject)`` says, an option by its name, as by the buttons
        under Required Actions, and in each field what its title says to type. The answer waits for the process that asked to end, as a reader of the question would:
        LocalExecutor takes a task that is answered before that for killed, and Airflow asks again.
        """
        limit = time.monotonic() + timeout_s
        asking: dict[tuple[str, int], float] = {}
        while True:
            found = dict(self.call("GET", f"/dags/{dag_id}/dagRuns/{_quote(run_id)}"))
            if found["state"] in _DONE:
                return found
            tasks = self.tasks(dag_id, run_id)
            for task in tasks:
                # Before 3.3 a trigger waits for the answer.
                if asked and (
                    task["state"] == "awaiting_input" or (task["task_id"], task["state"]) == ("approve", "deferred")
                ):
                    attempt = int(task["try_number"])
                    since = asking.setdefault((task["task_id"], attempt), time.monotonic())
                    if time.monotonic() < since + _READ_S * attempt:
                        continue
                    path = f"/dags/{dag_id}/dagRuns/{_quote(run_id)}/taskInstances/{task['task_id']}/-1/hitlDetails"
                    question = self.call("GET", path)
                    if question["response_received"]:
                        continue
                    option = asked(task["task_id"], question["subject"])
                    self.call("PATCH", path, {"chosen_options": [option], "params_input": _typed(question)})
            if time.monotonic() > limit:
                states = ", ".join(f"{task['task_id']} {task['state']} (try {task['try_number']})" for task in tasks)
                raise StackError(
                    f"run {run_id} of {dag_id} is still {found['state']} after {timeout_s:.0f} s: {states}"
                )
            time.sleep(0.5)

    def put_connections(self, connections: Mapping[str, Mapping[str, Any]]) -> None:
        """Create these connections, or overwrite them: id -> ``conn_type, host, port, login, password, extra``."""
        entities = [
            {"connection_id": name, **fields, "extra": json.dumps(fields["extra"]) if fields.get("extra") else None}
            for name, fields in connections.items()
        ]
        create = {"action": "create", "entities": entities, "action_on_existence": "overwrite"}
        done = self.call("PATCH", "/connections", {"actions": [create]})
        errors = (done.get("create") or {}).get("errors")
        if errors:
            raise StackError(f"Airflow takes a connection not: {errors}")

    def call(self, method: str, path: str, body: Any = None, *, again: bool = False) -> Any:
        """One call under ``/api/v2``; StackError with Airflow's own words when it refuses.

        What may be done twice (all but POST, and that with ``again``) is repeated when there was no answer: a busy
        machine may take longer than a call waits.
        """
        return self._tried(method, path, body, 4 if again or method != "POST" else 1)

    def page(self, path: str) -> Any:
        """JSON of an app beside the API, with the token of the call before."""
        return self._request("GET", path)

    def _create(self, path: str, body: Any) -> Any:
        """POST what is told by itself from any other; None when an earlier try that was not answered had made it."""
        return self._tried("POST", path, body, 4, creates=True)

    def _tried(self, method: str, path: str, body: Any, tries: int, *, creates: bool = False) -> Any:
        for left in reversed(range(tries)):
            try:
                return self._logged_in(method, path, body)
            except Refused as error:
                if creates and left < tries - 1 and error.code == http.HTTPStatus.CONFLICT:
                    return None
                if error.code < 500 or not left:
                    raise
            except OSError as error:
                if not left:
                    raise StackError(f"Airflow does not answer {method} {path}: {error}") from error
            time.sleep(0.5)
        raise AssertionError

    def _logged_in(self, method: str, path: str, body: Any) -> Any:
        for fresh in (False, True):
            try:
                if fresh or not self._token:
                    self._token = self._request("POST", "/auth/token", self._login, token=False)["access_token"]
                return self._request(method, f"/api/v2{path}", body)
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.UNAUTHORIZED or fresh:
                    text = error.read().decode(errors="replace")[:600]
                    raise Refused(f"Airflow refused {method} {path}: {error.code} {text}", code=error.code) from error
        raise AssertionError

    def _request(self, method: str, path: str, body: Any = None, *, token: bool = True) -> Any:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        with _OPENER.open(request, timeout=self.timeout_s) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _typed(question: Mapping[str, Any]) -> dict[str, str]:
    return {name: field["schema"]["title"].removeprefix("Type ") for name, field in question["params"].items()}


def _quote(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")


def _log_line(line: Any) -> str:
    if not isinstance(line, dict):
        return str(line)
    known = {"event", "level", "timestamp", "logger", "filename", "lineno", "loc", "error_detail"}
    more = " ".join(f"{name}={value}" for name, value in line.items() if name not in known)
    errors = "".join(f" [{e.get('exc_type')}: {e.get('exc_value')}]" for e in line.get("error_detail") or ())
    return f"{line.get('event', '')} {more}{errors}".rstrip()
