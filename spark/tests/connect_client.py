"""A Spark Connect client: reads, writes and streams, without importing the package.

python connect_client.py URL TOPIC FOLDER
"""

import sys

from pyspark.sql import SparkSession

url, topic, folder = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
}
builder = SparkSession.builder.remote("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
read = spark.read.format("topics").load(url=url, subscribe=topic)
read.select("data").write.format("topics").mode("append").save(url=url, topic=f"{topic}.batch")
stream = spark.readStream.format("topics").load(url=url, subscribe=topic)
writer = stream.select("data").writeStream.format("topics").trigger(availableNow=True)
writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
query = writer.start(url=url, topic=f"{topic}.stream")
query.awaitTermination()
print("rows", read.count())
spark.stop()
