"""Runs the snippets of the Spark page as they stand, in their order."""

from __future__ import annotations

import pytest
from pyspark_topics.compat import ADMITS_ROWS

from python.test_snippets import DOCS, Reader, snippets

PAGE = DOCS / "spark.md"


def sections(text: str) -> dict[str, str]:
    """The text below each heading."""
    found = {}
    for part in text.split("\n## ")[1:]:
        name, _, body = part.partition("\n")
        found[name] = body
    return found


def test_what_the_page_shows(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    try:
        for snippet in snippets(PAGE):
            if not snippet.runs:
                continue
            if "latestOffset" in snippet.text and not ADMITS_ROWS:
                continue  # the lag in reports of Spark 4.2
            try:
                reader.do(snippet)
            except BaseException as error:
                error.add_note(f"{PAGE.name}:{snippet.line}")
                raise
    finally:
        for name in ("orders", "sink"):
            spark.catalog.dropTempView(name)
        reader.leave()


@pytest.mark.parametrize("name", [*sections(PAGE.read_text())])
def test_a_section_begins_with_a_snippet_that_runs(name):
    """But those that are about installation and machines: pages and tests of their own run them."""
    if name in ("Install", "On a cluster", "The pipeline"):
        return
    text = sections(PAGE.read_text())[name]
    assert "```python\n" in text, "no snippet"
    first = text[text.index("```") :]
    assert first.startswith("```python\n")
