"""Makes Spark read only the columns of a trace that a query uses.

Spark (4.3.0) gives data sources in Python all columns of their table. `PruneColumns.java` is a rule for its optimizer
that changes this; it is compiled in the driver's Java by Janino, with which Spark compiles the code that it generates.

Invariant: queries give the same rows with and without the rule. A Spark whose internals differ, so that the rule does
not compile, works without it and logs a warning.
"""

from __future__ import annotations

import logging
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_RULE: Final = "segstore.pipeline.PruneColumns"


def prune_columns(spark: SparkSession) -> None:
    """Adds the rule to a session of this process, once."""
    from py4j.protocol import Py4JJavaError

    methods = spark._jsparkSession.experimental()
    rules = methods.extraOptimizations()
    if any(rules.apply(at).ruleName() == _RULE for at in range(rules.length())):
        return
    java = spark._jvm
    assert java is not None
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    try:
        compiler.cook(resources.files(__package__).joinpath("PruneColumns.java").read_text("utf-8"))
        rule = compiler.getClassLoader().loadClass(_RULE).newInstance()
    except Py4JJavaError as error:
        said = str(error.java_exception)
        log.warning("queries on traces read all columns, unless the option `columns` names some: %s", said)
        return
    getattr(methods, "extraOptimizations_$eq")(rules.appended(rule))
