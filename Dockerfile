# Airflow with the DAGs, and Spark with the jobs: the batch part. The Pump has an image of its own.
FROM python:3.12-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends default-jre-headless procps \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY locks locks
RUN pip install --no-cache-dir --no-deps --require-hashes -r locks/airflow.lock \
 && pip install --no-cache-dir --no-deps --require-hashes -r locks/spark.lock \
 && pip install --no-cache-dir hatchling
COPY . .
# Registers the provider, and with it the connection types; the dependencies are there already.
RUN pip install --no-cache-dir --no-deps --no-build-isolation -e .
# Kernels are compiled once here instead of in every container.
RUN python -c "from pumphouse.codec.warm import warm; warm()"
ENV PYTHONPATH=/app:/app/include:/app/plugins PYTHONUNBUFFERED=1 PYSPARK_PYTHON=python
CMD ["airflow", "standalone"]
