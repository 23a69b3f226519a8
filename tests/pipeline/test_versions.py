"""What the installed PySpark lacks is said when it is asked for."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

from segstore.pipeline.session import SparkMissing

pytestmark = pytest.mark.needs("Java 17 or newer")  # with it PySpark is installed

STREAM = {"controller": "tcp://a:9090", "scope": "a", "stream": "b"}


@pytest.mark.parametrize(
    ("installed", "lacks"),
    [("4.0.5", ["readStream", "replay", "writeStream"]), ("4.1.4", ["readStream"]), ("4.10.0", []), ("5.0", [])],
)
def test_a_feature_of_a_newer_pyspark_is_refused_by_name(
    installed: str, lacks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    from segstore.pipeline.versions import FEATURES, require

    monkeypatch.setattr(pyspark, "__version__", installed)
    for feature in sorted(FEATURES):
        said = rf"^{feature} needs PySpark 4\.[12] or newer; PySpark {re.escape(installed)} is installed"
        with pytest.raises(SparkMissing, match=said) if feature in lacks else nullcontext():
            require(feature)


def test_the_sources_ask_what_the_installed_pyspark_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark
    from pyspark.sql.types import StructType

    from segstore.pipeline.stream.source import StreamSource
    from segstore.pipeline.trace.source import TraceSource

    monkeypatch.setattr(pyspark, "__version__", "4.0.0")
    for source in (TraceSource({"path": "x"}), StreamSource(STREAM)):
        with pytest.raises(SparkMissing, match=r"readStream needs PySpark 4\.2"):
            source.streamReader(StructType())
    with pytest.raises(SparkMissing, match=r"writeStream needs PySpark 4\.1"):
        StreamSource(STREAM).streamWriter(StructType(), overwrite=False)
