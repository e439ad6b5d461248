"""Scripts that run in Airflow, each in a child of its own of one process that has imported Airflow: seconds less a script.

A line on standard input: ``{"script": …, "environment": {…}, "said": path}``; a line on standard output: the child's
exit code. The child's output goes to the path.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from typing import NoReturn


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Airflow logs there
    import httpx
    import sqlalchemy.orm
    from airflow.sdk.execution_time.supervisor import in_process_api_server

    import binlog_airflow.tasks  # noqa: F401
    import pumphouse.runs.load  # noqa: F401

    # What every run of a DAG makes first, and takes longer than any script: the server is kept, and its routes.
    app = in_process_api_server().app
    asyncio.run(httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here").get("/"))
    sqlalchemy.orm.configure_mappers()

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers, flush=True)


def _run(script: str, environment: dict[str, str], said: str) -> NoReturn:
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    code = 0
    try:
        exec(script, {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
