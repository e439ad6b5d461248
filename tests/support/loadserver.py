"""What the fork server of `tests.support.killedloads` imports: all of a load, its kernels loaded, so that a child costs
what its load does."""

import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401
import pymysql  # noqa: F401

import pumphouse.loader.engine
import pumphouse.objectstore.file
import pumphouse.registry.file
import pumphouse.replay.load
import pumphouse.runs.load
import pumphouse.runs.restore
import pumphouse.runs.restore_parts  # noqa: F401
import tests.support.killedloads  # noqa: F401
from pumphouse.codec.warm import warm

warm()
