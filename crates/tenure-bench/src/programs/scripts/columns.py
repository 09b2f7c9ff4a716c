"""pyarrow: arithmetic, filter, sort, and files in memory. Argument: rounds."""
import sys
import pyarrow
import pyarrow.compute as compute
import pyarrow.parquet as parquet

rounds = int(sys.argv[1])
rows = 1_000_000
numbers = pyarrow.array(range(rows), pyarrow.int64())
table = pyarrow.table({
    "a": numbers,
    "b": compute.multiply(compute.cast(numbers, pyarrow.float64()), 0.5),
    "c": compute.bit_wise_and(numbers, 1023),
})
for i in range(rounds):
    sums = compute.add(compute.multiply(table["b"], 1.5), table["b"])
    more = table.append_column("d", sums).filter(compute.greater(table["a"], i * 1000))
    ordered = more.sort_by([("c", "ascending"), ("b", "descending")])
    grouped = more.group_by("c").aggregate([("d", "sum")])
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(ordered, sink)
    back = parquet.read_table(pyarrow.BufferReader(sink.getvalue()))
    print(back.num_rows, compute.sum(grouped["d_sum"]).as_py(), back["d"][5].as_py())
