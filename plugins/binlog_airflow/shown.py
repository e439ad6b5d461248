"""A restore's plan as a person reads it: Markdown for the approval, the same lines for the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pumphouse.clock import duration
from pumphouse.model.tso import Tso, show

# So many names stand in a list; the rest is counted.
_NAMES = 12
_UNITS = ("B", "kB", "MB", "GB", "TB")


def plan_facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What a restore replaces, reads and does, as pairs; ``report`` is what `RestoreReport.to_dict` gives."""
    plan = report["plan"]
    kinds = Counter(str(each["action"]).lower().replace("_", " ") for each in plan["ddls"])
    facts = [
        ("moment", show(Tso(int(plan["to"])))),
        ("onto", f"{report['target']} {_server(report)}".rstrip()),
        *_made(plan),
        (
            "dump",
            (
                f"{plan['base_tables']:,} tables, {plan['base_rows']:,} rows, {_size(plan['base_bytes'])}, "
                f"of {show(Tso(int(plan['base'])))}"
            ),
        ),
        (
            "windows",
            (
                f"{plan['windows']:,}{', the last one in part' if plan['last_window_cut'] else ''}; "
                f"at most {plan['rows']:,} row changes, {_size(plan['bytes'])}"
            ),
        ),
        *([("takes about", duration(report["estimate_s"]))] if report.get("estimate_s") is not None else []),
        ("DDLs", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"),
        ("the archive ends at", show(Tso(int(plan["end"])))),
    ]
    lost = len(plan["declared"])
    facts.append(("declared lost", f"{lost} ranges: `accept_losses` is needed" if lost else "nothing"))
    if plan["unsynced"]:
        facts.append(("Pumps without fsync", _names(plan["unsynced"])))
    if plan["binlog_skipped"]:
        facts.append(("ranges in which TiDB skipped binlogs", str(len(plan["binlog_skipped"]))))
    if report.get("lacks"):
        facts.append(("what no restore builds", str(report["lacks"])))
    return facts


def _made(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """What goes, and what comes."""
    if "parts" not in plan:
        dropped = ("databases that are dropped there and built again", _names(plan["databases"]))
        return [dropped, ("tables afterwards", f"{plan['tables']:,}")]
    made = [name if name == place else f"{name} as {place}" for name, place in plan["parts"].items()]
    facts = [("tables that are made", _names(made)), ("dropped", "nothing: all that is there stays")]
    return facts + [("left out", note) for note in plan["notes"][:_NAMES]]


def markdown(facts: Sequence[tuple[str, str]]) -> str:
    """The facts as a table."""
    rows = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in facts)
    return f"| | |\n|---|---|\n{rows}"


def _server(report: dict[str, Any]) -> str:
    check = report.get("check") or {}
    return f"({check['server']})" if check.get("server") else ""


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown or "none"


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} {_UNITS[-1]}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
