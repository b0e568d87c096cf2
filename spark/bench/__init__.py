"""What Spark gets out of topics and into them, beside its own Parquet."""
