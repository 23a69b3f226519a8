"""Features that the installed PySpark lacks, and stand-ins for the classes that only newer versions have.

PySpark 3.5 has no data sources in Python. 4.0 reads and writes batches, 4.1 adds `writeStream` and the shuffle of a
parallel replay, 4.2 adds `readStream` with limits and `Trigger.AvailableNow`.

Invariant: importing a source succeeds on PySpark 4.0 and newer. A source calls `require` for what may be missing, so a
stand-in is never used.
"""

# ruff: noqa: PLC0414 — an alias of the same name says that other modules import it from here
from __future__ import annotations

from typing import Final

import pyspark

from segstore.pipeline.session import SparkMissing

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
except ImportError:
    DataSourceStreamArrowWriter = object  # type: ignore[assignment,misc]
try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import ReadMaxBytes as ReadMaxBytes
    from pyspark.sql.streaming.datasource import ReadMaxFiles as ReadMaxFiles
    from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRows
    from pyspark.sql.streaming.datasource import ReadMinRows as ReadMinRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow
except ImportError:
    ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxFiles = object  # type: ignore[assignment,misc]
    ReadMaxRows = ReadMinRows = SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

FEATURES: Final = {"writeStream": (4, 1), "replay": (4, 1), "readStream": (4, 2)}
"""Features by the first version of PySpark that has them."""


def require(feature: str) -> None:
    """Raises SparkMissing if the installed PySpark has no such feature."""
    installed = tuple(map(int, pyspark.__version__.split(".")[:2]))
    if installed < FEATURES[feature]:
        first = ".".join(map(str, FEATURES[feature]))
        raise SparkMissing(
            "PySpark",
            f"{feature} needs PySpark {first} or newer; PySpark {pyspark.__version__} is installed, which can read and "
            "write in batches",
        )
