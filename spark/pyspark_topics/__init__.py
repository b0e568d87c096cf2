"""Topics as Spark tables and streams: `spark.read.format("topics")`.

Spark imports every module named `pyspark_*` to look for a `DefaultSource`, and a module that fails
hides all others. So this module imports nothing: the data source is loaded on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .source import DefaultSource

__all__ = ["DefaultSource", "register"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .source import DefaultSource
    except ImportError as e:
        # As an AttributeError: a search for data sources continues with the next module.
        raise AttributeError(f"the data source of {__name__} cannot be loaded: {e}") from e
    return DefaultSource


def register(spark: SparkSession) -> None:
    """Registers the format in a session whose workers do not find this package automatically."""
    from pyspark.errors import AnalysisException

    from .source import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as e:
        # Spark 4.0 refuses the name of a source that it has found itself.
        if e.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
