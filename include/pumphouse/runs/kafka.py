"""Send what a topic of Kafka does not have yet: what `archive export --format kafka` and the DAG `binlog_kafka` do."""

from __future__ import annotations

from collections.abc import Sequence

from pumphouse.export.kafkarun import KafkaReport, export_kafka, topic_name
from pumphouse.loader.report import Progress, silent
from pumphouse.loader.rules import unknown_ids
from pumphouse.model.tso import Tso
from pumphouse.parts import Parts
from pumphouse.settings import Settings


def run(
    settings: Settings,
    *,
    topic: str | None = None,
    since: Tso | None = None,
    upto: Tso | None = None,
    tables: Sequence[str] = (),
    anew: bool = False,
    tell: Progress = silent,
) -> KafkaReport:
    """Send up to ``upto`` (None = the archive's end).

    Args:
        settings: all of them.
        topic: its name; None = that of the settings.
        since: where an empty topic begins.
        upto: inclusive.
        tables: which; () = those of the settings.
        anew: begin at ``since``, whatever the topic has.
        tell: told of each segment.
    """
    with Parts(settings) as parts:
        archive = parts.readable_archive
        return export_kafka(
            archive,
            settings.kafka,
            topic or topic_name(settings.kafka, archive),
            since=since,
            upto=upto,
            tables=tables or settings.kafka.tables,
            skipped=unknown_ids(settings.load.rules),
            anew=anew,
            tell=tell,
        )
