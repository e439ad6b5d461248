# Airflow with the DAGs, and Spark with the jobs: the batch part. The Pump has an image of its own (pump_service/Dockerfile).
FROM python:3.12.11-slim-bookworm
# A capture runs the source's DDL on a server program of its version (MariaDB 10.11 here), which is not started as a service;
# mariadb-install-db needs a program of the client's package.
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps mariadb-server-core mariadb-client-core \
 && rm -rf /var/lib/apt/lists/*
# Directories that volumes are mounted on take their owner from here.
RUN useradd --uid 50000 --create-home pumphouse \
 && install -d -o pumphouse -g pumphouse /app /cluster /var/lib/airflow /var/lib/capture /var/cache/pumphouse
WORKDIR /app
COPY locks locks
RUN pip install --no-cache-dir --no-deps --require-hashes -r locks/airflow.lock \
 && pip install --no-cache-dir --no-deps --require-hashes -r locks/spark.lock \
 && pip install --no-cache-dir hatchling
COPY --chown=pumphouse:pumphouse . .
# Registers the provider, and with it the connection types; the dependencies are there already.
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .
ENV PYTHONPATH=/app:/app/include:/app/plugins PYTHONUNBUFFERED=1 PYSPARK_PYTHON=python \
    NUMBA_CACHE_DIR=/var/cache/pumphouse AIRFLOW_HOME=/var/lib/airflow
USER pumphouse
# Kernels are compiled once, here, by the user who loads them: numba takes a cache only where it may write.
RUN python -c "from spark_tasks.daemon import load; load(); from pumphouse.capture.source.warm import warm; warm()"
CMD ["pumphouse", "--help"]
