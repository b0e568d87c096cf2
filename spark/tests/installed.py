"""A program of somebody who has the package installed: reads, writes and streams.

python installed.py URL TOPIC FOLDER [NAME=VALUE …]   (settings of the session)
"""

import sys

from pyspark.sql import SparkSession

url, topic, folder, *settings = sys.argv[1:]
builder = SparkSession.builder
common = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
    **dict(setting.split("=", 1) for setting in settings),
}
for key, value in common.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()

read = spark.read.format("topics").load(url=url, subscribe=topic, minPartitions=4)
read.select("data").write.format("topics").mode("append").save(url=url, topic=f"{topic}.batch")
stream = spark.readStream.format("topics").load(url=url, subscribe=topic)
writer = stream.select("data").writeStream.format("topics").trigger(availableNow=True)
writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
writer.start(url=url, topic=f"{topic}.stream").awaitTermination()


def where(_):
    import os

    import pyspark_topics

    yield os.getppid(), pyspark_topics.__file__


workers = spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect()
print("rows", read.count())
print("from", *sorted({file for _, file in workers}))
print("daemons", len({pid for pid, _ in workers}))
spark.stop()
