"""pandas: group, join, sort and text of frames. Argument: rounds."""
import sys
import numpy
import pandas

rounds = int(sys.argv[1])
random = numpy.random.default_rng(1)
rows = 400_000
left = pandas.DataFrame({
    "key": random.integers(0, 5000, rows),
    "x": random.random(rows),
    "y": random.random(rows),
})
right = pandas.DataFrame({"key": numpy.arange(5000), "z": random.random(5000)})
for _ in range(rounds):
    joined = left.merge(right, on="key")
    joined["w"] = joined["x"] * joined["z"] + joined["y"]
    grouped = joined.groupby("key").agg({"w": "sum", "x": "mean", "y": "max"})
    ordered = joined.sort_values(["z", "x"]).reset_index(drop=True)
    wide = joined.head(50_000).pivot_table(index="key", columns=joined["key"] % 7, values="w")
    print(len(joined), float(grouped["w"].sum()), float(ordered["w"].iloc[17]), wide.shape)
