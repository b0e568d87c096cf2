"""Spark's read and write rates with topics, compared with its own Parquet."""
