"""Which installations there are, as Airflow stores their DAGs, and what of them a user may see and do.

Whoever may read all DAGs of an installation sees its page, and whoever may start its restores can search its archive:
the page says no more than their logs and forms do.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from binlog_airflow.factory import MAKERS
from binlog_airflow.installation import Installation

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

_RESTORE, _SNAPSHOT = "binlog_restore", "binlog_snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of the restore DAG's form. ``kind``: check, choice, lines or text; ``on``: of a check, as it opens."""

    title: str
    says: str = ""
    kind: str = "text"
    choices: tuple[str, ...] = ()
    on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the restore DAG's form asks: the DAG, and its fields by their names in a run's conf."""

    dag_id: str
    paused: bool
    fields: dict[str, Field]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An installation. ``dags``: name without the prefix -> id; ``form`` None: the user may start no restore.

    ``snapshot_due``: when Airflow makes the next run of the snapshots; None where it makes none.
    """

    prefix: str
    here: Installation
    dags: dict[str, str]
    form: Form | None = None
    snapshot_due: datetime | None = None


def known(user: BaseUser) -> list[Known]:
    """The installations that the user may see, by prefix."""
    with create_session() as session:
        stored = session.scalars(
            select(DagModel)
            .join(DagTag, DagTag.dag_id == DagModel.dag_id)
            .where(DagTag.name == "pumphouse", DagModel.is_stale.is_(False))
        ).all()
        readable = get_auth_manager().get_authorized_dag_ids(user=user, session=session)
        found: dict[str, dict[str, DagModel]] = defaultdict(dict)
        for model in stored:
            for name in MAKERS:
                if model.dag_id.endswith(name):
                    found[model.dag_id.removesuffix(name)][name] = model
        read = (
            _read(prefix, of, user, session)
            for prefix, of in sorted(found.items())
            if readable.issuperset(model.dag_id for model in of.values())
        )
        return [each for each in read if each is not None]


def _read(prefix: str, of: dict[str, DagModel], user: BaseUser, session: Any) -> Known | None:
    """None of a DAG with such a name that is none of ours."""
    of_restore = of.get(_RESTORE)
    model = of_restore or next(iter(of.values()))
    dag = SerializedDagModel.get_dag(model.dag_id, session=session)
    task = next((each for each in dag.tasks if hasattr(each, "restore_targets")), None) if dag else None
    if task is None:
        return None
    here = Installation(
        archive=task.archive_conn_id,
        cluster=task.cluster_conn_id,
        source=task.source_conn_id,
        targets=tuple(task.targets),
        restore_targets=tuple(task.restore_targets),
        settings_file=task.settings_file,
    )
    form = None
    if of_restore is not None and "target" in dag.params and _may_start(of_restore.dag_id, user, session):
        fields = {name: _field(dag.params.get_param(name)) for name in dag.params}
        form = Form(dag_id=of_restore.dag_id, paused=bool(of_restore.is_paused), fields=fields)
    snapshot = of.get(_SNAPSHOT)
    return Known(
        prefix=prefix,
        here=here,
        dags={name: each.dag_id for name, each in of.items()},
        form=form,
        snapshot_due=None if snapshot is None or snapshot.is_paused else snapshot.next_dagrun_create_after,
    )


def _field(param: Any) -> Field:
    schema = param.schema
    kinds = schema.get("type", "string")
    choices = tuple(schema.get("enum", ()))
    kind = "choice" if choices else "check" if "boolean" in kinds else "lines" if "array" in kinds else "text"
    says = param.description or ""
    return Field(title=schema.get("title", ""), says=says, kind=kind, choices=choices, on=param.value is True)


def _may_start(dag_id: str, user: BaseUser, session: Any) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id, session=session))
    return bool(
        get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
    )
