"""Runs the snippets of the lake's page as they stand, in their order. A process of its own: its
session needs the jars of the formats.

python lake_page.py FOLDER
"""

import os
import sys
from pathlib import Path

from local_spark import prepare

from python.test_snippets import DOCS, Reader, snippets

folder = Path(sys.argv[1])
prepare(folder)
# As the loopback settings of `local_spark.session`.
os.environ["PYSPARK_SUBMIT_ARGS"] = (
    "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false "
    "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 "
    f"--conf spark.sql.warehouse.dir={folder}/warehouse pyspark-shell"
)
os.chdir(folder)
reader = Reader(folder)
ran = 0
try:
    for snippet in snippets(DOCS / "guides" / "lake.md"):
        if snippet.runs:
            try:
                reader.do(snippet)
            except BaseException as error:
                error.add_note(f"lake.md:{snippet.line}")
                raise
            ran += 1
finally:
    reader.leave()
print(ran, "snippets")
