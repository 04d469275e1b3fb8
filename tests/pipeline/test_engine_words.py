"""A failure of the engine is reported as a problem and its cause; pages of stack stay in the log."""

from __future__ import annotations

import pytest

from holdfast.pipeline.engine_words import LENGTH_MAX, engine_words

WRITE = """An error occurred while calling o1116.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out/t. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:823)
\tat org.apache.spark.util.Utils$.tryWithSafeFinally(Utils.scala:1337)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: {cause}
\tat org.apache.hadoop.fs.RawLocalFileSystem.write(RawLocalFileSystem.java:297)
\t... 12 more
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
Caused by: java.io.IOException: {cause}
\t... 3 more"""


def test_a_full_disk_is_named_with_what_to_do() -> None:
    """The cause comes after dozens of lines of stack, where no limit of length must cut it off."""
    stack = "\tat org.apache.spark.x(Y.scala:1)\n" * 100
    said = engine_words(
        WRITE.format(cause="No space left on device").replace("Caused", stack + "Caused", 1)
    )
    assert said.startswith("No space left on device. Free space")
    assert "at org" not in said


def test_the_first_line_and_the_root_cause_remain() -> None:
    said = engine_words(WRITE.format(cause="Input/output error"))
    assert "[TASK_WRITE_FAILED] Task failed while writing rows to file:/out/t." in said
    assert said.endswith("Caused by: IOException: Input/output error")
    assert "scala" not in said
    assert "\n" not in said


@pytest.mark.parametrize("text", ["", "plain words", "x" * 5000, "Caused by: nothing", "at a loss"])
def test_any_text_gives_one_short_line(text: str) -> None:
    said = engine_words(text)
    assert len(said) <= LENGTH_MAX
    assert said in text
