"""Runs the snippets of the lake's page as they stand, in their order: those before the section on
Iceberg, or those of it, which need another Spark.

python lake_page.py FOLDER lake-delta|spark-4.1
"""

import os
import sys
from pathlib import Path

from local_spark import prepare

from python.test_snippets import DOCS, Reader, snippets

PAGE = DOCS / "guides" / "lake.md"

folder, is_iceberg = Path(sys.argv[1]), sys.argv[2] == "spark-4.1"
prepare(folder / sys.argv[2])
# What the page leaves to the user: memory, and where Spark listens.
os.environ["PYSPARK_SUBMIT_ARGS"] = (
    "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false "
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "
    "--conf spark.databricks.delta.snapshotPartitions=2 --conf spark.sql.shuffle.partitions=2 "
    f"--conf spark.sql.warehouse.dir={folder}/warehouse pyspark-shell"
)
os.chdir(folder)
first, _, _ = PAGE.read_text().partition("\n## Iceberg\n")
found = [
    one
    for one in snippets(PAGE)
    # Both parts need the server.
    if one.runs
    and (one.text.startswith("topics serve") or (one.line > first.count("\n")) == is_iceberg)
]
reader = Reader(folder)
try:
    for snippet in found:
        try:
            reader.do(snippet)
        except BaseException as error:
            error.add_note(f"{PAGE.name}:{snippet.line}")
            raise
finally:
    reader.leave()
print(len(found), "snippets")
