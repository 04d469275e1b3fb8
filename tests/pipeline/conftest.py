"""One small Spark session for all tests of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.making import Fact, table_of

from holdfast.pipeline.engine import open_engine
from holdfast.pipeline.frames import read_files
from holdfast.pipeline.schemas import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeFrame = Callable[[str, list[Fact]], "DataFrame"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with open_engine("local[2]") as session:
        # Frames are tiny: each further partition only costs a task.
        session.conf.set("spark.sql.shuffle.partitions", "1")
        yield session


@pytest.fixture(scope="session")
def frame(spark: SparkSession) -> MakeFrame:
    """Facts as the DataFrame that a transform gets."""

    def make(kind: str, facts: list[Fact]) -> DataFrame:
        return spark.createDataFrame(table_of(kind, facts)).to(
            read_files(spark, spark_schema(kind), []).schema
        )

    return make
