"""The stages of a whole fold one after the other in this process: what Spark would do of them side by side."""

from __future__ import annotations

from collections import defaultdict

from pumphouse.archive.schema_stages import CannotTell, FoldPlan, Sizes, deal, fold_alone, survey, write_range
from pumphouse.archive.schema_store import Rebuilt, WholeFold

SMALL = Sizes(task_jobs=7, fold_jobs=6, fold_bytes=1 << 20, range_rows=12, range_bytes=1 << 20)


def serial_fold(whole: WholeFold, sizes: Sizes = SMALL) -> tuple[Rebuilt, FoldPlan]:
    """Fold and store; what was done, and how it was divided. CannotTell."""
    store = whole.archive.store
    tasks = whole.tasks(3, sizes)
    found = [(number, each) for number, task in enumerate(tasks) for each in survey(store, task, sizes)]
    plan = whole.plan([each for _, each in found], sizes)
    if whole.stored is not None and not plan.fresh:
        return whole.done(plan), plan
    left = whole.left(plan)
    dealt: dict[int, list[bytes]] = defaultdict(list)
    for number, task in enumerate(tasks):
        assigned = [blob for (of, _), blob in zip(found, plan.assigned, strict=True) if of == number]
        for fold, blob in deal(store, task, assigned, plan.folds):
            dealt[fold].append(blob)
    summaries, ranges = [], defaultdict(list)
    for fold, blobs in dealt.items():
        summary, rows = fold_alone(
            fold, blobs, bounds=plan.bounds, begin=left[-1].upto if left else 0, since=whole.since
        )
        summaries.append(summary)
        for number, blob in rows:
            ranges[number].append(blob)
    if any(each.whole for each in summaries):
        raise CannotTell("a DDL was not understood, or no job makes a database")
    files = [file for number in sorted(ranges) for file in write_range(store, ranges[number])]
    return whole.done(plan, summaries, files), plan
